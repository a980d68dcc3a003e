#!/usr/bin/env bash
# Runs critest against the release build of dockershim on a running engine. Prints the row for the
# table in docs/conformance.md and the specs that failed. critest pulls its images.
# usage: critest.sh CRITEST [flags of critest, such as -registry-prefix]
# ENGINE is the address of the engine.
set -euo pipefail
cd "$(dirname "$0")/.."
critest=$1
shift
engine=${ENGINE:-unix:///var/run/docker.sock}
run=$(mktemp -d)
socket=unix://$run/cri.sock

api() { curl -fsS --unix-socket "${engine#unix://}" "http://docker$1"; }
field() { grep -o "\"$1\":\"[^\"]*\"" | head -n 1 | cut -d '"' -f 4; }

# Leaves the pods of failed specs behind.
end() {
  kill "$shim" 2>/dev/null && wait "$shim" || true
  rm -rf "$run"
}

target/release/dockershim --container-runtime-endpoint "$socket" --docker-endpoint "$engine" \
  --network-plugin docker --root-directory "$run/dockershim" >"$run/dockershim.log" 2>&1 &
shim=$!
trap end EXIT
for _ in $(seq 150); do
  [ ! -S "$run/cri.sock" ] || break
  kill -0 "$shim" || { cat "$run/dockershim.log" >&2; exit 1; }
  sleep 0.2
done

status=0
"$critest" -runtime-endpoint "$socket" -image-endpoint "$socket" --ginkgo.no-color "$@" \
  >"$run/critest.log" 2>&1 || status=$?
if ! grep -q '^Ran ' "$run/critest.log"; then
  tail -n 50 "$run/critest.log" "$run/dockershim.log" >&2
  exit 1
fi
ran=$(sed -n 's/^Ran \([0-9]*\) of .*/\1/p' "$run/critest.log")
passed=$(sed -n 's/.*-- \([0-9]*\) Passed.*/\1/p' "$run/critest.log")
echo "| engine | image store | run | passed |"
echo "| Docker $(api /version | field Version) | $(api /info | field Driver) | $ran | $passed |"
sed -n 's/^ *\[FAIL\] */failed: /p' "$run/critest.log" | sort -u
exit "$status"
