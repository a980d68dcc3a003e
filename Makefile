# The two commands are `make run` and `make test`; each installs what it needs
# on a fresh Debian machine that has cargo and root.

.PHONY: build run test lint deny bench fuzz clean

build:
	deploy/install.sh build
	cargo build --release --bins

# Both binaries on an engine, with an example pod, until Ctrl-C.
run: build
	@exec setpriv --pdeathsig TERM -- deploy/run.sh

# Every test, those on a real engine included; the last lines tell what was left out.
test:
	deploy/install.sh build engine tests
	cargo build --workspace --bins
	deploy/test.sh cargo test --workspace --no-fail-fast

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

# Licences, sources and bans; advisories need the network.
deny:
	cargo deny check bans licenses sources

# The figures of the README, measured on this machine.
bench: build
	deploy/install.sh build engine tests
	cargo bench --workspace --bench figures --bench streams --bench logs

# What strangers, images, the engine, plugins and files of others may say, for FUZZ_SECONDS
# each target. A target's findings are below its crate's fuzz/artifacts.
FUZZ_SECONDS ?= 60
fuzz:
	deploy/install.sh build fuzz
	deploy/fuzz.sh $(FUZZ_SECONDS)

clean:
	cargo clean
	rm -rf .run
