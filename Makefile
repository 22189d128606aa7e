# Needs GNU Make and Python 3.11, 3.12 or 3.13; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Progress bars and the profiler's log stay out of compared outputs; MPLBACKEND would replace inline pictures.
NOTEBOOK_ENV := env -u MPLBACKEND TQDM_DISABLE=1 KINETO_LOG_LEVEL=6
CHECK_VERSION := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

.DEFAULT_GOAL := help
.PHONY: help run test lab address refresh clean
.DELETE_ON_ERROR:

help: ## show this list
	@echo "Usage: make TARGET [PYTHON=python3.12]"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16
	@echo
	@echo "The first call makes .venv and installs PyTorch and JupyterLab into it, which takes some minutes."

run: $(STAMP) ## execute every notebook in order into build/, with an index page
	@$(BIN)/python scripts/run_notebooks.py

test: $(STAMP) ## run the unit tests, then compare every notebook's stored outputs with a new run
	@status=0; \
	$(BIN)/ruff check || status=1; \
	$(BIN)/ruff format --check || status=1; \
	$(NOTEBOOK_ENV) $(BIN)/python -m pytest tests || status=1; \
	$(NOTEBOOK_ENV) $(BIN)/python -m pytest --nbval --nbval-current-env \
		--nbval-sanitize-with tests/nbval_sanitize.cfg notebooks || status=1; \
	exit $$status

lab: $(STAMP) ## open the course in JupyterLab
	@$(BIN)/jupyter lab --ServerApp.root_dir="$(CURDIR)" notebooks/00_start_here.ipynb $(LAB_ARGS)

address: $(STAMP) ## write the address in pyproject.toml into the notebooks and the README
	@$(BIN)/python scripts/address.py

refresh: $(STAMP) address ## for contributors: execute the notebooks and store their outputs in place
	@$(BIN)/python scripts/run_notebooks.py --in-place

clean: ## remove build/, .venv/ and caches
	rm -rf build $(VENV) .pytest_cache .ruff_cache
	find src tests scripts notebooks -name __pycache__ -prune -exec rm -rf {} +
	find notebooks -name .ipynb_checkpoints -prune -exec rm -rf {} +

# An existing .venv is kept where its Python works, so that another build of PyTorch can be installed into it first.
$(STAMP): pyproject.toml
	@if ! $(BIN)/python -c '$(CHECK_VERSION)' 2>/dev/null; then \
		if ! command -v $(PYTHON) >/dev/null; then \
			echo "Cannot find $(PYTHON). Install Python 3.11, 3.12 or 3.13," >&2; \
			echo "or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; \
		fi; \
		if ! $(PYTHON) -c '$(CHECK_VERSION)' 2>/dev/null; then \
			echo "This course needs Python 3.11, 3.12 or 3.13, but $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
			echo "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; \
		fi; \
		echo "Making $(VENV) with $$($(PYTHON) --version) ..."; \
		$(PYTHON) -m venv --clear $(VENV) || { \
			echo "Could not make $(VENV). On Debian and Ubuntu, install the package python3-venv first." >&2; exit 1; }; \
	fi
	@echo "Installing the packages that pyproject.toml names ..."
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable ".[lab,test]"
	@touch $@
