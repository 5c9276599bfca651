# make demo: build, verify and run a sample.   make test: everything that CI checks.   make help: the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORK := build
JOBS ?= 2

# Tests start hundreds of processes: without files of bytecode each compiles packager anew.
unexport PYTHONDONTWRITEBYTECODE
PYTEST = $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --durations 10 --durations-min 0.1

DIGITS := $(WORK)/digits.so
C_FILES = $(shell find runtime_stub samples examples tests -name '*.[ch]' -o -name '*.cpp' -o -name '*.hpp')

.DEFAULT_GOAL := help
.PHONY: help demo test env lint lint-types lint-python lint-imports lint-c format fast slow tests thorough lock dist site clean

# $(call timed,NAME,COMMAND): run a command and say how long it took.
timed = @echo "== $(1)"; start=$$(date +%s); $(2) && echo "== $(1): $$(($$(date +%s) - start)) s"

help:
	@echo "make demo     build, verify and run the digits sample, and print its accuracy"
	@echo "make test     install what the tests need, then lint, then fast and slow tests in one session"
	@echo "make fast     the tests that take seconds      make slow    the others"
	@echo "make thorough more of the same as some slow tests: before a release"
	@echo "make lint     ruff, mypy, lint-imports, clang-format   make format  ruff and clang-format, in place"
	@echo "make dist     the wheel and the sdist, checked as the index would"
	@echo "make site     the documentation as pages with a search, in $(WORK)/site"
	@echo "make lock     pin all dependencies anew        make clean   remove what these commands made"

demo: $(VENV)/build.stamp
	mkdir -p $(WORK)
	$(BIN)/packager build samples/digits/digits.onnx -o $(DIGITS) --dim n=1:64 --golden 0
	$(BIN)/packager verify $(DIGITS) --run
	$(BIN)/python samples/digits/run.py $(DIGITS)

test:
	$(call timed,environment,$(MAKE) --no-print-directory env)
	$(call timed,lint,$(MAKE) --no-print-directory -j $(JOBS) -O lint)
	$(call timed,tests,$(MAKE) --no-print-directory tests)

env: $(VENV)/test.stamp

# Of several tools, which -j runs at once.
lint: lint-types lint-python lint-imports lint-c
lint-types: $(VENV)/test.stamp
	$(BIN)/mypy
lint-python: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
lint-imports: $(VENV)/test.stamp
	$(BIN)/lint-imports
lint-c: $(VENV)/test.stamp
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)

format: $(VENV)/test.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)

fast: $(VENV)/test.stamp
	$(PYTEST) -m "not slow"

slow: $(VENV)/test.stamp
	$(PYTEST) -m "slow and not thorough"

# Both in one session, which collects, imports TVM and builds what tests share once.
tests: $(VENV)/test.stamp
	$(PYTEST) -m "not thorough"

thorough: $(VENV)/test.stamp
	$(PYTEST) -m thorough

# The environments. A stamp is as new as the lock file that its environment was made from.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11; hint: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/build.stamp: requirements-build.lock pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements-build.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# The test lock has all of the build lock. Its pins are complete: nothing is resolved, torch's requirements apart. pip
# unpacks with one core: torch alone, a third of the files, is unpacked beside the rest, and what it requires comes last.
$(VENV)/test.stamp: requirements-test.lock requirements-build.lock pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps $(TORCH) & torch=$$!; \
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements-test.lock && \
	wait $$torch || { kill $$torch 2>/dev/null; exit 1; }
	$(BIN)/python -m pip install -q --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(VENV)/build.stamp $@

# Every file that an index may serve for a pin is named by its hash; pip refuses others. Except torch: which build of its
# version is installed (CPU alone, a CUDA version) is the machine's choice, and each has hashes of its own.
TORCH := torch==2.13.0
BACKEND := hatchling editables
# Pages are made with 3.11.5 or later, which Pymdown asks for.
HASH := $(WORK)/lock/build/bin/uv pip compile -q --universal --python-version 3.11 --no-deps --no-annotate --no-header
lock:
	rm -rf $(WORK)/lock && for name in test build docs; do $(PYTHON) -m venv $(WORK)/lock/$$name || exit; done
	$(WORK)/lock/test/bin/python -m pip install -q $(TORCH) -e '.[build,cutlass,test,samples,dev]'
	$(WORK)/lock/test/bin/python -m pip freeze --exclude-editable | sed '/^torch==/d' > $(WORK)/lock/test.txt
	$(WORK)/lock/build/bin/python -m pip install -q -c $(WORK)/lock/test.txt $(BACKEND) -e '.[build]'
	$(WORK)/lock/build/bin/python -m pip freeze --exclude-editable > $(WORK)/lock/build.txt
	$(WORK)/lock/build/bin/python -m pip install -q 'uv>=0.9,<1'
	{ echo "# What make test installs besides torch. Made by make lock for Python 3.11 on Linux x86-64."; \
	  $(HASH) --generate-hashes $(WORK)/lock/test.txt; } > requirements-test.lock
	$(WORK)/lock/docs/bin/python -m pip install -q '.[docs]'
	$(WORK)/lock/docs/bin/python -m pip freeze --exclude packager > $(WORK)/lock/docs.txt
	{ echo "# What make site installs. Made by make lock."; \
	  $(HASH:3.11=3.11.5) --generate-hashes $(WORK)/lock/docs.txt; } > requirements-docs.lock
	{ echo "# What make demo installs: part of requirements-test.lock. Made by make lock."; \
	  $(HASH) --generate-hashes $(WORK)/lock/build.txt; } > requirements-build.lock
	rm -rf $(WORK)/lock

# The pages alone: nothing of packager is imported. PACKAGER_SOURCE_URL is where links to other files lead.
site:
	rm -rf $(WORK)/docs-env && $(PYTHON) -m venv $(WORK)/docs-env
	$(WORK)/docs-env/bin/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements-docs.lock
	NO_MKDOCS_2_WARNING=1 $(WORK)/docs-env/bin/python -m mkdocs build -q --strict --site-dir $(abspath $(WORK))/site

dist:
	rm -rf dist $(WORK)/dist && $(PYTHON) -m venv $(WORK)/dist
	$(WORK)/dist/bin/python -m pip install -q --disable-pip-version-check 'build>=1.3,<2' 'twine>=6.1,<8'
	$(WORK)/dist/bin/python -m build -o dist .
	$(WORK)/dist/bin/python -m twine check --strict dist/*
	rm -rf $(WORK)/dist

clean:  # the environment too
	rm -rf $(WORK) dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
