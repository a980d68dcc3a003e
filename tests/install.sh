#!/usr/bin/env bash
# Installs what the tests need. Each test starts an engine and, where it needs
# one, a registry of its own: nothing has to run beforehand.
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/install.sh build engine

packages=()
command -v docker-registry >/dev/null 2>&1 || packages+=(docker-registry)
command -v nsenter >/dev/null 2>&1 && command -v setpriv >/dev/null 2>&1 || packages+=(util-linux)
if [ ${#packages[@]} -gt 0 ]; then
  echo "installing ${packages[*]}"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q "${packages[@]}" >/dev/null
fi
