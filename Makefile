# SPDX-License-Identifier: Apache-2.0
# Shortcuts for the CMake presets. On a fresh Debian or Ubuntu with a C compiler and make, `make report` and `make test`
# suffice: they say what is missing and install it (scripts/setup).
#
#   make            build/release: libraries and ./build/release/tessera
#   make report     verify, measure, and write report/report.html (FULL=1: all of it, under 15 minutes)
#   make test       every test; the last line is "N passed, N failed"
#   make check      the rules of the source tree; make format rewrites what clang-format would
#   make bench      the standard shapes of every operation, or of OP=softmax
#   make install    into PREFIX (/usr/local), or DESTDIR; make uninstall removes it from there
#   make deb        Debian packages, build/deb/packages/*.deb (DEBFULLNAME, DEBEMAIL: the maintainer)
#   make test-asan, make test-tsan    the C tests under the sanitizers
#   make fuzz       every fuzz target for MINUTES=1, or for RUNS=N executions (docs/fuzzing.md; needs clang)
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local
TESSERA = build/release/tessera

# Ninja if it is installed. An existing build folder keeps its generator.
CMAKE_GENERATOR ?= $(if $(shell command -v ninja),Ninja,Unix Makefiles)

.PHONY: all build setup report test check format bench install uninstall deb clean test-asan test-tsan fuzz
.NOTPARALLEL:

all: build

build: build-release

# Configures a new folder, and an existing one if setup has installed something since.
build-%:
	@command -v cmake >/dev/null || { echo "CMake is missing; type: make setup"; exit 1; }
	@test -f build/$*/CMakeCache.txt && ! test build/setup.stamp -nt build/$*/CMakeCache.txt || \
	    CMAKE_GENERATOR='$(CMAKE_GENERATOR)' cmake --preset $*
	@cmake --build build/$* --parallel $(JOBS) $(if $(TARGET),--target $(TARGET))

setup:
	@./scripts/setup

report:
	@./scripts/setup report
	@$(MAKE) --no-print-directory build TARGET=tool
	@test -x $(TESSERA) || { echo "make report: the tessera command needs libjansson-dev"; exit 1; }
	./$(TESSERA) report $(if $(FULL),,--quick) $(ARGS)

test: setup
	@$(MAKE) --no-print-directory build
	@./scripts/run_tests --build build/release -- $(ARGS)

check:
	@./scripts/check

format:
	@$$(command -v clang-format-14 || echo clang-format) -i $$(git ls-files '*.c' '*.h' '*.inc' '*.cu' '*.cuh')

bench: build
	@for op in $(or $(OP),$$(./$(TESSERA) bench --help | sed -n 's/^Operations: \(.*\)\./\1/p')); do \
	    ./$(TESSERA) bench $$op $(ARGS) || exit; \
	done

test-asan test-tsan: test-%: build-%
	@./scripts/run_tests --build build/$* --no-python

fuzz:
	@JOBS=$(JOBS) ./scripts/fuzz $(if $(MINUTES),--minutes $(MINUTES)) $(if $(RUNS),--runs $(RUNS)) $(ARGS)

install: build
	cmake --install build/release --prefix $(PREFIX)

uninstall:
	@./scripts/uninstall build/release $(PREFIX)

deb: build-deb
	@cpack --config build/deb/CPackConfig.cmake -B build/deb/packages >build/deb/packages.log || \
	    { cat build/deb/packages.log; exit 1; }
	@if command -v lintian >/dev/null; then lintian build/deb/packages/*.deb; fi
	@ls build/deb/packages/*.deb

clean:
	rm -rf build/release build/debug build/asan build/tsan build/deb build/fuzz
