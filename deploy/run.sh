#!/usr/bin/env bash
# The quick start: an engine, both binaries, an example pod, until Ctrl-C.
# Everything it makes is under .run/ and in the engine, and is gone afterwards,
# however it ends.
#
# What is started belongs to a session of its own (run.sh session), which Ctrl-C
# and the end of the terminal do not reach. It ends in order when the process
# that was called is told to end or is gone. Should the session itself be
# killed, another (run.sh recover) starts what is needed to remove what is left.
#
# BIN is where the binaries are, RUN what is kept where; with ONCE it ends when
# the example serves.
set -euo pipefail
cd "$(dirname "$0")/.."

run=${RUN:-$PWD/.run}
bin=${BIN:-target/release}
manifests=$run/manifests
socket=$run/cri.sock
docker=/var/run/docker.sock
url=http://127.0.0.1:8080/
image=example.local/web

say() { printf '%s\n' "$*"; }
fail() {
  say "run.sh: $*" >&2
  exit 1
}
await() { # seconds, what for, command
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      say "run.sh: $what: nothing after a while; logs are in $run" >&2
      return 1
    fi
    sleep 0.2
  done
}

# === processes ===

# Becomes a command that is told to end when this script is gone, also when it is already.
tied() { # command
  # shellcheck disable=SC2016 # the other shell's
  exec setpriv --pdeathsig TERM -- sh -c '[ "$PPID" = "$0" ] && exec "$@"' $$ "$@"
}
start() { # name, command
  local name=$1
  shift
  tied "$@" >>"$run/$name.log" 2>&1 &
  echo $! >"$run/$name.pid"
}
was_started() { [ -s "$run/$1.pid" ]; } # name
runs() { was_started "$1" && kill -0 "$(cat "$run/$1.pid")" 2>/dev/null; }
has_ended() { ! runs "$1"; }
end() { # name
  if runs "$1"; then kill "$(cat "$run/$1.pid")" 2>/dev/null; fi
  await 60 "$1 does not end" has_ended "$1" || kill -KILL "$(cat "$run/$1.pid")" 2>/dev/null
  rm -f "$run/$1.pid"
}

# === the engine ===

api() { # method, path, further arguments of curl
  local method=$1 path=$2
  shift 2
  curl -fsS --unix-socket "$docker" -X "$method" "$@" "http://docker$path"
}
engine_answers() { api GET /_ping >/dev/null 2>&1; }
# Of an engine that was killed. The next one would take it for its own.
containerd_has_ended() { ! kill -0 "$(cat /run/docker/containerd/containerd.pid)" 2>/dev/null; }
start_engine() {
  if engine_answers; then return; fi
  say 'starting a Docker engine'
  if [ -d /run/systemd/system ]; then
    : >"$run/engine.unit"
    systemctl start docker
  else
    await 20 'containerd does not end' containerd_has_ended 2>/dev/null
    start engine dockerd
  fi
  await 60 'the Docker engine does not answer' engine_answers
}
mounts() { cut -d ' ' -f 2 /proc/self/mounts | sort; }
end_engine() {
  if was_started engine; then
    end engine
    # One that was killed leaves what it had mounted, and the next one does not unmount it.
    comm -13 "$run/mounts" <(mounts) | grep -E '^/(var/lib|run)/docker(/|$)' | sort -r | xargs -r umount
  fi
  if [ -e "$run/engine.unit" ]; then
    systemctl stop docker.socket docker
    rm -f "$run/engine.unit"
  fi
}
make_image() {
  say 'building the example image out of busybox-static'
  local root=$run/image
  rm -rf "$root"
  mkdir -p "$root/bin" "$root/www" "$root/etc" "$root/tmp"
  cp "$(command -v busybox)" "$root/bin/busybox"
  for applet in httpd sh ls cat ps kill sleep; do ln -s busybox "$root/bin/$applet"; done
  say 'root:x:0:0::/:/bin/sh' >"$root/etc/passwd"
  say '<h1>It works: a static pod on Docker</h1>' >"$root/www/index.html"
  tar -C "$root" -c . | api POST "/images/create?fromSrc=-&repo=$image&tag=1&changes=ENV%20PATH=/bin" \
    -H 'Content-Type: application/x-tar' --data-binary @- >/dev/null
  rm -rf "$root"
}

