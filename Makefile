# Each command does all the set-up it needs; a second run reuses it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo studio test lint audit format bench clean

help:  ## show these commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(READY)  ## segment photographs by a few labelled ones, write demo/index.html
	$(BIN)/cyctr demo --output demo

studio: $(READY)  ## label and segment photographs on a page in the browser, from studio-photos
	$(BIN)/cyctr studio

# one thread for each worker and each process that it starts; and compiled tests are kept, which saves seven seconds each
test: export OMP_NUM_THREADS := 1
test: export OPENBLAS_NUM_THREADS := 1
test: export PYTHONDONTWRITEBYTECODE :=
test: $(READY)  ## run the tests
	$(BIN)/python -m pytest

lint: $(READY)  ## check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory audit

audit:  ## look for known holes in the dependencies, where their database can be reached
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PYTHON) .ci/audit.py

format: $(READY)  ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## time the network on this machine, write benchmarks/network-DEVICE.json
	$(BIN)/python benchmarks/network.py

clean:  ## remove the environment and what the demo wrote
	rm -rf $(VENV) demo

$(READY): requirements.txt requirements-dev.txt constraints.txt hashes.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; run: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r hashes.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)
