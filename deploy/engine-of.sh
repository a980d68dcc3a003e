#!/usr/bin/env bash
# Runs a command with the Docker engine of another Debian release. The engine has its own root
# directory, mount namespace and PID namespace, and uses the host network, so no other engine may be
# running. The command runs in the current directory; the engine stops when the command ends.
# usage: engine-of.sh SUITE COMMAND...
# SUITE: trixie has Docker 26.1, sid 28 or later. ENGINE_HOME is the parent of the root directory.
set -euo pipefail
suite=$1
shift
root=${ENGINE_HOME:-/var/tmp}/dockershim-engine-$suite
packages=docker.io,docker-cli,iptables,iproute2,procps,curl,ca-certificates,busybox-static

[ "$(id -u)" -eq 0 ] || { echo 'engine-of.sh: must run as root' >&2; exit 1; }
if curl -fs --unix-socket /var/run/docker.sock http://docker/_ping >/dev/null 2>&1; then
  echo 'engine-of.sh: another engine is already running' >&2
  exit 1
fi
if [ ! -e "$root/.complete" ]; then
  command -v debootstrap >/dev/null || apt-get install -y -q debootstrap >/dev/null
  echo "installing Debian $suite and its Docker engine"
  debootstrap --variant=minbase --include="$packages" "$suite" "$root" >"$root.log" 2>&1 || {
    tail -n 20 "$root.log" >&2
    exit 1
  }
  touch "$root/.complete"
fi

# Runs as the first process of the namespaces: sets up the mounts and enters the root directory.
# shellcheck disable=SC2016 # expanded by the inner shell
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
# Runs in the root directory: starts the engine, and runs the command.
# shellcheck disable=SC2016 # expanded by the inner shell
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
