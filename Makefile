# Every target sets up what it needs in .venv; PYTHON=python3.12 make test chooses another interpreter.
PYTHON ?= python3
BIN := .venv/bin
# the number of processes that run the tests
WORKERS ?= 2
# spinning OpenMP threads cost tenfold on a busy machine
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-long lint docs results bench

demo: .venv/.installed
	$(BIN)/snapens demo

test: lint docs
	$(BIN)/pytest -n $(WORKERS)

test-long: lint
	$(BIN)/pytest -n $(WORKERS) -m ""

lint: .venv/.ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# not --quiet: mkdocs would ignore warnings
docs: .venv/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

results: .venv/.ready
	$(BIN)/python docs/results.py
	$(BIN)/python docs/commands.py

bench: .venv/.ready
	$(BIN)/python bench/core.py
	$(BIN)/python bench/engine.py

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[report]"
	touch $@

.venv/.ready: .venv/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test,docs]"
	touch $@
