#!/usr/bin/env bash
# The quick start: runs an engine, both binaries and an example pod until Ctrl-C.
# All state is in .run/ and in the engine, and is removed at the end, however the script ends.
#
# All processes run in a separate session (run.sh session) that gets neither Ctrl-C nor the hangup
# of the terminal. The session shuts down in order when the process that the user started gets a
# signal or is gone. If the session itself is killed, another one (run.sh recover) restarts the
# processes that are needed for the cleanup.
#
# BIN is the directory of the binaries, RUN the directory of the state. With ONCE, the script ends
# once the example pod responds.
set -euo pipefail
cd "$(dirname "$0")/.."

run=$(realpath -m "${RUN:-.run}")
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
await() { # seconds, error message, command
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      say "run.sh: $what (timeout); logs are in $run" >&2
      return 1
    fi
    sleep 0.2
  done
}

# === processes ===

# Becomes a command that gets SIGTERM when this script ends, even if the script has ended already.
tied() { # command
  # shellcheck disable=SC2016 # expanded by the inner shell
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
  await 60 "$1 did not exit" has_ended "$1" || kill -KILL "$(cat "$run/$1.pid")" 2>/dev/null
  rm -f "$run/$1.pid"
}

# === the engine ===

api() { # method, path, further arguments of curl
  local method=$1 path=$2
  shift 2
  curl -fsS --noproxy '*' --unix-socket "$docker" -X "$method" "$@" "http://docker$path"
}
engine_answers() { api GET /_ping >/dev/null 2>&1; }
# The containerd of a killed engine. A new engine would use it as its own.
containerd_has_ended() { ! kill -0 "$(cat /run/docker/containerd/containerd.pid)" 2>/dev/null; }
start_engine() {
  if engine_answers; then return; fi
  say 'starting a Docker engine'
  if [ -d /run/systemd/system ]; then
    : >"$run/engine.unit"
    systemctl start docker
  else
    await 20 'containerd did not exit' containerd_has_ended 2>/dev/null
    # An engine uses an existing bridge as it is. If it is up without its route, the machine reaches
    # no pod.
    if [ -n "$(ip link show up dev docker0 2>/dev/null)" ] && [ -z "$(ip -4 route show dev docker0)" ]; then
      ip link delete docker0
    fi
    if ! bridge; then : >"$run/bridge"; fi
    start engine dockerd
  fi
  await 60 'the Docker engine did not respond' engine_answers
}
bridge() { ip link show docker0 >/dev/null 2>&1; }
mounts() { cut -d ' ' -f 2 /proc/self/mounts | sort; }
end_engine() {
  if was_started engine; then
    end engine
    # A killed engine leaves its mounts, and the next engine does not unmount them.
    comm -13 "$run/mounts" <(mounts) | grep -E '^/(var/lib|run)/docker(/|$)' | sort -r | xargs -r umount
    if [ -e "$run/bridge" ]; then ip link delete docker0; fi
  fi
  if [ -e "$run/engine.unit" ]; then
    systemctl stop docker.socket docker
    rm -f "$run/engine.unit"
  fi
}
make_image() {
  say 'building the example image from busybox-static'
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
  await 30 'dockershim did not create its socket' test -S "$socket"
}
start_kubelet() {
  cat >"$run/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$socket
staticPodPath: $manifests
podLogsDir: $run/pods
# The machine may have a kubelet with pods of its own, whose cgroups have the same names.
cgroupsPerQOS: false
enforceNodeAllocatable: [none]
Y
  # The kernel's settings are left as the machine's other programs expect them.
  start kubelet "$bin/kubelet" --config "$run/kubelet.yaml" --root-dir "$run/kubelet" \
    --set-kernel-tunables=false
}
all_run() {
  local name
  for name in engine dockershim kubelet; do
    if was_started "$name" && has_ended "$name"; then
      fail "$name exited: $(tail -3 "$run/$name.log")"
    fi
  done
}
serves() {
  all_run
  curl -fsS --noproxy '*' --max-time 2 "$url" >/dev/null 2>"$run/request.log"
}
nothing_left() {
  [ "$(api GET '/containers/json?all=1' -G --data-urlencode 'filters={"label":["io.kubernetes.docker.type"]}')" = '[]' ] &&
    [ -z "$(grep -F " $run/" /proc/self/mounts | grep -vF " $run/kubelet ")" ]
}

# Lets the kubelet end its pods, then stops everything. Killed processes are restarted first, since
# only they can remove the pods.
# shellcheck disable=SC2317 # called by a trap
stop() {
  # Writes may fail because the reader of the output is gone, and further signals are ignored.
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
    await 60 'some pods did not end' nothing_left
  fi
  end kubelet
  # Mounted by the kubelet where mounts are not shared.
  if mountpoint -q "$run/kubelet"; then umount "$run/kubelet"; fi
  end dockershim
  api DELETE "/images/$image:1?force=1" >/dev/null 2>&1
  end_engine
  rm -f "$run/unfinished"
}

session() {
  trap stop EXIT
  trap 'exit 0' INT TERM HUP PIPE
  rm -rf "$manifests" "$run"/*.pid "$run"/*.log "$run/bridge"
  mkdir -p "$manifests"
  mounts >"$run/mounts"
  : >"$run/unfinished"
  start_engine
  make_image
  say 'starting dockershim and kubelet'
  start_shim
  start_kubelet
  cp deploy/manifests/web.yaml "$manifests/web.yaml"
  await 60 'the example pod did not respond' serves || fail "the last answer: $(cat "$run/request.log")"

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
  # Waits for a process to exit. `tail` ends when the reader of this script's output is gone.
  tied tail -f /dev/null &
  wait -n || true
  all_run
}

# Cleans up after a killed session, whose processes got SIGTERM.
recover() {
  trap stop EXIT
  trap : INT TERM HUP PIPE
  local name
  for name in kubelet dockershim engine; do
    if was_started "$name"; then await 60 "$name did not exit" has_ended "$name"; fi
  done
}

# === the process that the user starts ===

within() { # session or recover
  tied setsid "$BASH" deploy/run.sh "$1" &
  local session=$! code=0
  # shellcheck disable=SC2064 # expanded now, for this session
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
  [ "$(id -u)" -eq 0 ] || fail 'must run as root, like any kubelet'
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
