# `make` lists the targets. Everything runs from the virtual environment in .venv, which `setup` prepares and
# which every other target brings up to date first.

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.setup-done
# Read when a recipe runs, because `setup` may only just have written the file.
SPARK  := JAVA_HOME="$$(cat $(VENV)/java_home)"

# Short benchmarks, and those that take long or much memory. Each is one script that checks its own answer.
# `make bench` ends with all ratios beside the floors of benchmarks/floors.json; the other systems are in .venvs/rivals.
BENCH       := benchmarks/stream_stream.py benchmarks/drivers.py benchmarks/progressive.py benchmarks/window_crossover.py benchmarks/shedding.py benchmarks/ssbj_vs_mesh.py benchmarks/semi_stream_delay.py
BENCH_LARGE := benchmarks/wide_rows.py benchmarks/row_cost.py benchmarks/small_batches.py benchmarks/scaling.py benchmarks/state_growth.py benchmarks/multiway.py benchmarks/bounded_memory.py benchmarks/stalls.py benchmarks/window_join.py benchmarks/outer.py benchmarks/punctuations.py benchmarks/semi_stream.py benchmarks/object_store.py

# The releases of Spark that are supported, each in an environment of its own under .venvs. The lock has the newest one
# that has all connectors (src/watersmeet/pipeline/connectors.py); CONNECTORS=4.2 tests them on another one.
RELEASES       := 4.1 4.2 4.3
CONNECTOR_VENV := $(if $(CONNECTORS),.venvs/$(CONNECTORS),$(VENV))
SPARK_TESTS := $(if $(SUBSET),tests/spark/test_binding.py tests/spark/test_types.py \
  tests/spark/test_pipeline.py::test_every_starter_gives_the_answer_of_its_sql,tests/spark)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

##@ Start here

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## Prepare .venv from the lock, and Java 17 or newer if there is none (PYTHON=... to choose)

$(STAMP): pyproject.toml requirements.lock scripts/setup.sh scripts/ensure_java.py
	@PYTHON="$(PYTHON)" scripts/setup.sh $(VENV)
	@touch $@

.PHONY: demo
demo: $(STAMP) ## A tour of the five joins on a local Spark, with live progress (about two minutes)
	@$(SPARK) $(BIN)/python examples/demo.py

.PHONY: cluster-demo
cluster-demo: $(STAMP) ## A join on a standalone cluster with its state in an S3 server, all on this machine
	@$(SPARK) $(BIN)/python examples/cluster_demo.py

##@ Develop

.PHONY: test
test: $(STAMP) ## Run the tests (ARGS="-m 'not spark'" for the quick ones; the lanes below have the rest)
	@$(SPARK) $(BIN)/python -m pytest -n auto --dist worksteal --durations=20 --durations-min=5 $(ARGS)

.PHONY: test-more
test-more: $(STAMP) ## Run what `make test` leaves out: kills, clusters, the tutorial, further parameters of tests with Spark
	@$(SPARK) $(BIN)/python -m pytest -n auto --dist worksteal --durations=20 --durations-min=5 --more $(ARGS)

.PHONY: coverage
coverage: $(STAMP) ## Run all tests of both and print which lines they miss; fails below 90 % (the lab aside)
	@$(SPARK) $(BIN)/python -m pytest -n auto --dist worksteal --all --cov --cov-report=term-missing $(ARGS)

.venvs/%/.setup-done: pyproject.toml requirements.lock scripts/setup.sh scripts/ensure_java.py
	@PYTHON="$(PYTHON)" scripts/setup.sh .venvs/$* $*
	@touch $@

.PHONY: test-releases
test-releases: $(RELEASES:%=.venvs/%/.setup-done) ## Run the Spark tests on each supported release (SUBSET=1: a join per family, RELEASES=4.2, ARGS=--all)
	@set -e; for release in $(RELEASES); do \
	  echo "== $$(.venvs/$$release/bin/python -c 'import pyspark; print("Spark", pyspark.__version__)')"; \
	  JAVA_HOME="$$(cat .venvs/$$release/java_home)" .venvs/$$release/bin/python -m pytest $(SPARK_TESTS) $(ARGS); \
	done

.PHONY: test-connect
test-connect: $(STAMP) ## Run each Spark test again in a session of Spark Connect (SUBSET=1: a join per family; ARGS=--all: with all parameters)
	@$(SPARK) $(BIN)/python -m pytest -n 2 --dist worksteal --connect -m spark $(SPARK_TESTS) tests/connect $(ARGS)

.PHONY: test-connectors
test-connectors: $(CONNECTOR_VENV)/.setup-done ## Run the tests with Kafka, Delta, Iceberg and Avro (fetches about 150 MB once)
	@JAVA_HOME="$$(cat $(CONNECTOR_VENV)/java_home)" $(CONNECTOR_VENV)/bin/python -m pytest tests/connectors $(ARGS)

