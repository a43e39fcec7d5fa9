#!/bin/sh
# Runs the tests of this folder over NFS: `tests/nfs/boot.sh PYTHON VERSION` (4.2, 4.0 or 3).
#
# A kernel as a process (user-mode Linux) has this machine's files, a server of NFS, and two clients of it in network
# namespaces of their own, so that they share no cache.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lib/modules"
for each in /usr/lib/uml/modules/*; do ln -s "$each" "$work/lib/modules/"; done
# Its memory is a file, of which what is used takes space.
[ "$(df --output=avail /dev/shm | tail -n 1)" -gt 3200000 ] || export TMPDIR="$work"
timeout 900 linux.uml quiet rootfstype=hostfs rootflags=/ rw mem=3G con=null con0=fd:0,fd:1 "init=$here/guest.sh" \
  "WORK=$work" "PYTHON=$1" "VERSION=$2" < /dev/null > "$work/log" 2>&1 || true
if ! grep -q '^guest: ready' "$work/log"; then
  tail -n 5 "$work/log"
  echo "the tests over NFS are left out: user-mode Linux, or NFS in it, does not run here"
  exit 0
fi
sed '1,/^guest: ready/d' "$work/log"
exit "$(cat "$work/status" 2> /dev/null || echo 1)"
