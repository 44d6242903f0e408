# Needs Python 3.11 or newer with venv and pip, and make. Nothing else: no uv, no activation.
PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
.DEFAULT_GOAL := help
.PHONY: help demo test fix lock images bench

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

demo: .venv/torch  ## three censuses: this machine, a VGG-16 in training, a RAM image; then demo.html
	@samples/demo

test: .venv/torch .venv/dev  ## every check that CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --numprocesses=2 --dist=loadgroup

fix: .venv/dev  ## format, and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: .venv/dev  ## resolve both locks anew
	$(BIN)/uv pip compile --quiet pyproject.toml --group build --python-version 3.11 \
		--generate-hashes --universal --no-header --upgrade -o run.lock
	$(BIN)/uv pip compile --quiet pyproject.toml --group dev --python-version 3.11 \
		--generate-hashes --universal --no-header --upgrade --constraint run.lock -o dev.lock

images:  ## build the larger RAM images into images/ (QEMU, debootstrap, root; about 8 minutes)
	samples/recipe/build matrix

bench: .venv/torch .venv/dev  ## speed, as whole-process times with their spread and as ratios
	$(BIN)/python benchmarks/bench.py

.venv/ready: run.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "memcensus needs Python 3.11 or newer: make PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip' || { echo "this Python has no venv: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes -r run.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/dev: .venv/ready dev.lock
	$(PIP) --require-hashes -r dev.lock
	@touch $@

# torch is no part of the locks: which build fits depends on the machine. Without it demo shows a saved report.
.venv/torch: .venv/ready
	@$(PIP) '$(TORCH)' && touch $@ || echo "torch could not be installed: what needs it is left out" >&2
