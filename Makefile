# Two commands do everything on a fresh Debian or Ubuntu machine with a Rust toolchain and root:
#   make up      install what is missing, build, run a cluster
#   make test    install what the tests need, run all of them
# `make demo` shows the guestbook on a cluster of its own.
# `make soak` runs the random and crash suites with their full counts, `make bench` measures.

SHELL    := /bin/bash
TARGET   ?= $(or $(CARGO_TARGET_DIR),target)
HOST     := $(shell rustc -vV | sed -n 's/^host: //p')
RELEASE  := $(TARGET)/$(HOST)/release/mainstay
DEBUG    := $(TARGET)/$(HOST)/debug/mainstay
NEXTEST  := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)

# Tests that found nothing to compare with write their names here; the run ends with the list.
SKIPPED  := $(abspath $(TARGET))/skipped-tests
export MAINSTAY_SKIPPED_TESTS := $(SKIPPED)
REPORT_SKIPPED = code=$$?; if [ -s $(SKIPPED) ]; then echo 'Skipped, because ../shared/kubernetes is not there:'; \
	sort -u $(SKIPPED) | sed 's/^/  /'; fi; exit $$code

.PHONY: up demo build test lint unit e2e soak fuzz bench clean

up: build
	$(RELEASE) up

demo: build
	@MAINSTAY=$(abspath $(RELEASE)) scripts/demo

build:
	@scripts/install-packages run
	cargo build --release --package mainstay

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

# All benches, one after another; BENCH=store runs one of them. benches/*/ say what each measures and needs.
BENCH ?= machinery store scheduler apiserver runtime
bench:
	@for bench in $(BENCH); do echo "== $$bench"; cargo run --release --package bench-$$bench -- $$([ $$bench = apiserver ] && echo alone) || exit 1; done

clean:
	cargo clean