.PHONY: test-browser
test-browser: $(STAMP) ## Run the tests of the page in a real browser (installs Chromium if there is none)
	@scripts/ensure_browser.sh $(VENV)/browser
	@$(SPARK) BROWSER="$$(cat $(VENV)/browser)" $(BIN)/python -m pytest tests/browser $(ARGS)

.PHONY: soak
soak: $(STAMP) ## Many more fault schedules per operator (SEEDS=100000), and KILLS=25 real kills in inner and outer joins of every family
	@$(BIN)/python -m tests.faults.simulation --seeds $(or $(SEEDS),100000)
	@$(BIN)/python -m tests.faults.store_simulation $$(($(or $(SEEDS),100000) / 10))
	@$(SPARK) $(BIN)/python -m tests.faults.kills.harness --kills $(or $(KILLS),25)

.PHONY: soak-load
soak-load: $(STAMP) ## An hour at a steady rate with stalls: does anything creep up? (MINUTES=10 for a shorter run)
	@$(SPARK) $(BIN)/python benchmarks/soak_load.py --minutes $(or $(MINUTES),60)

.PHONY: mutation
mutation: $(STAMP) ## Do the tests notice small mistakes? 220 mutations, at least 85 % killed (long; resumes; ARGS=--fresh)
	@$(BIN)/python scripts/mutation.py $(ARGS)

.PHONY: lint
lint: $(STAMP) ## Check style, formatting, types, import layers, and that the pages are what the code says
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python -m pytest -k "up_to_date or figures or links or command" tests/unit/pipeline/test_reference.py tests/unit/pipeline/test_docs.py tests/unit/plan/test_metrics.py tests/docs

.PHONY: format
format: $(STAMP) ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: reference
reference: $(STAMP) ## Write the reference pages and the timeline of join types from the code that checks them
	$(BIN)/python -m watersmeet.pipeline.reference > docs/pipeline-reference.md
	$(BIN)/python -c 'from watersmeet.plan.metrics import page; print(page(), end="")' > docs/metrics.md
	$(BIN)/python scripts/timeline.py > docs/join-types.svg

.PHONY: lock
lock: $(STAMP) ## Resolve the newest allowed dependencies into requirements.lock
	$(BIN)/python scripts/lock.py

.PHONY: clean
clean: ## Remove caches, build outputs and scratch data (keeps .venv, .venvs and .jdk)
	rm -rf build dist .hypothesis .mutation .mypy_cache .pytest_cache .ruff_cache .coverage htmlcov
	rm -rf spark-warehouse metastore_db derby.log benchmarks/scratch
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -not -path './.venvs/*' -prune -exec rm -rf {} +

##@ Measure

.PHONY: bench
bench: $(STAMP) ## Run the benchmarks; results go to benchmarks/results/
	@set -e; for script in $(BENCH); do echo "== $$script"; $(SPARK) $(BIN)/python $$script; done
	@$(BIN)/python benchmarks/ratios.py

.PHONY: bench-large
bench-large: $(STAMP) ## Run the benchmarks with large state (long)
	@set -e; for script in $(BENCH_LARGE); do echo "== $$script"; $(SPARK) $(BIN)/python $$script; done
	@$(BIN)/python benchmarks/ratios.py

.venvs/rivals/.setup-done: $(STAMP) benchmarks/rivals.txt scripts/setup_rivals.sh
	@scripts/setup_rivals.sh .venvs/rivals $(BIN)/python "$$(cat $(VENV)/java_home)"
	@touch $@

.PHONY: rivals-setup
rivals-setup: .venvs/rivals/.setup-done ## Install Flink, Pathway and DuckDB for the benchmarks, in an environment of their own

.PHONY: nexmark
nexmark: .venvs/rivals/.setup-done ## Nexmark's join queries beside Spark, Flink and Pathway (EVENTS=10000000)
	@$(SPARK) $(BIN)/python benchmarks/nexmark.py --events $(or $(EVENTS),10000000) $(ARGS)

.PHONY: rivals
rivals: .venvs/rivals/.setup-done ## The stream-stream join beside Flink and Pathway
	@$(SPARK) $(BIN)/python benchmarks/rivals.py $(ARGS)

.PHONY: figures
figures: $(STAMP) ## Write the figures of README and docs from benchmarks/results/
	@$(BIN)/python benchmarks/figures.py

.PHONY: lab
lab: $(STAMP) ## Reproduce the papers' experiments at small scale; figures, verdicts and page go to docs/lab/
	@$(BIN)/watersmeet lab run all --scale small
	@$(BIN)/watersmeet lab report
