#!/usr/bin/env bash
# Runs a command beside the Docker engine of another Debian release, which has a root directory, a
# mount and a pid namespace of its own, and this machine's network: no other engine may run. The
# command runs in the directory in which this is called; the engine ends with it.
# usage: engine-of.sh SUITE COMMAND...
# SUITE: trixie has Docker 26.1, sid 28 or later. ENGINE_HOME is where the root directory is made.
set -euo pipefail
suite=$1
shift
root=${ENGINE_HOME:-/var/tmp}/dockershim-engine-$suite
packages=docker.io,docker-cli,iptables,iproute2,procps,curl,ca-certificates,busybox-static

[ "$(id -u)" -eq 0 ] || { echo 'engine-of.sh: root is needed' >&2; exit 1; }
if curl -fs --unix-socket /var/run/docker.sock http://docker/_ping >/dev/null 2>&1; then
  echo 'engine-of.sh: an engine runs here already' >&2
  exit 1
fi
if [ ! -e "$root/.complete" ]; then
  command -v debootstrap >/dev/null || apt-get install -y -q debootstrap >/dev/null
  echo "installing Debian $suite with its engine"
  debootstrap --variant=minbase --include="$packages" "$suite" "$root" >"$root.log" 2>&1 || {
    tail -n 20 "$root.log" >&2
    exit 1
  }
  touch "$root/.complete"
fi

# What a process that has just become the first of its namespaces does.
# shellcheck disable=SC2016 # the other shell's
inside='
root=$1 here=$2
shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root$here" "$root/outer"
mount --rbind "$here" "$root$here"
cd "$root"
pivot_root . outer
exec chroot . sh -euc "$within" sh "$here" "$@"
'
# shellcheck disable=SC2016
export within='
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
here=$1
shift
umount -l /outer
mount --make-rshared /
cd "$here"
dockerd >/var/log/dockerd.log 2>&1 &
for _ in $(seq 300); do
  docker version >/dev/null 2>&1 && break
  kill -0 $! || { tail -n 20 /var/log/dockerd.log >&2; exit 1; }
  sleep 0.2
done
status=0
"$@" || status=$?
kill $!
wait $! || true
exit "$status"
'
exec unshare --mount --pid --fork --kill-child -- sh -euc "$inside" sh "$root" "$PWD" "$@"
