# make demo, make test and make docs set everything up themselves: they need python3 (with venv) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.dev
FLWR ?= 1.42
FLOWER := .flower/$(FLWR)
SUITE := -n 2 --dist worksteal --durations=15
PIP := -m pip install --quiet --disable-pip-version-check
OURS := $(BIN)/python $(PIP) --constraint constraints.txt --editable
SEE := import site; open(site.getsitepackages()[0] + "/fedloom.pth", "w").write("\n".join(__import__("sys").argv[1:]))
PACKAGES = $$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])') $(CURDIR)/src

.PHONY: setup demo test test-matrix test-flower test-flower-oldest docs notebooks bench needs clean
.NOTPARALLEL:  # targets install into one environment, so `make -j` builds one after another

setup: $(DEV)

# One environment, in which each stamp says what has been installed: what fedloom needs, what tests need, what the site
# needs.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(OURS) .
	touch $@

$(DEV): pyproject.toml constraints.txt | $(READY)
	$(OURS) '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/fedloom demo

test: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest $(SUITE) -m "not matrix"

# The whole matrices, of which `make test` runs a sample.
test-matrix: $(DEV)
	$(BIN)/pytest $(SUITE) -m matrix

# Tests over Flower and over Ray, in an environment of their own: Flower pins other versions of packages that this one
# has, and Ray is large. It also sees this one's packages. The bits of every method over Flower's Grid, and three real
# nodes with TLS and node keys, two hostile ones among three, what their sockets carry, the commands of the example
# units, and those of the deployment pages as they are typed; bad links; the bits of every method and of a study on Ray,
# with workers that are killed. FLWR=1.41 takes the oldest version of Flower that the package allows, in an environment
# of its own.
test-flower: $(FLOWER)/.ready
	FEDLOOM_REAL=1 $(FLOWER)/bin/python -m pytest tests/flower/test_grid.py tests/flower/test_replies.py \
		tests/flower/test_up.py tests/flower/test_links.py tests/docs/test_deployment_examples.py \
		tests/docs/test_deployment_typed.py \
		-k "test_grid or test_replies or three_nodes and fedsc or hostile or sockets or killed_process or bad_links or flowers_commands or typed"
	$(FLOWER)/bin/python -m pytest tests/engine/ray tests/runs/studies/test_on_ray.py

test-flower-oldest:
	$(MAKE) test-flower FLWR=1.41

$(FLOWER)/.ready: constraints-flower.txt constraints-flower-1.41.txt | $(DEV)
	$(PYTHON) -m venv $(FLOWER)
	echo '*' > $(FLOWER)/.gitignore
	$(FLOWER)/bin/python $(PIP) --require-hashes --requirement constraints-flower.txt
	$(if $(filter 1.41,$(FLWR)),$(FLOWER)/bin/python $(PIP) --no-deps --require-hashes -r constraints-flower-1.41.txt)
	$(FLOWER)/bin/python -c '$(SEE)' $(PACKAGES)
	touch $@

# The documentation as a site in site/: strict, links checked, nothing fetched while it is built.
$(VENV)/.docs: pyproject.toml constraints.txt | $(READY)
	$(OURS) '.[docs]'
	touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The notebooks of the docs, executed anew with their outputs, and the tests of them.
notebooks: $(DEV)
	$(BIN)/python $(PIP) --constraint constraints.txt --editable '.[notebooks]'
	$(BIN)/python -m nbconvert --to notebook --execute --inplace --ExecutePreprocessor.record_timing=False \
		docs/notebooks/*.ipynb
	$(BIN)/pytest tests/docs/test_notebooks.py

# fedloom beside its peers, which have environments of their own that also see this one's packages. `needs` first says
# what is missing. ONLY="--only cnn,auto" runs parts, ONLY=--smoke everything tiny, and keeps nothing.
PEERS := .peers
FLUKE := .fluke
FEDJAX := .fedjax
ONLY ?=
SMOKE := $(filter --smoke,$(ONLY))
$(PEERS)/.ready: benchmarks/peers/peers.txt | $(READY)
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python $(PIP) -r $<
	$(PEERS)/bin/python $(PIP) --no-deps pfl==0.6.0
	$(PEERS)/bin/python -c '$(SEE)' $(PACKAGES)
	touch $@

$(FLUKE)/.ready: benchmarks/peers/fluke.txt | $(READY)
	$(PYTHON) -m venv $(FLUKE)
	echo '*' > $(FLUKE)/.gitignore
	$(FLUKE)/bin/python -c '$(SEE)' $(PACKAGES)
	$(FLUKE)/bin/python $(PIP) -r $<
	$(FLUKE)/bin/python $(PIP) --no-deps fluke-fl==0.8.1
	touch $@

$(FEDJAX)/.ready: benchmarks/peers/fedjax.txt | $(READY)
	$(PYTHON) -m venv $(FEDJAX)
	$(FEDJAX)/bin/python $(PIP) -r $<
	$(FEDJAX)/bin/python -c '$(SEE)' $(PACKAGES)
	touch $@

bench: needs $(PEERS)/.ready $(FLUKE)/.ready $(FEDJAX)/.ready
	$(BIN)/python -m benchmarks engines --peers $(PEERS)/bin/python --fluke $(FLUKE)/bin/python \
		--fedjax $(FEDJAX)/bin/python $(ONLY)

# Before the environments are made, which takes ten minutes.
needs:
	$(PYTHON) -m benchmarks needs $(SMOKE)

$(READY) $(PEERS)/.ready $(FLUKE)/.ready $(FEDJAX)/.ready: | $(if $(filter bench,$(MAKECMDGOALS)),needs)

clean:
	rm -rf $(VENV) .flower $(PEERS) $(FLUKE) $(FEDJAX) build dist site
