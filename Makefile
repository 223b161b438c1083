# make demo and make test set everything up themselves: they need python3 (with venv) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/fedloom demo

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal

bench: $(READY)
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/steps.py

clean:
	rm -rf $(VENV) build dist
