# fedapa: every task of a developer; `make` lists them.
PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/.ready
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help docs coverage pictures test-container test-docs demo demo-federation test mutants browser test-federation soak load tools test-native-asan check lint types tests system format bench parity clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(READY): pyproject.toml constraints.txt setup.py $(wildcard src/fedapa/training/engines/native/*.cpp)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs,flower,onnx,parquet,tune]'
	@touch $(READY)

demo: $(READY) ## see it work: Local, FedAvg and FedAPA on handwritten digits
	$(BIN)/fedapa demo

test: ## all checks and all tests; what needs one core runs beside something else
	@$(MAKE) --no-print-directory -j 2 lint system
	@$(MAKE) --no-print-directory -j 2 types tests

tests: $(READY)
	$(BIN)/python -m compileall -q src  # for the processes that tests start, also where PYTHONDONTWRITEBYTECODE is set
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

docs: $(READY) ## build the documentation as a site that needs no network: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

coverage: check system ## the same with coverage; fails below the floor of pyproject.toml
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --cov --cov-report=term

mutants: $(READY) ## change the source in hundreds of small ways and see a test fail for each; MUTANTS="--only fedala"
	$(BIN)/python tests/mutants/mutate.py --workers $(WORKERS) $(MUTANTS)

# apt-get works for one at a time
system:
	@$(MAKE) --no-print-directory browser
	@$(MAKE) --no-print-directory tools

browser: ## install Debian's Chromium for the tests of pages, where it is missing and may be installed
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing chromium" \
	  && { apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium; } >/dev/null; } \
	  || echo "no chromium here: the tests of pages will be skipped"

pictures: $(READY) browser ## store new pictures of the pages, after a change that was meant; look at them
	FEDAPA_PICTURES=store $(BIN)/pytest -n0 tests/dashboard/test_pictures.py

demo-federation: $(READY) ## a coordinator and four sites on this machine, over TLS
	PATH="$(CURDIR)/$(BIN):$$PATH" examples/federation.sh

tools: # Debian's nginx with its stream module, and ip, for the tests of a federation, where they are missing and may be installed
	@for tool in nginx:nginx-light /usr/lib/nginx/modules/ngx_stream_module.so:libnginx-mod-stream ip:iproute2; do \
	  { PATH="$$PATH:/usr/sbin" command -v $${tool%:*} || [ -e $${tool%:*} ]; } >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && { apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $${tool#*:}; } >/dev/null; } \
	  || echo "no $${tool%:*} here: some tests of a federation will be skipped"; done

test-federation: $(READY) tools ## real processes: parity, kills, a pulled cable, a full disk, the reverse proxy; ten thousand bad uploads
	FEDAPA_FEDERATION=1 FEDAPA_FUZZ=all $(BIN)/pytest -m federation -n 4 --dist loadgroup --no-loadscope-reorder tests/flower --durations=20

test-container: $(READY) ## the steps of deploy/Containerfile in a clean environment: build a wheel, look into it, start it
	FEDAPA_CONTAINER=1 $(BIN)/pytest -n0 tests/test_container.py

test-docs: $(READY) ## every command and every Python block of the pages, also what takes minutes: trials, servers, federations
	FEDAPA_DOCS=1 $(BIN)/pytest -n0 tests/test_doc_blocks.py --durations=10

soak: $(READY) tools ## two hundred rounds of a real federation with a random kill every few rounds; SOAK="--seed 1"
	$(BIN)/python tests/flower/soak.py $(SOAK)

load: $(READY) tools ## a hundred light sites poll through the reverse proxy for ten minutes, nobody may be dropped; LOAD="--train 20"
	$(BIN)/python tests/flower/load.py $(LOAD)

ASAN_PRELOAD = $(shell g++ -print-file-name=libasan.so) $(shell g++ -print-file-name=libstdc++.so.6)
ASAN = ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$(ASAN_PRELOAD)" FEDAPA_NATIVE_PATH=$(CURDIR)/build/asan/lib/fedapa/training/engines/native
CHOSEN = import sys; from fedapa.training.engines.native import available; found, why = available(); print(why); sys.exit(not found)
test-native-asan: $(READY) ## the tests of the C++ engine under AddressSanitizer and UBSan
	FEDAPA_NATIVE_SANITIZE=1 $(BIN)/python setup.py -q build_ext --build-lib build/asan/lib --build-temp build/asan/tmp
	for library in auto portable; do \
	  export FEDAPA_NATIVE=$$library $(ASAN); \
	  $(BIN)/python -c "$(CHOSEN)" && $(BIN)/pytest tests/native || exit 1; \
	done

bench: $(READY) ## measure the engines against a plain loop, on an otherwise idle machine
	$(BIN)/fedapa bench --rounds 50
	$(BIN)/python docs/make_performance.py

parity: $(READY) ## compare with the released FedAPA code and PFLlib in lockstep: AUTHORS=dir PFLLIB=dir, two git clones
	$(BIN)/python tests/parity/parity_table.py --authors "$(AUTHORS)" --pfllib "$(PFLLIB)" --page docs/parity.md

SCHEMA = $(BIN)/check-jsonschema --quiet --builtin-schema vendor.
check: lint types ## lint, types, the direction of imports; the container's recipe and the workflows

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint deploy/Containerfile
	$(SCHEMA)compose-spec deploy/compose.yml
	$(SCHEMA)github-workflows .github/workflows/*.yml
	$(SCHEMA)dependabot .github/dependabot.yml
	$(SCHEMA)github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/method.yml
	$(SCHEMA)citation-file-format CITATION.cff
	$(BIN)/zizmor --offline --quiet .github

format: $(READY) ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove everything that the other targets made
	rm -rf .venv build dist src/*.egg-info src/fedapa/training/engines/native/*.so .pytest_cache .mypy_cache .ruff_cache
