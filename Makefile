# Everything a developer or a newcomer runs. `make demo` and `make test` set up what they need themselves.
SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
JOBS ?= 2
FUZZ_SECONDS ?= 15
PY := .venv/bin/python

.PHONY: demo test test-native test-python lint format native bench clean setup help

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup:
	@scripts/setup

demo: setup ## the whole rollout, A to B and back, on the embedded lab
	@export DSV41_LAB_ROOT="$(CURDIR)/build/lab" DSV41_STATE_DIR="$(CURDIR)/build/state" DSV41_NATIVE_BUILD="$(CURDIR)/build/native"
	exec .venv/bin/dsv41ctl --cluster configs/lab.toml --yes lab demo --summary build/demo.json

test: lint test-native test-python ## everything CI runs

native: setup ## the native binaries, into build/native
	@cmake -S native -B build/native -G Ninja -DCMAKE_BUILD_TYPE=Release --log-level=WARNING
	ninja -C build/native -j$(JOBS) --quiet

test-native: native ## native tests: release, ASan+UBSan, TSan, and a short fuzz of the parsers
	@ctest --test-dir build/native --output-on-failure --no-tests=error
	for kind in address thread; do
		cmake -S native -B build/native-$$kind -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" -DOFL_SANITIZE=$$kind --log-level=WARNING
		ninja -C build/native-$$kind -j$(JOBS) --quiet
		ctest --test-dir build/native-$$kind --output-on-failure --no-tests=error
	done
	cmake -S native -B build/native-fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" -DOFL_FUZZ=ON --log-level=WARNING
	ninja -C build/native-fuzz -j$(JOBS) --quiet
	mkdir -p build/fuzz-corpus
	for target in build/native-fuzz/fuzz_*; do
		[[ -x $$target && ! -d $$target ]] || continue
		$$target -max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_final_stats=1 build/fuzz-corpus 2>&1 | grep -E 'number_of_executed|ERROR|SUMMARY'
	done

test-python: native ## unit, reader, lab and end-to-end tests
	@$(PY) -m pytest

lint: setup ## ruff, mypy --strict, clang-format
	@$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	git ls-files --cached --others --exclude-standard 'native/*.h' 'native/*.cpp' | xargs .venv/bin/clang-format --dry-run -Werror

format: setup ## formats everything in place
	@$(PY) -m ruff format .
	$(PY) -m ruff check --fix .
	git ls-files --cached --others --exclude-standard 'native/*.h' 'native/*.cpp' | xargs .venv/bin/clang-format -i

bench: native ## A against B on the lab, interleaved figures in build/bench
	@export DSV41_LAB_ROOT="$(CURDIR)/build/lab" DSV41_STATE_DIR="$(CURDIR)/build/state" DSV41_NATIVE_BUILD="$(CURDIR)/build/native"
	.venv/bin/dsv41ctl --cluster configs/lab.toml --yes lab bench --out build/bench

clean: ## removes build/ (not .venv); stops a lab that runs from it
	@if [[ -x .venv/bin/dsv41ctl && -d build/lab ]]; then
		DSV41_LAB_ROOT="$(CURDIR)/build/lab" .venv/bin/dsv41ctl --cluster configs/lab.toml --yes lab down || true
	fi
	rm -rf build
