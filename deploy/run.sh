#!/usr/bin/env bash
# The quick start: an engine, both binaries, an example pod, until Ctrl-C.
# Everything it makes is under .run/ and in the engine, and is gone afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."

run=$PWD/.run
manifests=$run/manifests
socket=$run/cri.sock
docker=/var/run/docker.sock
url=http://127.0.0.1:8080/
bin=${BIN:-target/release}
engine_pid='' shim_pid='' kubelet_pid=''

say() { printf '%s\n' "$*"; }
fail() {
  say "run.sh: $*" >&2
  exit 1
}
api() { # method, path, further arguments of curl
  local method=$1 path=$2
  shift 2
  curl -fsS --unix-socket "$docker" -X "$method" "$@" "http://docker$path"
}
engine_answers() { api GET /_ping >/dev/null 2>&1; }
await() { # seconds, what for, command
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || fail "$what: nothing after a while; logs are in $run"
    sleep 0.2
  done
}
end() { # pid
  [ -z "$1" ] || ! kill "$1" 2>/dev/null || wait "$1" 2>/dev/null || true
}
no_pods() {
  [ "$(api GET '/containers/json?all=1' -G --data-urlencode 'filters={"label":["io.kubernetes.docker.type"]}')" = '[]' ]
}
# shellcheck disable=SC2317 # called by the trap
stop() {
  # A closed terminal fails every write; that must not keep the rest from ending.
  set +e
  trap - EXIT
  trap '' INT TERM HUP
  say ''
  say 'stopping'
  if [ -n "$kubelet_pid" ] && kill -0 "$kubelet_pid" 2>/dev/null; then
    rm -f "$manifests"/*
    for _ in $(seq 100); do
      no_pods && break
      sleep 0.2
    done
  fi
  end "$kubelet_pid"
  end "$shim_pid"
  end "$engine_pid"
}

[ "$(id -u)" -eq 0 ] || fail 'root is needed, as for every kubelet'
deploy/install.sh engine
mkdir -p "$manifests"
rm -f "$manifests"/* "$socket"
trap stop EXIT
trap 'exit 0' INT TERM HUP

# A process group of its own keeps Ctrl-C away from what has to end in order.
set -m
if ! engine_answers; then
  say 'starting a Docker engine'
  if [ -d /run/systemd/system ]; then
    systemctl start docker
  else
    dockerd >"$run/dockerd.log" 2>&1 &
    engine_pid=$!
  fi
  await 60 'the Docker engine does not answer' engine_answers
fi

say 'building the example image out of busybox-static'
root=$(mktemp -d)
mkdir -p "$root/bin" "$root/www" "$root/etc" "$root/tmp"
cp "$(command -v busybox)" "$root/bin/busybox"
for applet in httpd sh ls cat ps kill sleep; do ln -s busybox "$root/bin/$applet"; done
say 'root:x:0:0::/:/bin/sh' >"$root/etc/passwd"
say '<h1>It works: a static pod on Docker</h1>' >"$root/www/index.html"
tar -C "$root" -c . | api POST '/images/create?fromSrc=-&repo=example.local/web&tag=1&changes=ENV%20PATH=/bin' \
  -H 'Content-Type: application/x-tar' --data-binary @- >/dev/null
rm -rf "$root"

say 'starting dockershim and kubelet'
"$bin/dockershim" --container-runtime-endpoint "unix://$socket" --docker-endpoint "unix://$docker" \
  --network-plugin docker --root-directory "$run/dockershim" >"$run/dockershim.log" 2>&1 &
shim_pid=$!
await 30 'dockershim does not listen' test -S "$socket"
cat >"$run/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$socket
staticPodPath: $manifests
podLogsDir: $run/pods
Y
"$bin/kubelet" --config "$run/kubelet.yaml" --root-dir "$run/kubelet" >"$run/kubelet.log" 2>&1 &
kubelet_pid=$!
cp deploy/manifests/web.yaml "$manifests/web.yaml"

serves() {
  kill -0 "$kubelet_pid" 2>/dev/null || fail "the kubelet ended: $(tail -3 "$run/kubelet.log")"
  kill -0 "$shim_pid" 2>/dev/null || fail "dockershim ended: $(tail -3 "$run/dockershim.log")"
  curl -fs --max-time 2 "$url" >/dev/null
}
await 60 'the example pod does not serve' serves

say ''
"$bin/kubelet" status --root-dir "$run/kubelet"
say ''
say "the page:   curl $url"
say "the pods:   $bin/kubelet status --root-dir $run/kubelet"
say "the runtime: crictl -r unix://$socket ps"
say "manifests:  $manifests (edit, add, delete)"
say "logs:       $run/kubelet.log $run/dockershim.log"
say 'Ctrl-C stops it all.'
if [ -n "${ONCE:-}" ]; then exit 0; fi
wait "$kubelet_pid" || fail "the kubelet ended: $(tail -3 "$run/kubelet.log")"
