#!/usr/bin/env bash
# What cargo calls for the crates of this workspace in place of the compiler when fuzz targets are
# built: the compiler with the coverage that libFuzzer is guided by. The generic code of libraries
# is compiled into ours, so their own part is left as it is, and shared with other builds.
# usage: fuzz-rustc.sh RUSTC ARGUMENT...
case " $* " in
# Does not link with libFuzzer.
*" --crate-name build_script_build "*) ;;
*)
  set -- "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
  ;;
esac
exec "$@"
