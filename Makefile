# Two commands from a fresh clone: `make demo`, then `make test`. Needs python3 (3.10 or newer).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready
TYPES  := build/typecheck/looplift

SECONDS ?= 600

.DEFAULT_GOAL := help
.PHONY: help setup demo test soak fuzz lint bench docs release clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(READY)  ## create .venv with looplift (editable), TVM and the tools

# Repeated only when pyproject.toml changes.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[tvm,test,lint]"
	@touch $@

demo: $(READY)  ## rewrite a small speech detector, import it into Relax, check all three
	$(BIN)/python examples/demo.py

# Tests start many processes, which without bytecode would each compile all modules.
unexport PYTHONDONTWRITEBYTECODE

# A worker that has no tests left takes some from the end of another worker's list. Until then each
# runs consecutive tests, so that most fixtures are made by one worker only.
test: $(READY)  ## run the tests on all cores
	$(BIN)/python -m pytest -n auto --dist worksteal

soak: $(READY)  ## run the tests that take long: more random models, all benchmarks
	$(BIN)/python -m pytest -n auto --dist worksteal -m soak

fuzz: $(READY)  ## rewrite random models on all cores for SECONDS=600, and go on where it ended
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

# The folder may have any name; the type checker needs one called looplift.
$(TYPES):
	@mkdir -p $(@D)
	@ln -s ../.. $@

lint: $(READY) | $(TYPES)  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## measure, print tables, write benchmarks/results/*.json
	$(BIN)/python -m pip install --quiet --editable ".[tvm,bench]"
	$(BIN)/python benchmarks/chain.py
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/branches.py
	$(BIN)/python benchmarks/fused.py
	$(BIN)/python benchmarks/recurrent.py
	$(BIN)/python benchmarks/loops_vs_ort.py
	$(BIN)/python benchmarks/loop_scale.py
	$(BIN)/python benchmarks/tracing.py
	$(BIN)/python benchmarks/many_loops.py
	$(BIN)/python benchmarks/large_body.py
	$(BIN)/python benchmarks/dense.py
	$(BIN)/python benchmarks/whole_networks.py
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/optimizers.py

docs: $(READY)  ## build the documentation site in build/site; a broken link is an error
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	$(BIN)/python -m mkdocs build

VERSION = $$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

release: $(READY)  ## build dist/*.tar.gz and dist/*.whl, and check what would be published
	@grep -q "^## $(VERSION)" CHANGELOG.md && ! grep -q "^## Unreleased" CHANGELOG.md || \
	  { echo "rename the section 'Unreleased' of CHANGELOG.md to '$(VERSION)'"; exit 1; }
	@test -z "$$(git status --porcelain)" || { echo "commit all changes first"; exit 1; }
	$(BIN)/python -m pip install --quiet --editable ".[release]"
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m pytest tests/test_package.py

clean:  ## remove everything the other targets made
	rm -rf $(VENV) build dist examples/out benchmarks/results *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