# === the node ===

start_shim() {
  rm -f "$socket"
  start dockershim "$bin/dockershim" --container-runtime-endpoint "unix://$socket" \
    --docker-endpoint "unix://$docker" --network-plugin docker --root-directory "$run/dockershim"
  await 30 'dockershim does not listen' test -S "$socket"
}
start_kubelet() {
  cat >"$run/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$socket
staticPodPath: $manifests
podLogsDir: $run/pods
Y
  start kubelet "$bin/kubelet" --config "$run/kubelet.yaml" --root-dir "$run/kubelet"
}
all_run() {
  local name
  for name in engine dockershim kubelet; do
    if was_started "$name" && has_ended "$name"; then
      fail "$name ended: $(tail -3 "$run/$name.log")"
    fi
  done
}
serves() {
  all_run
  curl -fs --max-time 2 "$url" >/dev/null
}
nothing_left() {
  [ "$(api GET '/containers/json?all=1' -G --data-urlencode 'filters={"label":["io.kubernetes.docker.type"]}')" = '[]' ] &&
    ! grep -qF " $run/" /proc/self/mounts
}

# Has the kubelet end its pods, and ends everything after that. What was killed is started
# again for it: nothing else knows what there is to remove.
# shellcheck disable=SC2317 # called by a trap
stop() {
  # Nobody may be there to read a word of it any more, and it is not told twice.
  set +e
  trap - EXIT
  trap : INT TERM HUP PIPE
  say ''
  say 'stopping'
  rm -f "$manifests"/*
  if was_started kubelet; then
    runs engine || start_engine
    runs dockershim || start_shim
    runs kubelet || start_kubelet
    await 60 'some pods do not end' nothing_left
  fi
  end kubelet
  end dockershim
  api DELETE "/images/$image:1?force=1" >/dev/null 2>&1
  end_engine
  rm -f "$run/unfinished"
}

session() {
  trap stop EXIT
  trap 'exit 0' INT TERM HUP PIPE
  rm -rf "$manifests" "$run"/*.pid "$run"/*.log
  mkdir -p "$manifests"
  mounts >"$run/mounts"
  : >"$run/unfinished"
  start_engine
  make_image
  say 'starting dockershim and kubelet'
  start_shim
  start_kubelet
  cp deploy/manifests/web.yaml "$manifests/web.yaml"
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
  # It ends when nobody reads any more what this script writes.
  tied tail -f /dev/null &
  wait -n || true
  all_run
}

# After a session that was killed. What it started has been told to end.
recover() {
  trap stop EXIT
  trap : INT TERM HUP PIPE
  local name
  for name in kubelet dockershim engine; do
    if was_started "$name"; then await 60 "$name does not end" has_ended "$name"; fi
  done
}

# === the process that was called ===

within() { # session or recover
  tied setsid "$BASH" deploy/run.sh "$1" &
  local session=$! code=0
  # shellcheck disable=SC2064 # this session
  trap "kill $session 2>/dev/null" INT TERM HUP
  while kill -0 "$session" 2>/dev/null; do
    code=0
    wait "$session" || code=$?
  done
  return "$code"
}

case ${1:-} in
session) session ;;
recover) recover ;;
*)
  [ "$(id -u)" -eq 0 ] || fail 'root is needed, as for every kubelet'
  deploy/install.sh engine
  mkdir -p "$run"
  code=0
  within session || code=$?
  if [ -e "$run/unfinished" ]; then
    within recover || true
  fi
  exit "$code"
  ;;
esac
