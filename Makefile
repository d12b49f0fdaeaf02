# make bench   set up and run the main job          make test       set up and run all tests
# make lint types                                   make test-gpu   the tests that need a GPU
#
# RUN is the Python that has everything installed; give it to use one of your own: make test-gpu RUN=python3

PYTHON ?= python3
VENV := .venv
RUN ?= $(VENV)/bin/python
BENCH_READY := $(VENV)/.ready-bench
TEST_READY := $(VENV)/.ready-test

ifneq ($(RUN),$(VENV)/bin/python)
BENCH_READY :=
TEST_READY :=
endif

.PHONY: bench test test-gpu lint types bench-overhead

bench: $(BENCH_READY)
	$(RUN) -m profiler bench.yaml

test: $(TEST_READY)
	$(RUN) -m pytest

test-gpu: $(TEST_READY)
	$(RUN) -m pytest -m gpu --require-gpu

lint: $(TEST_READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(TEST_READY)
	$(RUN) -m mypy

bench-overhead: $(BENCH_READY)
	PYTHONPATH=.:$$PYTHONPATH $(RUN) benchmarks/overhead.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-bench: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.ready-test: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --editable '.[test,openvino]'
	touch $@ $(VENV)/.ready-bench
