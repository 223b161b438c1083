# make demo and make test set everything up themselves: they need python3 (with venv) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test docs bench clean

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

# The documentation as a site in site/: strict, links checked, nothing fetched while it is built.
$(VENV)/.docs: pyproject.toml constraints.txt | $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# fedloom beside what people use; peers have environments of their own that also see this one's packages.
PEERS := .peers
FEDJAX := .fedjax
SEE := import site; open(site.getsitepackages()[0] + "/fedloom.pth", "w").write("\n".join(__import__("sys").argv[1:]))

$(PEERS)/.ready: benchmarks/peers.txt | $(READY)
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers.txt
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps pfl==0.6.0
	$(PEERS)/bin/python -c '$(SEE)' $$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])') $(CURDIR)/src
	touch $@

$(FEDJAX)/.ready: benchmarks/fedjax.txt | $(READY)
	$(PYTHON) -m venv $(FEDJAX)
	$(FEDJAX)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/fedjax.txt
	$(FEDJAX)/bin/python -c '$(SEE)' $$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])') $(CURDIR)/src
	touch $@

bench: $(PEERS)/.ready $(FEDJAX)/.ready
	$(PEERS)/bin/python benchmarks/overhead.py --json benchmarks/results/overhead.json
	$(BIN)/python benchmarks/steps.py --json benchmarks/results/steps.json
	$(BIN)/python benchmarks/engines.py --peers $(PEERS)/bin/python --fedjax $(FEDJAX)/bin/python

clean:
	rm -rf $(VENV) $(PEERS) $(FEDJAX) build dist site
