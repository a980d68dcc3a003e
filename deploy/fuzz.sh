#!/usr/bin/env bash
# Runs all fuzz targets of tests/fuzz, or the named ones, in sequence. No crate here has unsafe
# code, so the targets detect panics, hangs and unbounded memory use. They need no sanitizer, which
# would make them several times slower, and no nightly compiler.
# FUZZ_DEV=1 uses the build of the tests, which is ready sooner, and runs all targets at once: they
# try far fewer inputs, and an input may take longer before it counts as a hang.
# usage: fuzz.sh <seconds> [<target>...]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift
profile=fuzz built=$PWD/target/fuzz timeout=10
[ -z "${FUZZ_DEV:-}" ] || profile=dev built=$PWD/target/debug timeout=60

targets=("$@")
[ ${#targets[@]} -gt 0 ] || for each in tests/fuzz/fuzz_targets/*.rs; do
  targets+=("$(basename "$each" .rs)")
done
RUSTC_WORKSPACE_WRAPPER=$PWD/deploy/fuzz-rustc.sh \
  cargo build --workspace --features fuzz/libfuzzer "${targets[@]/#/--bin=}" --profile "$profile"

cd tests/fuzz
fuzz() { # target; replaces the shell
  mkdir -p "corpus/$1" "artifacts/$1"
  local corpora=("corpus/$1")
  [ ! -d "seeds/$1" ] || corpora+=("seeds/$1")
  echo "fuzzing $1 for $seconds s"
  exec "$built/$1" -artifact_prefix="artifacts/$1/" -max_total_time="$seconds" \
    -rss_limit_mb=4096 -timeout="$timeout" -print_final_stats=1 "${corpora[@]}"
}
if [ -z "${FUZZ_DEV:-}" ]; then
  for target in "${targets[@]}"; do (fuzz "$target"); done
  exit
fi
dir=$(mktemp -d)
jobs=()
finish() {
  kill "${jobs[@]}" 2>/dev/null || true
  rm -rf "$dir"
}
trap finish EXIT
for target in "${targets[@]}"; do
  fuzz "$target" >"$dir/$target" 2>&1 &
  jobs+=("$!")
done
status=0
for each in "${!targets[@]}"; do
  wait "${jobs[each]}" || status=$?
  cat "$dir/${targets[each]}"
done
jobs=()
exit "$status"
