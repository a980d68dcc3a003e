#!/usr/bin/env bash
# Runs the fuzz targets of tests/fuzz, or those named, one after the other. No crate here has unsafe
# code: a target looks for panics, hangs and memory without end, so it needs no sanitizer, which
# would make it several times slower, nor a nightly compiler.
# With FUZZ_DEV=1 they are made of the tests' own build: sooner there, and slower by far.
# usage: fuzz.sh <seconds> [<target>...]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift
profile=fuzz built=$PWD/target/fuzz
[ -z "${FUZZ_DEV:-}" ] || profile=dev built=$PWD/target/debug

targets=("$@")
[ ${#targets[@]} -gt 0 ] || for each in tests/fuzz/fuzz_targets/*.rs; do
  targets+=("$(basename "$each" .rs)")
done
RUSTC_WORKSPACE_WRAPPER=$PWD/deploy/fuzz-rustc.sh \
  cargo build --workspace --features fuzz/libfuzzer "${targets[@]/#/--bin=}" --profile "$profile"

cd tests/fuzz
for target in "${targets[@]}"; do
  mkdir -p "corpus/$target" "artifacts/$target"
  corpora=("corpus/$target")
  [ ! -d "seeds/$target" ] || corpora+=("seeds/$target")
  echo "fuzzing $target for $seconds s"
  "$built/$target" -artifact_prefix="artifacts/$target/" -max_total_time="$seconds" \
    -rss_limit_mb=4096 -timeout=10 -print_final_stats=1 "${corpora[@]}"
done
