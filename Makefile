# The commands people type; CMakePresets.json has what they mean. `make help` lists them.
#   TARN_TRAIN=OFF make build    only the runtime, without libtorch (never chosen silently)
#   TARN_SKIP_SETUP=1 make test  trust that everything scripts/setup installs is there
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
JOBS ?= $(shell nproc)
SECONDS := 600
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

# An empty TARN_TRAIN leaves the preset's choice: ON in release and debug.
TRAIN_FLAG := $(if $(TARN_TRAIN),-DTARN_TRAIN=$(TARN_TRAIN))
SOURCES = git ls-files -z -- 'src/*.h' 'src/*.cpp' 'tests/*.h' 'tests/*.cpp' 'bench/*.cpp'
CLANG_FORMAT := $(firstword $(shell command -v clang-format-14 clang-format) clang-format)
CLANG_TIDY := $(firstword $(shell command -v clang-tidy-14 clang-tidy) clang-tidy)

.PHONY: help setup build demo test test-debug test-asan test-tsan test-clang test-slow test-page kill-test \
        power-test fuzz fuzz-smoke bench bench-peers bench-compare lint format format-check clean

help:  ## this list
	@sed -nE 's/^([a-z -]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 52

setup:  ## install what is missing (apt packages, libtorch)
	@$(if $(TARN_SKIP_SETUP),echo 'setup: skipped (TARN_SKIP_SETUP is set)',./scripts/setup)

build: setup  ## build/release/tarn and build/release/tarn-train
	cmake --preset release $(TRAIN_FLAG)
	cmake --build --preset release

demo: setup  ## train, generate, compare, and write demo/report.html
	./scripts/demo

test: build  ## every test of label fast; the last line is "N passed, N failed"
	@./scripts/run_tests.py release --label fast --jobs $(JOBS)

test-slow: build  ## every test, long ones too
	@./scripts/run_tests.py release --jobs $(JOBS)

test-debug test-asan test-tsan test-clang: test-%:  ## the fast tests of another preset
	cmake --preset $* $(if $(filter debug,$*),$(TRAIN_FLAG))
	cmake --build --preset $*
	@./scripts/run_tests.py $* --label fast --jobs $(JOBS)

test-page: build  ## the page of `tarn serve` in Chromium; playwright goes into build/page-venv
	test -x build/page-venv/bin/python || python3 -m venv build/page-venv
	build/page-venv/bin/pip install --quiet playwright axe-playwright-python pillow
	python3 tests/e2e/test_page.py --source . --build build/release $(if $(SCREENSHOTS),--screenshots $(SCREENSHOTS))

kill-test: build  ## kill a process that saves sessions 500 times per store and count what is lost
	python3 tests/e2e/test_kill_slow.py --source . --build build/release

power-test: build  ## lose the power of a model of a disk at every moment of many runs of a store
	build/release/power_loss full $(SEED)

fuzz:  ## fuzz every target of tests/fuzz, SECONDS each (default 600)
	cmake --preset fuzz
	cmake --build --preset fuzz --target fuzzers
	@./scripts/fuzz build/fuzz $(SECONDS)

fuzz-smoke:  ## the same for 30 seconds each
	@$(MAKE) --no-print-directory fuzz SECONDS=30

bench: build  ## the benchmarks of `tarn bench`; results go to bench/results
	./scripts/bench

bench-peers: build  ## Tarn beside PyTorch and the paper's library; results go to bench/peers/results
	./scripts/bench_peers

bench-compare:  ## what the newest result has slower than the last committed one (ratios to the roof)
	./scripts/bench_compare

# clang-tidy reads the clang preset's commands; what needs libtorch is not among them.
lint: format-check  ## format, clang-tidy, the architecture tests
	cmake --preset clang
	python3 -c 'import json; print(*{e["file"] for e in json.load(open("build/clang/compile_commands.json"))}, sep="\n")' | \
	  grep '/src/' | sort | xargs -P $(JOBS) -n1 $(CLANG_TIDY) --quiet -p build/clang
	for test in layers one_line_per_mixer sizes; do python3 tests/arch/test_$$test.py --source . --build build/clang; done

format:  ## rewrite all C++ sources with clang-format
	$(SOURCES) | xargs -0 $(CLANG_FORMAT) -i

format-check:  ## fail if clang-format would change anything
	$(SOURCES) | xargs -0 $(CLANG_FORMAT) --dry-run --Werror

clean:  ## remove build/ (keeps .venv)
	rm -rf build
