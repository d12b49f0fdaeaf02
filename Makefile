# make bench            set up and run the main job
# make test             set up and run all tests              make test-fast   those that start no process
# make lint types       ruff, mypy; make format mends layout  make test-gpu    those that need a GPU
# make docs             build the documentation site: build/site/index.html
# make verify-gpu       our clocks beside NVBench's           make verify-cpu  beside plain loops
# make verify-verdicts  how often an interval holds the truth, on pairs of equal configurations
# make verify-gate      how often --against calls a model slower: itself, and one with a known share more work
# make test-tensorrt    TensorRT 8.5's names and flags, and the command line, in a Python 3.10 of its own
# make bench-tables     compare and report over 100,000 cases
# make soak             faults and kills, 25 times as many as the tests try; SOAK=N for another size
# make lock             resolve requirements.lock again, within constraints.txt; needs uv
#
# RUN=python3 runs a target with a Python that has everything installed.

unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
# Four on two cores, too, and keep them busy: tests often wait for a process. Those of a GPU run one by one.
PARALLEL := -n 4 --dist loadfile --no-loadscope-reorder
VENV := .venv
RUN ?= $(VENV)/bin/python
SOAK ?= 25
HERE := PYTHONPATH=.:benchmarks:$$PYTHONPATH $(RUN)

ifeq ($(RUN),$(VENV)/bin/python)
BENCH_READY := $(VENV)/.ready-bench
TEST_READY := $(VENV)/.ready-test
VERIFY_READY := $(VENV)/.ready-verify
endif

.PHONY: bench test test-fast test-gpu test-tensorrt lint format types docs soak verify-verdicts verify-gate bench-tables verify-cpu verify-gpu lock

bench: $(BENCH_READY)
	$(RUN) -m profiler bench.yaml

test: $(TEST_READY)
	$(RUN) -m pytest $(PARALLEL) -m "not gpu"
	@if nvidia-smi -L >/dev/null 2>&1; then $(RUN) -m pytest -m gpu; fi

test-fast: $(TEST_READY)
	$(RUN) -m pytest $(PARALLEL) --fast

test-gpu: $(TEST_READY)
	$(RUN) -m pytest -m gpu --require-gpu

test-tensorrt: $(VENV)-tensorrt/.ready # without a GPU
	$(VENV)-tensorrt/bin/python -m pytest tests/engines/test_tensorrt_8_5.py tests/profiler/test_cli.py

lint: $(TEST_READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

format: $(TEST_READY)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

types: $(TEST_READY)
	$(RUN) -m mypy

docs: $(TEST_READY)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

# About an hour on two cores; its table is in build/soak.md, too.
soak: $(TEST_READY)
	PROFILER_SOAK=$(SOAK) $(RUN) -m pytest -n 4 --dist worksteal tests/robustness

verify-verdicts: $(BENCH_READY) # 20 minutes, on a machine that does nothing else
	$(HERE) benchmarks/verdicts.py

verify-gate: $(BENCH_READY) # an hour and a half, on a machine that does nothing else
	$(HERE) benchmarks/gate.py --within 1m

bench-tables: $(BENCH_READY)
	$(HERE) benchmarks/tables.py

verify-cpu: $(TEST_READY) # 3 minutes, on a machine that does nothing else
	$(HERE) benchmarks/verify_cpu.py

verify-gpu: $(VERIFY_READY) # 10 minutes on an H200
	$(HERE) benchmarks/verify_gpu.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# 2 GB of downloads, and the last Python that TensorRT 8.5 has bindings for.
$(VENV)-tensorrt/.ready: pyproject.toml constraints.txt
	python3.10 -m venv $(VENV)-tensorrt
	$(VENV)-tensorrt/bin/python -m pip install --quiet -c constraints.txt --editable '.[test,tensorrt]'
	touch $@

lock:
	( echo "# What make bench, make test and make verify-gpu install, in every Python; make lock writes it."; \
	  uv pip compile --universal --python-version 3.10 -c constraints.txt --no-annotate --no-header --quiet \
	    $(foreach extra,test docs openvino ray tensorrt-rtx verify,--extra $(extra)) pyproject.toml ) > requirements.new
	mv requirements.new requirements.lock

# TensorRT's libraries come from NVIDIA's own servers: where that fails, the job runs without.
$(VENV)/.ready-bench: pyproject.toml requirements.lock | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -c requirements.lock --editable .
	@if nvidia-smi -L >/dev/null 2>&1; then \
	  echo "Installing TensorRT, several GB; its log: $(VENV)/tensorrt.log"; \
	  $(VENV)/bin/python -m pip install -c constraints.txt --editable '.[tensorrt]' >$(VENV)/tensorrt.log 2>&1 \
	  || echo "TensorRT could not be installed: its rows will be unsupported; to try again: rm $@ && make bench"; \
	fi
	touch $@

$(VENV)/.ready-test: EXTRAS = [test,docs,openvino,ray,tensorrt-rtx]
$(VENV)/.ready-verify: EXTRAS = [verify]
$(VENV)/.ready-test $(VENV)/.ready-verify: pyproject.toml requirements.lock | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -c requirements.lock --editable '.$(EXTRAS)'
	touch $@
