// Programs that try to get out of the sandbox, or past its limits: the first argument says which. Each says what
// it was able to do. Only C headers: it is compiled for every process of the tests.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <initializer_list>
#include <netinet/in.h>
#include <unistd.h>

static const char *error(long result) { return result < 0 ? strerror(errno) : "done"; }

static void write_to(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    printf("write %s\n", file < 0 ? strerror(errno) : error(write(file, "x", 1)));
}

static void read_from(const char *path) {
    char text[100] = "";
    int file = open(path, O_RDONLY);
    printf("read %s\n", file < 0 ? strerror(errno) : (read(file, text, 99), text));
}

static void connect_to(int family, const void *address, unsigned size) {
    int made = socket(family, SOCK_STREAM, 0);
    printf("connect %s\n", error(made < 0 ? made : connect(made, (const sockaddr *)address, size)));
}

static void call(const char *name, long number, long a = 0, long b = 0, long c = 0) {
    if (syscall(number, a, b, c, 0, 0) >= 0 || (errno != EPERM && errno != ENOSYS))
        printf("%s: %s\n", name, strerror(errno));
}

int main(int count, char **arguments) {
    const char *what = arguments[1], *path = count > 2 ? arguments[2] : "";
    auto is = [what](const char *name) { return strcmp(what, name) == 0; };
    setvbuf(stdout, nullptr, _IONBF, 0);
    if (is("status")) { fputs("out\n", stdout); fputs("err\n", stderr); return 3; }
    if (is("abort")) abort();
    if (is("spin")) for (;;) {}
    if (is("sleep")) { signal(SIGTERM, SIG_IGN); fclose(stdout); fclose(stderr); for (;;) pause(); }
    if (is("flood")) for (;;) puts("a line of output");
    if (is("memory")) printf("%s\n", malloc(3l << 30) ? "done" : strerror(errno));
    if (is("forks")) for (;;) fork();
    if (is("count forks")) {
        int forks = 0;
        for (int child = 1; child > 0 && forks < 1000; forks += child > 0)
            if ((child = fork()) == 0) { pause(); _exit(0); }
        printf("%d\n", forks);
    }
    if (is("leave")) { if (fork() == 0) { setsid(); if (fork() == 0) sleep(600); _exit(0); } puts("left"); }
    if (is("rights")) {
        unsigned header[2] = {0x20080522, 0}, sets[6] = {}, bounding = 0;
        syscall(SYS_capget, header, sets);
        for (int each = 0; each < 64; ++each) bounding += prctl(PR_CAPBSET_READ, each) == 1;
        printf("uid %d capabilities %x bounding %u ", getuid(), sets[0] | sets[1] | sets[2] | sets[3], bounding);
        printf("no_new_privs %d seccomp %d\n", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), prctl(PR_GET_SECCOMP));
    }
    if (is("remount")) {
        printf("mount %s\n", error(mount(nullptr, "/", nullptr, MS_REMOUNT | MS_BIND, nullptr)));
        write_to(path);
    }
    for (int each = 2; each < count; ++each) {
        if (is("write")) write_to(arguments[each]);
        if (is("read")) read_from(arguments[each]);
    }
    if (is("outputs")) {  // names that its folder has, or had once, become links, a folder, and a pipe
        for (const char *name : {".output", "output", "stdout", "program"}) unlink(name);
        puts(error(symlink(path, ".output") | mkdir("output", 0777) | mkfifo("stdout", 0666) | symlink(path, "program")));
    }
    if (is("nested")) {
        int depth = 0;
        while (depth < 3000 && mkdir("d", 0777) == 0 && chdir("d") == 0) ++depth;
        printf("%d\n", depth);
    }
    if (is("unlinked")) {
        static char block[1 << 20];
        memset(block, 'x', sizeof block);
        int total = 0;
        for (int each = 0; each < 100; ++each) {
            int file = open("f", O_WRONLY | O_CREAT, 0666);
            unlink("f");
            for (int part = 0; part < 3 && file >= 0 && write(file, block, sizeof block) == sizeof block; ++part) ++total;
        }
        printf("%d\n", total);
    }
    if (is("files")) {
        int made = 0;
        char name[30];
        for (int each = 0; each < 71000; ++each) {
            sprintf(name, "f%d", each);
            int file = open(name, O_WRONLY | O_CREAT, 0666);
            made += file >= 0;
            close(file);
        }
        printf("%d\n", made);
    }
    if (is("sockets")) {
        sockaddr_un local = {AF_UNIX, ""};
        sockaddr_in remote = {AF_INET, htons(9), {htonl(INADDR_LOOPBACK)}};
        strncpy(local.sun_path, path, sizeof local.sun_path - 1);
        connect_to(AF_UNIX, &local, sizeof local);
        connect_to(AF_INET, &remote, sizeof remote);
    }
    if (is("kill")) printf("%s\n", error(kill(atoi(path), 0)));
    if (is("system")) printf("%d\n", system("true") == 0);
    if (is("itself")) {
        printf("chmod %s\n", error(chmod("/program", 0777)));
        printf("unlink %s\n", error(unlink("/program")));
        write_to("/program");
    }
    if (is("calls")) {  // of those that are refused, nothing is said
        call("socket", SYS_socket, AF_INET, SOCK_STREAM);
        call("unshare", SYS_unshare, 0x10000000);
        call("clone", SYS_clone, 0x10000000 | SIGCHLD);
        call("clone3", SYS_clone3);
        call("setns", SYS_setns, 0, 0);
        call("ptrace", SYS_ptrace, 0);
        call("keyctl", SYS_keyctl, 0);
        call("bpf", SYS_bpf, 0);
        call("perf_event_open", SYS_perf_event_open);
        call("io_uring_setup", SYS_io_uring_setup, 1);
        call("userfaultfd", SYS_userfaultfd, 1);
        call("memfd_create", SYS_memfd_create, (long)"x");
        call("shmget", SYS_shmget, 0, 1 << 20, 01600);
        call("TIOCSTI", SYS_ioctl, 0, 0x5412, (long)"x");
        call("TIOCLINUX", SYS_ioctl, 0, 0x541C, (long)"x");
        call("a later one", 1000);
#ifdef __x86_64__
        call("socket of x32", 0x40000000 + SYS_socket, AF_INET, SOCK_STREAM);
#endif
        puts("called");
    }
#ifdef __x86_64__
    if (is("32 bits")) {
        long number = 20;  // getpid, as i386 knows it
        asm volatile("int $0x80" : "+a"(number));
        printf("%ld\n", number);
    }
#endif
    return 0;
}
