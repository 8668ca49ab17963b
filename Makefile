# Every target does its own set-up. `make help` lists them; nothing else has to be known.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
ARGS ?=
# A test that hangs fails, by name and with the place where it stands, instead of keeping the run for ever.
HANGS := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true --max-worker-restart=0

# pip reads these in the environments it builds packages in, too.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where it is set, pytest rewrites every test at each start: 8 s of processor time in each of its processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: java ## the whole system in one go; prints seeded against found and the report's path (ARGS='--messages 500')
	@$(BIN)/mqtrace demo $(ARGS)

.PHONY: test
test: java ## the whole suite that needs no external server (ARGS='-k words')
	@$(BIN)/python -m pytest -m "not peers and not cluster and not install" --ignore=tests/proofs -n 3 --dist loadfile --no-loadscope-reorder $(HANGS) $(ARGS)

.PHONY: check
check: lint format types contracts documents ## lint, format, types, import contracts, documents against code (-k: all of them)

.PHONY: lint format types contracts documents
lint: $(READY)
	$(BIN)/ruff check .
format: $(READY)
	$(BIN)/ruff format --check .
types: $(READY)
	$(BIN)/mypy
contracts: $(READY)
	$(BIN)/lint-imports --no-cache
documents: $(READY)
	$(BIN)/python -m pytest -q tests/architecture
	@$(MAKE) --no-print-directory site

.PHONY: test-peers
test-peers: java ## the tests against real servers, made from packages by Maven and Go (PEERS=… or SKIP_PEERS=kafka,…)
	@$(BIN)/python -m pytest -m peers -v tests/peers $(ARGS)

.PHONY: test-install
test-install: $(READY) wheel ## the documented commands in environments of their own, one client each, and the oldest OpenTelemetry and pyarrow
	@$(BIN)/python -m pytest -m install -n 2 --dist worksteal -v tests/install $(ARGS)

.PHONY: wheel
wheel: $(READY) ## dist/otel_mqtrace-*.whl
	@rm -f dist/otel_mqtrace-*.whl
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/otel_mqtrace-*.whl

.PHONY: test-cluster
test-cluster: java ## the reconciliation on HDFS, S3, gs, abfss, Spark standalone, YARN and Connect, started for it, compared with a local run
	@$(BIN)/python -c 'import moto' 2>/dev/null || PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --group cluster
	@$(BIN)/python -m pytest -m cluster -v tests/cluster $(ARGS)

.PHONY: bench
bench: java ## run the benchmarks into build/bench.json (ARGS='--only reconcile')
	@$(BIN)/python -c 'import datacompy, duckdb' 2>/dev/null || PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --group compare
	@$(BIN)/python -m tests.proofs.bench $(ARGS)

.PHONY: performance
performance: $(READY) ## docs/performance.md from what make bench measured
	@$(BIN)/python -m tests.proofs.bench --page

# atheris has wheels for few Pythons; where it cannot be had the run says so and ends.
.PHONY: fuzz
fuzz: $(READY) ## the native codec under a coverage-guided fuzzer (ARGS='--seconds 600')
	@$(BIN)/python -c 'import atheris' 2>/dev/null || PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --group fuzz || true
	@$(BIN)/python -m tests.proofs.fuzz.native_codec $(ARGS)

.PHONY: scoreboard
scoreboard: $(READY) ## the incumbent and ours side by side: every probe, into docs/scoreboard.md
	@$(BIN)/python -m tests.proofs.scoreboard

.PHONY: test-foreign
test-foreign: $(READY) ## confluent-kafka's own tests under instrumentation (CHECKOUT=folder of its repository)
	@$(BIN)/python -m tests.proofs.foreign.confluent_kafka $(CHECKOUT) $(ARGS)

.PHONY: proofs
proofs: test-proofs ## a smoke run of every proof: its tests, a quick bench, a minute of fuzzing
	@$(MAKE) --no-print-directory bench ARGS='--quick --only clients codec forwarder'
	@$(MAKE) --no-print-directory fuzz ARGS='--seconds 60'

.PHONY: test-proofs
test-proofs: $(READY) ## the tests of the proofs: every probe of the scoreboard, the SDK's own processor tests, the laws of the fuzzer
	@$(BIN)/python -m pytest tests/proofs $(ARGS)

.PHONY: confusion
confusion: java ## every fault against what it is called: the confusion matrix (ARGS=--write: into docs/reconciliation/proof.md)
	@$(BIN)/python -c 'import datacompy' 2>/dev/null || PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --group compare
	@$(BIN)/python -m tests.faults $(ARGS)

.PHONY: docs
docs: $(READY) ## write the generated pages, tables and the picture of docs/
	@$(BIN)/python -m tools.generated_docs
	@$(BIN)/python -m tools.pictures mqtrace-demo/report/report.html docs/report.png

.PHONY: site
site: $(READY) ## the documents as pages in build/site, every warning an error
	@if $(BIN)/python -c 'import mkdocs' 2>/dev/null; then $(BIN)/mkdocs build --quiet --strict; else echo 'make: no site: mkdocs is set up from Python 3.11 on'; fi

.PHONY: setup
setup: $(READY) java ## the virtual environment, and a Java for Spark, without running anything

.PHONY: clean
clean: ## remove what make made: the environment, caches, builds
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find otel_mqtrace bridge spark_jobs tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# A Java that is missing is installed as a wheel; one that is there is only asked for its version.
FIND_JAVA := $(BIN)/python -c 'from spark_jobs.java import find_java; print(find_java())'
.PHONY: java
java: $(READY)
	@$(FIND_JAVA) >/dev/null 2>&1 || { \
	  echo "make: no Java 17 or later here, installing one into $(VENV) (the 'jre' extra)"; \
	  PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet -e '.[jre]' && $(FIND_JAVA); }

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: error: no $(PYTHON): install Python 3.10 or later, or name one: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "make: error: $$($(PYTHON) --version 2>&1) is too old: name a Python 3.10 or later: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: error: $(PYTHON) cannot make virtual environments: install its venv package (Debian: apt install python3-venv)" >&2; exit 2; }
	@echo "make: installing into $(VENV) (the first time fetches half a gigabyte, most of it Spark)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@# setuptools warns about editable installs at every install
	@install() { PYTHONWARNINGS=ignore $(BIN)/python -m pip install "$$@" -e '.[all]' --group dev; }; \
	if ! test -t 1; then install --quiet; else \
	  { install || echo failed; } | while read -r step name _; do case $$step in \
	    Collecting) printf 'make: fetching %s\033[K\r' "$$name";; \
	    Installing) printf 'make: installing\033[K\r';; \
	    failed) exit 1;; \
	  esac; done && printf '\033[K'; fi
	@touch $@
