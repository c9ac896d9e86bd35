# Needs Python 3.11 or newer, make and pip; everything else is installed into $(VENV), once.
PYTHON ?= python3
VENV ?= .venv
ENGINES ?= tensorflow torch jax
# Tests wait for workers a tenth of their time: one more than there are cores. nproc tells OMP_NUM_THREADS where it is set.
JOBS ?= $(shell echo $$(($$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2) + 1)))
EXTRAS := $(shell echo $(ENGINES) envs dev | tr ' ' ',')
TESTS_OF_ENGINES := $(foreach folder,runs agents solo,$(ENGINES:%=test-%-$(folder)))
CHECKS := pyright completeness mypy structure layers lint
AS_STRUCTURE := tests/layers/test_structure.py::test_nothing_is_more_than_its_bound
OTHER_TESTS := test-in-run test-in-others test-in-tuning-rollout test-in-docs-cli

PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt
.PHONY: help train test engines check lowest docs docs-check build bench slow reliability new-algorithm
.DELETE_ON_ERROR:
# Tests start hundreds of processes, each of which would compile its modules anew.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make train   set up $(VENV) and train DQN on CartPole-v1"
	@echo "make test    set up every engine and run each test, and of its cases what can fail by itself (CONTRIBUTING.md)"
	@echo "make check   lint, format, types, layers, size"
	@echo "make new-algorithm NAME=my_algorithm [CLASS=MyClass]   its file, page, preset and test, with what is left to fill in"
	@echo "make lowest  test the command line and a part of JAX's agents with the oldest versions that pyproject.toml allows"
	@echo "make docs    write the documentation site into build/site"
	@echo "make docs-check   look at every page of it in Chromium, wide and narrow, and ask its search"
	@echo "make build   make a wheel in dist/, install it into an empty environment, and test its command line there"
	@echo "make bench   measure speed and memory"
	@echo "make slow    every case of every test on every engine, workers spawned, reliability, and the learning table of every algorithm (hours)"
	@echo "make reliability   kills, damaged and hostile files, faulty environments, a soak of five minutes (an hour)"

train: $(VENV)/.ready-train
	@$(VENV)/bin/etude train dqn CartPole-v1 --target 475

# A process for each folder and engine, as what XLA compiled stays until a process ends; JOBS of them at a time, each
# with one thread of PyTorch's, as threads spin while they wait for one another; each prints its report when it is
# whole. What JAX compiles for one of them the others read. The longest ones start first, so that all cores are busy
# until the end.
test: $(VENV)/.ready-test
	@compiled=$$(mktemp -d); JAX_COMPILATION_CACHE_DIR=$$compiled \
	  $(MAKE) --no-print-directory --keep-going --jobs $(JOBS) $(OTHER_TESTS) $(TESTS_OF_ENGINES); \
	  status=$$?; rm -rf $$compiled; exit $$status

engines: $(VENV)/.ready-test
	@$(MAKE) --no-print-directory --keep-going --jobs $(JOBS) $(TESTS_OF_ENGINES)

test-in-others:
	@$(call reported,tests --ignore tests/engines $(foreach folder,$(subst -, ,$(OTHER_TESTS:test-in-%=%)),\
	  --ignore tests/$(folder)) $(WHOLE))

test-in-%:
	@$(call reported,$(addprefix tests/,$(subst -, ,$*)) $(WHOLE))

test-%:
	@$(call reported,tests/engines/$(lastword $(subst -, ,$*)) --engine $(firstword $(subst -, ,$*)) $(WHOLE))

reported = log=$$(mktemp); OMP_NUM_THREADS=1 $(PY) -m pytest --durations=25 $(1) >$$log 2>&1; status=$$?; \
  echo "== $(1) =="; cat $$log; rm -f $$log; exit $$status

# Whatever takes longest starts first; each prints its report when it is whole.
check: $(VENV)/.ready-test
	@$(PY) tests/docs/programs.py build/typed
	@$(MAKE) --no-print-directory --keep-going --jobs $(JOBS) --output-sync=target $(CHECKS:%=check-%)

check-pyright:
	$(VENV)/bin/pyright --pythonpath $(PY)

check-completeness:
	@cd build/typed && PYTHONPATH=$(CURDIR) $(abspath $(VENV)/bin/pyright) --pythonpath $(abspath $(PY)) \
	  --verifytypes etude --ignoreexternal >../completeness.txt || true  # it fails below 100 %
	@awk '/completeness score/ {print; known = $$4 + 0} END {exit known < 95}' build/completeness.txt || \
	  { echo "expected 95 % or more; build/completeness.txt names what lacks a type"; exit 1; }

