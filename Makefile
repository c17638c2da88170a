# Two commands: `make demo` and `make test`. Needs Python 3.11 and g++; everything else comes from PyPI into .venv.
PYTHON ?= python3.11
VENV   := .venv
PY     := $(VENV)/bin/python
DEPS   := $(VENV)/.stamp-deps
BUILD  := $(VENV)/.stamp-build
TESTS  := $(VENV)/.stamp-test-deps
CSRC   := $(wildcard $(foreach d,csrc driver drivers,lazy_backend/$(d)/*.cpp lazy_backend/$(d)/*.h))

.PHONY: help build demo test test-full conform bench lint clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(PY):
	$(PYTHON) -m venv $(VENV)

# The C++ part is built against the installed torch, hence without pip's build isolation and in two steps.
$(DEPS): pyproject.toml | $(PY)
	@echo "== dependencies (downloads once, a few hundred MB at most with a CPU-only torch)"
	$(PY) -m pip install --disable-pip-version-check "setuptools>=77" wheel ninja numpy torch==2.13.0
	$(PY) -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	  print('\n'.join(p['dependencies'] + p['optional-dependencies']['demo']))" > $(VENV)/requirements.txt
	$(PY) -m pip install --disable-pip-version-check -r $(VENV)/requirements.txt
	@touch $@

# What only the tests need: PyTorch's clients are most of it.
$(TESTS): pyproject.toml | $(DEPS)
	@echo "== what the tests use"
	$(PY) -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	  print('\n'.join(sum(p['optional-dependencies'].values(), [])))" > $(VENV)/test-requirements.txt
	$(PY) -m pip install --disable-pip-version-check -r $(VENV)/test-requirements.txt
	@touch $@

$(BUILD): $(DEPS) setup.py examples/port_hostc/pyproject.toml $(CSRC)
	@echo "== the C++ part (one to four minutes on two cores)"
	$(PY) -m pip install --disable-pip-version-check --no-build-isolation --no-deps --verbose --editable .
	$(PY) -m pip install --disable-pip-version-check --no-build-isolation --no-deps --editable examples/port_hostc
	$(PY) -m compileall -q lazy_backend ops_core codegen device_sim  # pip does not, for a package that may be edited
	@touch $@

build: $(BUILD)  ## virtual environment and C++ part

demo: $(BUILD)  ## three training and simulation scripts, on cpu and on lazy side by side
	$(PY) examples/run_demo.py

# Two processes for each folder, one pair for the small ones: drivers of several kinds and thousands of kernels do not
# share one for half an hour, and a compiler of kernels uses one core (everything on two cores of a Zen 3: 69 minutes in
# one process, 33 in two).
# The last one passes tests everywhere; the other OpenCL runtime's are all skipped on a processor that it does not know.
SMALL  := $(addprefix tests/,archive/ models/ reports/ threads/ traps/)
SUITES := $(filter-out $(SMALL),$(sort $(dir $(wildcard tests/*/test_*.py))))
# What runs once more in windows of one op and of eight, and on the other OpenCL runtime for CPUs (test-full: all of it).
# `make test` takes a part for windows of eight and for the other runtime, without the numbers of each op, which windows
# of one op and codegen/test_mathlib.py compare: with all of it one process took 45 minutes, not 34.
# test_results.py is about what is known before any window runs.
SHORT  := $(filter-out %/test_results.py,$(wildcard tests/semantics/test_*.py))
# One op of these is several kernels already, at every window the same ones, and compiling them takes minutes. The tests
# of bands open windows of 1, 8 and 512 themselves.
LONG   := %/test_fourier.py %/test_factorisations.py %/test_recurrence.py %/test_grids.py
EIGHT  := $(addprefix tests/semantics/test_,chains.py indexing.py inplace.py views.py)
# With the CPU saying what a GPU would (LAZY_OPENCL_AS): schedules for GPUs, memory that the host does not see.
# Of recurrent layers what differs there.
WALKS  := $(addprefix tests/semantics/test_recurrence.py::test_,sizes_that_tiles_do_not_divide launches_do_not_grow_with_the_sequence)
GPU    := tests/properties/test_places.py $(EIGHT) $(addprefix tests/semantics/test_,factorisations.py grouped_products.py parts.py) $(WALKS) tests/integration/test_attention.py
POCL   := tests/semantics/test_inplace.py
# worksteal: a worker that is done takes half of what the other has left, whose tests may take minutes each.
PYTEST := $(PY) -m pytest -n 2 --dist worksteal
each = @failed=0; $(PYTEST) $(1) $(SMALL) || failed=1; \
  for suite in $(SUITES); do $(PYTEST) $(1) $$suite || failed=1; done; \
  LAZY_OPENCL_PLATFORM=pocl $(PYTEST) $(1) tests/traps $(4) || failed=1; \
  LAZY_OPENCL_AS=gpu $(PYTEST) $(1) $(GPU) || failed=1; \
  $(PYTEST) $(1) --window 1 $(2) || failed=1; \
  $(PYTEST) $(1) --window 8 $(3) || failed=1; exit $$failed

test: $(BUILD) $(TESTS)  ## the test suite
	$(call each,-m "not slow",$(filter-out $(LONG),$(SHORT)),$(EIGHT),$(POCL))

test-full: $(BUILD) $(TESTS)  ## the test suite with the slow tests
	$(call each,,$(SHORT),$(SHORT),$(SHORT))

conform: $(BUILD) $(TESTS)  ## PyTorch's op, module and optimizer samples on the device (hours), and docs/op-coverage.md
	-$(PY) -m lazy_backend conform
	$(PY) -m lazy_backend coverage --results out/conformance.jsonl --update

bench: $(BUILD)  ## eager CPU, pooled eager CPU, torch.compile and lazy, interleaved
	$(PY) -m benchmarks

lint: $(BUILD) $(TESTS)  ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

clean:  ## build outputs, not the environment
	rm -rf build out lazy_backend/*.so *.egg-info $(BUILD)
