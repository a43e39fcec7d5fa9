#!/bin/sh
# The first process of the guest, see boot.sh, which gives it WORK, PYTHON and VERSION.
set -u
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
here=$(dirname "$0")
fail() { echo "guest: $1"; poweroff -f; }

mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/shm
for each in /run /mnt /var/lib/nfs /dev/shm; do mount -t tmpfs none "$each" || fail "no tmpfs on $each"; done
mount --make-shared /mnt
mkdir -p /mnt/disk /mnt/a /mnt/b /mnt/tmp /run/netns /var/lib/nfs/rpc_pipefs /var/lib/nfs/v4recovery /var/lib/nfs/sm
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
for each in nfsd nfs nfsv3 nfsv4 loop veth bridge; do modprobe -d "$WORK" "$each" || fail "no module $each"; done
mount -t rpc_pipefs none /var/lib/nfs/rpc_pipefs
mount -t nfsd nfsd /proc/fs/nfsd

ip link set lo up
ip link add br0 type bridge
ip addr add 10.9.0.1/24 dev br0
ip link set br0 up
truncate -s 1900M /mnt/image
mkfs.ext4 -q -F /mnt/image && mount -o loop /mnt/image /mnt/disk || fail "no disk"
rpcbind
rpc.statd --no-notify  # for the locks of NFS 3
echo 1 > /proc/sys/fs/nfs/nlm_grace_period
exportfs -o rw,no_root_squash,no_subtree_check,fsid=0,insecure 10.9.0.0/24:/mnt/disk
rpc.nfsd 4 || fail "no server"
rpc.mountd
echo Y > /proc/fs/nfsd/v4_end_grace  # nobody has locks from before

export="/"
[ "$VERSION" = 3 ] && export=/mnt/disk
number=2
for name in a b; do
  ip netns add $name
  ip link add v$name type veth peer name e$name
  ip link set v$name master br0 up
  ip link set e$name netns $name
  ip -n $name link set lo up
  ip -n $name addr add 10.9.0.$number/24 dev e$name
  ip -n $name link set e$name up
  # A client of NFS 4 is told from others by the name of its host.
  nsenter --net=/run/netns/$name unshare --uts --mount --propagation unchanged sh -c "hostname host-$name
    mount --make-private /run; mount -t tmpfs none /run; mount -t tmpfs none /var/lib/nfs; mkdir /var/lib/nfs/sm
    [ $VERSION != 3 ] || { rpcbind; rpc.statd --no-notify; }
    mount -t nfs -o vers=$VERSION,nosharecache 10.9.0.1:$export /mnt/$name" || fail "no client $name"
  number=$((number + 1))
done

cd "$here/../.." || fail "no $here"
echo "guest: ready"
HOME=/mnt/tmp TMPDIR=/mnt/tmp OMP_NUM_THREADS=1 CLIENTS=/mnt/a:/mnt/b \
  "$PYTHON" -m pytest -p no:cacheprovider -m nfs --color=no tests/nfs
echo $? > "$WORK/status"
umount /mnt/a /mnt/b
poweroff -f