check-mypy:
	$(PY) -m mypy etude build/typed

check-lint:
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

check-structure:
	$(PY) -m benchmarks.structure

check-layers:
	$(PY) -m pytest tests/layers --deselect $(AS_STRUCTURE)

new-algorithm:
	@$(PYTHON) docs/new_algorithm.py "$(NAME)" "$(CLASS)"

# Of torch and TensorFlow, PyPI's oldest wheels for a CPU need gigabytes or another Python: their bounds are not proved.
# The oldest JAX ends at a flag of XLA's that it does not know, as tests set one.
lowest: export XLA_FLAGS = --xla_backend_optimization_level=0
lowest:
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet --disable-pip-version-check uv
	build/lowest/bin/uv pip install --quiet --python build/lowest/bin/python --resolution lowest-direct \
	  --only-binary :all: --no-binary etude -e ".[jax,multiagent,offline,optuna,remote,video,atari]" "pytest>=8" "hypothesis>=6.100"
	OMP_NUM_THREADS=1 build/lowest/bin/python -m pytest tests/cli
	OMP_NUM_THREADS=1 build/lowest/bin/python -m pytest tests/engines/agents/test_contract.py -k "dqn or ppo or sac"

# Sources are read, not imported: no engine is needed.
docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict

docs-check: docs $(VENV)/.ready-test
	@$(PIP) "playwright>=1.50" "pytest>=8"
	-npm install --silent --no-save --prefix build/npm onnxruntime-web@1.30.0
	$(PY) -m pytest --noconftest -rs tests/docs/site_in_browser.py tests/board/board_in_browser.py \
	  tests/export/page_in_browser.py

# setuptools packs whatever an earlier build left in build/lib. The tests are copied, so that they import the installed
# package and not the sources beside them.
build: | $(PY)
	rm -rf build/lib build/bdist.* build/installed build/tests dist
	$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(PYTHON) -m venv build/installed
	build/installed/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  "$$(echo dist/*.whl)[jax,torch,multiagent,offline,video]" pytest
	mkdir build/tests && cp -r tests/cli tests/conftest.py build/tests
	cd build/tests && ../installed/bin/python -m pytest -q cli

# PEERS=path/to/python compares with the libraries of benchmarks/requirements-peers.txt.
bench: $(VENV)/.ready-test
	$(PY) -m benchmarks $(if $(PEERS),--peers $(PEERS))

slow: $(VENV)/.ready-test
	@$(MAKE) --no-print-directory --keep-going --jobs $(JOBS) $(OTHER_TESTS) $(TESTS_OF_ENGINES) WHOLE=--whole
	@$(MAKE) --no-print-directory docs-check
	@$(MAKE) --no-print-directory reliability
	$(PY) benchmarks/learning.py

# Each script adds to its JSON file beside it, or replaces it; kills, groups and faulty_environments go on where they
# stopped.
reliability: $(VENV)/.ready-test
	$(PY) -m benchmarks.reliability.kills --kills 60
	$(PY) -m benchmarks.reliability.groups
	$(PY) -m benchmarks.reliability.damaged_files
	$(PY) -m benchmarks.reliability.changed_values
	$(PY) -m benchmarks.reliability.hostile_data
	$(PY) -m benchmarks.reliability.faulty_environments
	$(PY) -m benchmarks.reliability.soak

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "etude needs Python 3.11 or newer, got " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12")'
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-train: pyproject.toml constraints.txt | $(PY)
	@echo "Installing etude with the jax engine into $(VENV) (once)"
	@$(PIP) -e ".[jax,video]"
	@touch $@

$(VENV)/.ready-docs: pyproject.toml constraints.txt | $(PY)
	@echo "Installing what the documentation site is made with into $(VENV) (once)"
	@$(PIP) -e ".[docs]"
	@touch $@

# torch comes first and alone: the versions of what torch and TensorFlow share follow it. The rest is installed by uv, in
# a quarter of pip's time; by pip where an index is named in pip's settings only, which uv does not read. Modules are
# compiled when they are first imported: most never are, and compiling all of them takes a minute.
$(VENV)/.ready-test: pyproject.toml constraints.txt | $(PY)
	@echo "Installing etude with $(ENGINES) into $(VENV) (once)"
	@$(if $(filter torch,$(ENGINES)),$(PIP) --no-compile torch==2.13.0)
	@$(PIP) uv
	@$(VENV)/bin/uv pip install --quiet --python $(PY) -c constraints.txt -e ".[$(EXTRAS)]" || \
	  $(PIP) --no-compile -e ".[$(EXTRAS)]"
	@touch $@ $(VENV)/.ready-train
