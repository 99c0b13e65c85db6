# Everything a person or CI types here. `make` alone lists it.
#
#   make setup PYTHON=python3.12      chooses the interpreter (after `make clean`, if there is a .venv already)

PYTHON ?= python3

VENV  := .venv
BIN   := $(VENV)/bin
PIP   := $(BIN)/python -m pip -qq
STAMP := $(VENV)/.setup-stamp
# Stands in the virtual environment while the set-up works on it. If it is found there at the start,
# the last set-up was interrupted, and what it left is not worth trusting.
UNDER_WORK := $(VENV)/.setup-under-work

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast lint format types bench clean FORCE

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv and install everything into it (the other targets do this by themselves)
	@echo "==> Ready"

demo: $(STAMP) ## See torchsleuth at work in a minute (needs a C++ compiler)
	@command -v $(firstword $(CXX)) >/dev/null || $(call fail,no C++ compiler: install g++ (or set CXX); torch.compile needs one)
	@$(BIN)/sleuth demo

test: $(STAMP) ## Run the whole test suite
	@$(BIN)/python -m pytest -n 2

test-fast: $(STAMP) ## Run the tests that do not compile with Inductor
	@$(BIN)/python -m pytest -n 2 -m "not inductor"

lint: $(STAMP) ## Check style, formatting and the import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/check_imports.py

format: $(STAMP) ## Format the code and mend what can be mended
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(STAMP) ## Check the types
	@$(BIN)/mypy

bench: $(STAMP) ## Run every benchmark, one after another (a leading _ marks a helper)
	@for file in benchmarks/[!_]*.py; do \
	    [ -e "$$file" ] || continue; \
	    echo "==> $$file"; \
	    $(BIN)/python "$$file" || exit 1; \
	done

clean: ## Remove .venv, caches and build leftovers (cases in .sleuth stay)
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist src/*.egg-info
	@find src tests tools benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# The set-up. The stamp says where it was made, because a virtual environment cannot be moved: in a copied
# or renamed checkout it is made anew. A .venv that somebody else made is used, not wiped.

fail = { echo "error: $(1)" >&2; exit 1; }

ifneq ($(shell [ -x $(BIN)/python ] && cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c '' 2>/dev/null || $(call fail,$(PYTHON) not found: install Python 3.10 or newer or name one with PYTHON=...)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	    || $(call fail,$$($(PYTHON) --version) is too old: Python 3.10 or newer is needed; name one with PYTHON=...)
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	    || $(call fail,$(PYTHON) has no venv module: install it (on Debian and Ubuntu: the package python3-venv))
	@command -v $(firstword $(CXX)) >/dev/null \
	    || echo "warning: no C++ compiler: the set-up goes on; 'make demo' and 'make test' will need g++" >&2
	@if [ -e $(UNDER_WORK) ] || { [ -e $(VENV) ] && ! [ -x $(BIN)/python ]; } \
	    || { [ -e $@ ] && [ "$$(cat $@)" != "$(CURDIR)" ]; }; then \
	    echo "==> Clearing $(VENV): its set-up was interrupted, or it was made for another place"; \
	    touch $(UNDER_WORK); \
	    find $(VENV) -mindepth 1 -maxdepth 1 ! -path $(UNDER_WORK) -exec rm -rf {} +; \
	fi
	@mkdir -p $(VENV) && touch $(UNDER_WORK) && rm -f $@
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    echo "==> Making $(VENV) with $$($(PYTHON) --version)"; \
	    $(PYTHON) -m venv $(VENV); \
	fi
	@echo "==> Installing torch (the big one: give it a minute or a few)"
	@$(PIP) install -c constraints.txt torch
	@echo "==> Installing torchsleuth and what its tests and checks need"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@rm $(UNDER_WORK) && echo "$(CURDIR)" > $@
