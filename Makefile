# fedapa: every task of a developer; `make` lists them.
PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/.ready
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(READY): pyproject.toml constraints.txt setup.py $(wildcard src/fedapa/native/*.cpp)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY) ## see it work: Local, FedAvg and FedAPA on handwritten digits
	$(BIN)/fedapa demo

test: check ## all checks and all tests
	$(BIN)/pytest -n $(WORKERS)

check: $(READY) ## lint, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove everything that the other targets made
	rm -rf .venv build dist src/*.egg-info src/fedapa/native/*.so .pytest_cache .mypy_cache .ruff_cache
