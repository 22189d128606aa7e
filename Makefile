# Needs GNU Make and a Python that pyproject.toml names; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

PYTHONS := $(shell sed -n 's/^requires-python = "\(.*\)"/\1/p' pyproject.toml)
IS_SUPPORTED := import re, sys; low, high = map(int, re.findall("3[.]([0-9]+)", "$(PYTHONS)")); \
	sys.exit(not low <= sys.version_info[1] < high)
IS_INSTALLED := import tomllib; from importlib.metadata import version; from packaging.requirements import Requirement; \
	project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	lines = ["tutorial-utils"] + project["dependencies"] + sum(project["optional-dependencies"].values(), []); \
	assert all(line.specifier.contains(version(line.name), prereleases=True) for line in map(Requirement, lines))

.DEFAULT_GOAL := help
OUT ?= student
.PHONY: help run test test-slow student lab address refresh clean
.DELETE_ON_ERROR:

help: ## show this list
	@echo "Usage: make TARGET [PYTHON=python3.12]"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16
	@echo
	@echo "The first call makes .venv and installs PyTorch and JupyterLab into it, which takes some minutes."

run: $(STAMP) ## execute every notebook in order into build/, with an index page
	@$(BIN)/python scripts/run_notebooks.py

test: $(STAMP) ## lint, run the unit tests, then compare every notebook's stored outputs with a new run
	@status=0; \
	$(BIN)/ruff check || status=1; \
	$(BIN)/ruff format --check || status=1; \
	$(BIN)/python -m pytest tests || status=1; \
	$(BIN)/python scripts/check_notebooks.py || status=1; \
	$(BIN)/python -m pytest --nbval --nbval-current-env --nbval-sanitize-with tests/nbval_sanitize.cfg notebooks \
		|| status=1; \
	exit $$status

test-slow: $(STAMP) ## what a release needs beside that: each cell twice
	@$(BIN)/python -m pytest -m release tests

student: $(STAMP) ## write the notebooks without solutions and outputs into OUT=student
	@$(BIN)/jupyter nbconvert --log-level=ERROR --to notebook --output-dir "$(OUT)" \
		--TagRemovePreprocessor.enabled=True --TagRemovePreprocessor.remove_cell_tags=solution \
		--ClearOutputPreprocessor.enabled=True notebooks/*.ipynb
	@echo "The student edition is in $(OUT)."

lab: $(STAMP) ## open the course in JupyterLab
	@$(BIN)/jupyter lab --ServerApp.root_dir="$(CURDIR)" notebooks/00_start_here.ipynb $(LAB_ARGS)

address: $(STAMP) ## write the address in pyproject.toml into the notebooks and the README
	@$(BIN)/python scripts/address.py

refresh: $(STAMP) address ## for contributors: execute the notebooks and store their outputs in place
	@$(BIN)/python scripts/run_notebooks.py --in-place

clean: ## remove build/, .venv/ and caches
	rm -rf build $(VENV) .pytest_cache .ruff_cache
	find . \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# An existing .venv is kept where it works, so that another build of PyTorch can be installed into it first. Where it
# has all that pyproject.toml asks for, nothing is installed, and no network is needed.
$(STAMP): pyproject.toml
	@if ! $(BIN)/python -c '$(IS_SUPPORTED)' 2>/dev/null; then \
		if ! $(PYTHON) -c '$(IS_SUPPORTED)'; then \
			echo "This course needs Python $(PYTHONS); \"$(PYTHON) --version\" says: $$($(PYTHON) --version 2>&1)." >&2; \
			echo "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; \
		fi; \
		echo "Making $(VENV) with $$($(PYTHON) --version) ..."; \
		$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }; \
	fi
	@if ! $(BIN)/python -c '$(IS_INSTALLED)' 2>/dev/null; then \
		echo "Installing the packages that pyproject.toml names ..."; \
		$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable ".[lab,test]"; \
	fi
	@touch $@
