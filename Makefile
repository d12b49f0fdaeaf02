# make bench   set up and run the main job          make test       set up and run all tests
# make test-fast  those that start no process and import no torch: after each edit
# make lint types                                   make test-gpu   the tests that need a GPU
# make verify-gpu   our clocks next to NVBench's    make verify-cpu   our host clock next to plain loops
# make verify-verdicts   how often an interval of a ratio holds the truth, on pairs of equal configurations
# make bench-overhead   what a process costs each case
# make bench-tables   compare and report over 100,000 cases and 10 million samples
# make soak     faults, kills and odd files, 25 times as many as the tests try; SOAK=N for another size
#
# RUN is the Python that has everything installed; give it to use one of your own: make test-gpu RUN=python3

# What is compiled once is not compiled again by every process that a test starts.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
# On two cores, too: a third of the time the tests wait for a process. Those of a GPU measure, and run one by one.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder
VENV := .venv
RUN ?= $(VENV)/bin/python
BENCH_READY := $(VENV)/.ready-bench
TEST_READY := $(VENV)/.ready-test
VERIFY_READY := $(VENV)/.ready-verify

ifneq ($(RUN),$(VENV)/bin/python)
BENCH_READY :=
TEST_READY :=
VERIFY_READY :=
endif

.PHONY: bench test test-fast test-gpu lint types soak verify-verdicts bench-overhead bench-tables verify-cpu verify-gpu

bench: $(BENCH_READY)
	$(RUN) -m profiler bench.yaml

test: $(TEST_READY)
	$(RUN) -m pytest $(PARALLEL) -m "not gpu"
	@if nvidia-smi -L >/dev/null 2>&1; then $(RUN) -m pytest -m gpu; fi

test-fast: $(TEST_READY)
	$(RUN) -m pytest $(PARALLEL) --fast

test-gpu: $(TEST_READY)
	$(RUN) -m pytest -m gpu --require-gpu

# About an hour on two cores; the table at its end is in build/soak.md, too.
SOAK ?= 25
soak: $(TEST_READY)
	PROFILER_SOAK=$(SOAK) $(RUN) -m pytest -n 4 --dist worksteal tests/robustness

lint: $(TEST_READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(TEST_READY)
	$(RUN) -m mypy

# About 20 minutes, on a machine that does nothing else.
verify-verdicts: $(BENCH_READY)
	PYTHONPATH=.:$$PYTHONPATH $(RUN) benchmarks/verdicts.py

bench-overhead: $(BENCH_READY)
	PYTHONPATH=.:$$PYTHONPATH $(RUN) benchmarks/overhead.py

bench-tables: $(BENCH_READY)
	PYTHONPATH=.:$$PYTHONPATH $(RUN) benchmarks/tables.py

# The clocks beside NVBench, triton and torch.utils.benchmark; about 10 minutes on an H200.
# The host clock next to plain loops, torch's Timer and benchmark_app; about 3 minutes, on a machine that does nothing else.
verify-cpu: $(TEST_READY)
	PYTHONPATH=.:benchmarks:$$PYTHONPATH $(RUN) benchmarks/verify_cpu.py

verify-gpu: $(VERIFY_READY)
	PYTHONPATH=.:$$PYTHONPATH $(RUN) benchmarks/verify_gpu.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# TensorRT's libraries come from NVIDIA's own servers: where that fails, the job runs without.
$(VENV)/.ready-bench: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt --editable .
	@if nvidia-smi -L >/dev/null 2>&1; then \
	  echo "Installing TensorRT, several GB; its log: $(VENV)/tensorrt.log"; \
	  $(VENV)/bin/python -m pip install -c constraints.txt --editable '.[tensorrt]' >$(VENV)/tensorrt.log 2>&1 \
	  || echo "TensorRT could not be installed: its rows will be unsupported; to try again: rm $@ && make bench"; \
	fi
	touch $@

$(VENV)/.ready-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt --editable '.[test,openvino,ort-openvino,jax,tensorrt-rtx-build]'
	touch $@

$(VENV)/.ready-verify: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt --editable '.[verify]'
	touch $@
