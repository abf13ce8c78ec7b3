# Two commands do everything on a fresh Debian or Ubuntu machine with a Rust toolchain and root:
#   make up      install what is missing, build quickly (profile `up` of Cargo.toml), run a cluster
#   make test    install what the tests need, run all of them
# `make build` makes the release, `make package` packages of it in target/package.
# `make demo` shows the guestbook on a cluster of its own.
# `make soak` runs the random and crash suites with their full counts, `make bench` measures.

SHELL    := /bin/bash
# Under sudo, the toolchain is that of the user behind it.
ifneq ($(SUDO_USER),)
BEHIND   := $(shell getent passwd $(SUDO_USER) | cut -d: -f6)
ifneq ($(wildcard $(BEHIND)/.cargo/bin/cargo),)
export PATH := $(PATH):$(BEHIND)/.cargo/bin
export RUSTUP_HOME ?= $(BEHIND)/.rustup
export CARGO_HOME ?= $(BEHIND)/.cargo
endif
endif
TARGET   ?= $(or $(CARGO_TARGET_DIR),target)
HOST     := $(shell rustc -vV | sed -n 's/^host: //p')
RELEASE  := $(TARGET)/$(HOST)/release/mainstay
QUICK    := $(TARGET)/$(HOST)/up/mainstay
ARM64    := aarch64-unknown-linux-gnu
DEBUG    := $(TARGET)/$(HOST)/debug/mainstay
NEXTEST  := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)

# Tests that found nothing to compare with write their names here; the run ends with the list.
SKIPPED  := $(abspath $(TARGET))/skipped-tests
export MAINSTAY_SKIPPED_TESTS := $(SKIPPED)
REPORT_SKIPPED = code=$$?; if [ -s $(SKIPPED) ]; then echo 'Skipped, because ../shared/kubernetes is not there:'; \
	sort -u $(SKIPPED) | sed 's/^/  /'; fi; exit $$code

.PHONY: up demo quick build package test lint unit e2e soak fuzz bench clean

up: quick
	@if [ "$$(id -u)" -eq 0 ]; then exec $(QUICK) up; else echo 'A node needs root: sudo $(QUICK) up'; exec sudo $(QUICK) up; fi

# The cluster's files are root's.
demo: quick
	@if [ "$$(id -u)" -eq 0 ]; then exec env MAINSTAY=$(abspath $(QUICK)) scripts/demo; else exec sudo env MAINSTAY=$(abspath $(QUICK)) scripts/demo; fi

quick:
	@scripts/install-packages run
	cargo build --profile up --package mainstay

build:
	@scripts/install-packages run
	cargo build --release --package mainstay

# Tarball, Debian package, OCI image and checksums, for this machine and, where a cross linker is there, for arm64.
# jemalloc does not start where pages are larger than those it was built for: arm64 kernels have up to 64 KiB (2^16).
package: export AARCH64_UNKNOWN_LINUX_GNU_JEMALLOC_SYS_WITH_LG_PAGE := 16
package: build
	rm -rf $(TARGET)/package
	cargo xtask package $(RELEASE) $(TARGET)/package
	@if [ $(HOST) != $(ARM64) ] && command -v aarch64-linux-gnu-gcc >/dev/null && rustup target list --installed 2>/dev/null | grep -qx $(ARM64); then \
	  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc \
	    cargo build --release --package mainstay --target $(ARM64) && \
	  MAINSTAY_HOST_BINARY=$(abspath $(RELEASE)) cargo xtask package $(TARGET)/$(ARM64)/release/mainstay $(TARGET)/package; \
	else echo 'arm64 packages are not made here: they need gcc-aarch64-linux-gnu and rustup target add $(ARM64)'; fi

test: lint unit e2e

lint:
	@scripts/install-packages test
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- --deny warnings
	cargo xtask tidy
	@if cargo deny --version >/dev/null 2>&1; then cargo deny check; \
	else echo 'cargo-deny is not installed: licences and advisories are not checked'; fi

unit:
	@scripts/install-packages test
	@rm -f $(SKIPPED)
ifeq ($(NEXTEST),yes)
	cargo nextest run --workspace --exclude e2e; $(REPORT_SKIPPED)
else
	cargo test --workspace --exclude e2e; $(REPORT_SKIPPED)
endif

# The end-to-end tests drive the built binary from outside.
e2e:
	@scripts/install-packages test
	cargo build --package mainstay
ifeq ($(NEXTEST),yes)
	MAINSTAY_BIN=$(abspath $(DEBUG)) cargo nextest run --package e2e --no-fail-fast
else
	MAINSTAY_BIN=$(abspath $(DEBUG)) cargo test --package e2e --no-fail-fast -- --test-threads 1
endif

soak: export MAINSTAY_SOAK = 1
soak: export NEXTEST_PROFILE = soak
soak: unit e2e

# Random inputs for one reader of requests, without end: make fuzz TARGET=yaml
fuzz:
	cargo run --release --package fuzz -- $(TARGET)

# The benches that need no arguments, one after another; BENCH=store runs one of them. benches/*/ say what each measures
# and needs, also `network` and `controllers`.
BENCH ?= machinery store scheduler apiserver runtime storage pods
bench:
	@for bench in $(BENCH); do echo "== $$bench"; cargo run --release --package bench-$$bench -- $$([ $$bench = apiserver ] && echo alone) || exit 1; done

clean:
	cargo clean
