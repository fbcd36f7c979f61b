# The two most important commands: `make run` starts a broker, `make test` runs all tests. All installed files are in
# .venv and .cache.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 9092
RUNS ?= 3
SEEDS ?= 1000
FIRST ?= 0
BROKERS ?= 3
REPLICAS ?= 3
JOBS ?= 1
MINUTES ?= 20
TARGET ?= kpybroker
KAFKA ?= 2
RUNTIME = $(BIN)/pip install --quiet --editable
NEXT_PYSPARK := 4.3.0
NEXT_SPARK := .cache/pyspark-$(NEXT_PYSPARK)
SPARK_TESTS := $(wildcard compat_tests/test_spark*.py compat_tests/test_example_*.py)
ARCHIVE_TESTS := $(wildcard compat_tests/test_*archive*.py)

# The tests start hundreds of processes. Without byte code, each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test check lint wheels compiled-test compiled-compat compat spark-full takeover pages demo bench bench-quick bench-plot oracle kill chaos sim sim-coverage mutants clean prerequisites

run: $(VENV)/runtime
	$(BIN)/python -m kpybroker dev --port $(PORT)

test: prerequisites lint                  ## everything, on kpybroker
	$(BIN)/python -m pytest tests -n auto
	$(BIN)/python -m pytest compat_tests -m "not full" --target kpybroker
	$(BIN)/python -m pytest recipes

check: $(VENV)/ready lint                 ## only the fast tests: under a minute
	$(BIN)/python -m pytest tests -n auto -m 'not slow'

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32

wheels: $(VENV)/ready                     ## a wheel for this Python in dist/, with compiled modules
	KPYBROKER_COMPILE=1 $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

compiled-test: wheels                     ## the fast tests on the compiled build
	$(BIN)/python -m tests.compiled_run dist

compiled-compat: prerequisites wheels     ## the compat tests on the compiled build
	$(BIN)/python -m tests.compiled_run dist compat_tests -m "not full" --target kpybroker

oracle: prerequisites                     ## the same compat tests, on Apache Kafka
	$(BIN)/python -m pytest compat_tests -m "not full" --target kafka

spark-full: prerequisites $(NEXT_SPARK)/ready   ## every Spark test with two PySpark versions, on kpybroker and on Apache Kafka
	$(BIN)/python -m pytest $(SPARK_TESTS) $(ARCHIVE_TESTS) --target kpybroker
	$(BIN)/python -m pytest $(SPARK_TESTS) $(ARCHIVE_TESTS) --target kafka
	KPYBROKER_SPARK_JARS=$$($(BIN)/python -m oracle.jars) $(NEXT_SPARK)/bin/python -m pytest $(SPARK_TESTS) --target kpybroker
	KPYBROKER_SPARK_JARS=$$($(BIN)/python -m oracle.jars) $(NEXT_SPARK)/bin/python -m pytest $(SPARK_TESTS) --target kafka

takeover: prerequisites                   ## kpybroker and Apache Kafka in turn on the same directories, two cycles
	$(BIN)/python -m pytest compat_tests/test_takeover*.py

pages: prerequisites                      ## every code block of every page, and the error messages of clients
	$(BIN)/python -m pytest tests/test_pages.py $(wildcard compat_tests/test_*_page.py)

demo: prerequisites                       ## 336,776 flights through Kafka and Spark
	$(BIN)/python -m spark_examples.flights_demo

bench: prerequisites wheels               ## compare the compiled build with Apache Kafka, in the same run
	$(BIN)/python -m bench.compiled dist --runs $(RUNS)

bench-quick: prerequisites wheels         ## the loads that matter most; adds a line to the history
	$(BIN)/python -m bench.compiled dist --quick --runs $(RUNS)

bench-plot: $(VENV)/ready                 ## draw bench/results/history.svg: each row over the commits
	$(BIN)/python -m bench.plot

kill: $(VENV)/ready                       ## 200 rounds of kill -9
	$(BIN)/python -m compat_tests.kill_rounds --rounds 200

chaos: prerequisites                      ## faults on three real nodes: make chaos MINUTES=20 TARGET=kpybroker SECURE=--secure, TARGET=mixed KAFKA=2
	$(BIN)/python -m chaos --minutes $(MINUTES) --target $(TARGET) --kafka $(KAFKA) $(SECURE)

sim: $(VENV)/ready                        ## seeds of simulated faults: make sim SEEDS=1000 FIRST=0
	$(BIN)/python -m kpybroker.sim --seeds $(SEEDS) --first $(FIRST) --brokers $(BROKERS) --replicas $(REPLICAS) --jobs $(JOBS)

sim-coverage: $(VENV)/ready               ## the share of the lines of replication, raft and groups that 200 seeds execute
	$(BIN)/python -m kpybroker.sim.covered

mutants: $(VENV)/ready                    ## deliberately broken brokers: checks that a seed catches each
	$(BIN)/python -m kpybroker.sim.mutants

prerequisites: $(VENV)/ready
	sh oracle/prerequisites.sh

# The dependencies of a broker, without the dependencies of the tests. RE2 has no wheel for musl, so it is omitted on
# musl.
$(VENV)/runtime: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kpybroker needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 run")'
	$(PYTHON) -m venv $(VENV)
	$(RUNTIME) '.[regex]' --only-binary google-re2 || $(RUNTIME) .
	touch $@

$(VENV)/ready: $(VENV)/runtime
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

$(NEXT_SPARK)/ready: pyproject.toml
	$(PYTHON) -m venv $(NEXT_SPARK)
	$(NEXT_SPARK)/bin/pip install --quiet --editable '.[compat]' pyspark==$(NEXT_PYSPARK)
	touch $@

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
