# The main commands are `make run` and `make test`. Each installs its dependencies on a fresh Debian
# machine; both need cargo and root.

.PHONY: build run run-once test slow lint deny units bench bench-once soak fuzz mutants critest clean

# Names the two crates: with the whole workspace, the binaries would have the features that tests need.
# The kubelet has by far more code, and its calls wait for others: it is made smaller at the cost of
# speed, and so is its HTTP, which carries little. Mixed levels of its own crates make it larger.
SMALL ?= --config 'profile.release.opt-level="z"' \
	--config 'profile.release.package.h2.opt-level="s"' \
	--config 'profile.release.package.hyper.opt-level="s"'
# lld keeps one of several identical functions, and packs the addresses that are relocated at start,
# which glibc can read since 2.36. Other linkers do not know the options.
LLD = -C link-arg=-Wl,--icf=all -C link-arg=-Wl,-z,pack-relative-relocs
PACK = $$(dir=$$(mktemp -d); echo 'fn main() {}' | rustc - -o $$dir/linked $(LLD) 2>/dev/null \
	&& $$dir/linked && echo '$(LLD)'; rm -r $$dir)
build:
	deploy/install.sh build
	cargo rustc --release -p dockershim --bin dockershim -- $(PACK)
	cargo rustc --release -p kubelet --bin kubelet $(SMALL) -- $(PACK)

# Runs both binaries on an engine, with an example pod, until Ctrl-C.
run: build
	@exec setpriv --pdeathsig TERM -- deploy/run.sh

# Runs the same until the example pod responds.
run-once: build
	@ONCE=1 exec setpriv --pdeathsig TERM -- deploy/run.sh

# Runs all tests, including those on a real engine; the last lines list skipped checks.
TEST = cargo test --workspace --no-fail-fast
test:
	deploy/install.sh build engine tests grpc
	cargo build --workspace --bins
	$(TEST) --no-run
	deploy/test.sh "$(TEST) --lib --bins --test '[!n]*'" "$(TEST) --test node" "$(TEST) --doc"

# Runs the tests of the node that `make test` leaves out, as they take minutes. One of them leaks
# memory until little is left: it runs on a machine of its own, with deploy/test-on.sh.
slow:
	deploy/install.sh build engine tests
	cargo build --workspace --bins
	cargo test --package e2e --test node -- --ignored --skip leaks_of_memory_and_disk --test-threads 4

# Checks format, lints, doc links, cycles between modules, unused dependencies, and indirect phrases
# in comments and docs.
CRATES = $(patsubst %/Cargo.toml,%,$(wildcard */Cargo.toml kubelet/*/Cargo.toml tests/*/Cargo.toml))
lint:
	deploy/install.sh lint
	cargo fmt --all --check
	python3 tests/lint/module_cycles.py $(CRATES)
	python3 tests/lint/unused_dependencies.py $(CRATES)
	python3 tests/lint/words.py README.md CONTRIBUTING.md CHANGELOG.md docs $(filter-out kubelet/% tests/%,$(CRATES))
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --document-private-items

# Checks licences, sources and bans, but not advisories, which need the network.
deny:
	deploy/install.sh build deny
	PATH="$(CURDIR)/target/tools/bin:$$PATH" cargo deny check --hide-inclusion-graph bans licenses sources

# Verifies the systemd units.
units: build
	deploy/install.sh units
	deploy/units.sh

# Measures the figures of README and docs/performance.md on this machine: median and spread of
# BENCH_RUNS runs.
BENCHES = --bench figures --bench pages --bench streams --bench logs
bench: build
	deploy/install.sh build engine tests
	cargo bench --workspace $(BENCHES)

# Runs pods under kills and faults, for SOAK_SECONDS per test.
SOAK_SECONDS ?= 3600
soak:
	deploy/install.sh build engine tests
	cargo build --workspace --bins
	E2E_SOAK_SECONDS=$(SOAK_SECONDS) cargo test --workspace --test soak -- --nocapture

# Checks that the benchmarks run: once, with the builds of the tests.
bench-once:
	deploy/install.sh build engine tests
	cargo build --workspace --bins
	BENCH_RUNS=1 BENCH_SCRAPES=1 cargo bench --profile dev --workspace $(BENCHES)

# Fuzzes the parsers of input from clients, images, the engine, plugins and files of others, for
# FUZZ_SECONDS per target. Findings are written below tests/fuzz/artifacts.
FUZZ_SECONDS ?= 60
fuzz:
	deploy/install.sh build fuzz
	deploy/fuzz.sh $(FUZZ_SECONDS)

# Finds changes to lines of the pure modules (.cargo/mutants.toml) that no unit test detects; takes
# hours. MUTANTS has further flags, such as `--file kubelet/api-client/src/tokens.rs` or
# `--shard 1/8`.
mutants:
	deploy/install.sh build mutants
	PATH="$(CURDIR)/target/tools/bin:$$PATH" cargo mutants --output target $(MUTANTS)

# Runs critest: CRITEST=/path/to/critest, CRITEST_FLAGS are passed to it, ENGINE is the engine's
# address. With a newer engine: deploy/engine-of.sh trixie deploy/critest.sh /path/to/critest
critest: build
	deploy/critest.sh $(CRITEST) $(CRITEST_FLAGS)

clean:
	cargo clean
	rm -rf .run
