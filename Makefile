# The entrance. `make demo` and `make test` do everything on a bare machine with Python 3.11 to 3.13.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
CODE = src tests bench docs

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types bench docs

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

# Installed again whenever the requirements change.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

setup: $(VENV)/.installed ## make .venv with everything installed

demo: setup ## train Vanilla and TripleE on the embedded digits; table and picture in demo/
	$(BIN)/triplee demo

# Not for users: a GPU build of torch has it. The kernels' tests run in its interpreter.
$(VENV)/.kernels: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt 'triton; platform_system == "Linux"'
	touch $@

# Nor this, of 80 MB: where it cannot be had, the tests of sweeps on a cluster are skipped.
$(VENV)/.ray: $(VENV)/.installed
	-$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt ray
	touch $@

# The report is tested in a real browser, which only a system's own packages have; without it those tests are skipped.
$(VENV)/.chromium: $(VENV)/.installed
	-@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
		|| echo "no Chromium: the tests of the report in a browser are skipped"
	touch $@

test: lint types $(VENV)/.kernels $(VENV)/.ray $(VENV)/.chromium ## lint, types, then all tests
	$(BIN)/pytest -n 2

lint: setup ## ruff: style and formatting
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: setup ## basedpyright: types
	$(BIN)/basedpyright --pythonpath $(BIN)/python

bench: setup ## measure speed again; results under bench/results/
	$(BIN)/python bench/augment.py
	$(BIN)/python bench/step.py
	$(BIN)/python bench/style.py
	$(BIN)/python bench/scaling.py
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/predict.py

docs: demo ## make performance.md, choices.md and the demo's picture again
	$(BIN)/python docs/make.py demo
