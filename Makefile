# Every target makes and fills .venv by itself; nothing else has to be installed first but Python 3.11+ and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test check fix docs golden integrations dist dist-smoke conformance lint-deploy bench lock system clean

demo: $(VENV)/ready
	@BIN=$(BIN) bash examples/demo.sh

# One worker more than there are cores: many tests wait for processes and servers.
# What a browser showed in them is kept in artefacts/.
test: $(VENV)/ready-dev system dist-smoke integrations
	PAIR_ARTEFACTS="$${PAIR_ARTEFACTS:-artefacts}" $(BIN)/python -m pytest -n $$(( $$(nproc) + 1 )) --dist worksteal

check: $(VENV)/ready-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python docs/check_words.py
	$(BIN)/hadolint deploy/Dockerfile

# The linter of compose files comes from npm, so it is not part of check.
lint-deploy: $(VENV)/ready-dev
	npx --yes dclint@3.1.0 deploy/compose.yaml

fix: $(VENV)/ready-dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(VENV)/ready-dev
	$(BIN)/python docs/generate.py

# Records what tests/flow/test_surface.py compares: look at the difference before you commit it.
golden: $(VENV)/ready-dev
	cd tests && ../$(BIN)/python -m support.surface

# The suites of LangChain, LlamaIndex and Haystack, against a local KB and a server.
integrations: $(VENV)-integrations/ready
	cd integrations && ../$(VENV)-integrations/bin/python -m pytest -n 2 --dist loadscope

# The wheel and the source distribution.
dist: $(VENV)/ready-dev
	rm -rf dist
	$(BIN)/python -m hatchling build

# The wheel alone, in an empty environment: install, sync and ask.
dist-smoke: dist
	BIN=$(BIN) bash tests/support/smoke.sh

# The official conformance suite of MCP, against a real server. It comes from npm, so it is not part of test.
conformance: $(VENV)/ready-dev
	cd tests && ../$(BIN)/python -m support.conformance

# The engines that we compare ourselves with are installed here, and nowhere else.
# TEXTS=FILE.jsonl (title, text) searches real texts and not made-up ones.
# CORPUS=FOLDER (corpus.jsonl) measures how much more workers help.
# JUDGED=FOLDER measures quality too, on the judged sets in that folder.
bench: $(VENV)/ready-dev $(VENV)-bench/ready system
	$(BIN)/python benchmarks/sources.py
	$(BIN)/python benchmarks/packages.py
	$(BIN)/python benchmarks/crawl.py
	$(BIN)/python benchmarks/sync.py
	$(BIN)/python benchmarks/librarians.py
	$(BIN)/python benchmarks/serving.py
	$(BIN)/python benchmarks/page.py
	$(VENV)-bench/bin/python benchmarks/engine.py $(if $(TEXTS),--texts $(TEXTS))
	$(VENV)-bench/bin/python benchmarks/retrieval.py $(if $(TEXTS),--texts $(TEXTS))
	$(BIN)/python benchmarks/scale_reading.py $(if $(TEXTS),--texts $(TEXTS))
	$(if $(CORPUS),$(BIN)/python benchmarks/scale.py $(CORPUS))
	$(if $(JUDGED),$(BIN)/python benchmarks/answers.py $(JUDGED))
	$(if $(JUDGED),$(BIN)/python benchmarks/quality.py $(JUDGED),@echo "quality is measured on judged sets: make bench JUDGED=FOLDER")
	$(if $(JUDGED),$(BIN)/python benchmarks/fusion.py $(JUDGED))

# Exact versions with hashes and without any index address. They are installed with --no-deps, because pip otherwise
# looks at newer releases of packages that are named with an extra, and refuses those without a hash.
lock: $(VENV)/ready-dev
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" pyproject.toml --all-extras --group dev -c requirements.lock -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" pyproject.toml --extra s3 --extra redis --extra documents --extra code --extra otel --group image -c requirements-dev.lock -o deploy/requirements.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" pyproject.toml --group integrations -c requirements.lock -o requirements-integrations.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" pyproject.toml --all-extras --group dev --group bench -c requirements-dev.lock -o requirements-bench.lock

# Programs that the tests and benchmarks run against for real. At run level 1 none of them is started as a service.
system:
	@PATH="$$PATH:/usr/sbin"; missing=""; for program in git curl strace chromium redis-server nginx minisign; do command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	if [ -n "$$missing" ]; then \
	  sudo=""; [ "$$(id -u)" = 0 ] || sudo=sudo; \
	  $$sudo apt-get update -qq && $$sudo env RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $$missing; \
	fi

$(VENV)/python-made:
	$(PYTHON) -c 'import sys; sys.exit("pair needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/ready: $(VENV)/python-made requirements.lock pyproject.toml
	$(PIP) install --quiet --no-deps --require-hashes -r requirements.lock
	$(PIP) install --quiet --no-deps --editable .
	@touch $@

$(VENV)/ready-dev: $(VENV)/ready requirements-dev.lock
	$(PIP) install --quiet --no-deps --require-hashes -r requirements-dev.lock
	@touch $@

$(VENV)-integrations/ready: requirements-integrations.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)-integrations
	$(VENV)-integrations/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r requirements-integrations.lock
	$(VENV)-integrations/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --editable .
	@touch $@

$(VENV)-bench/ready: requirements-bench.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)-bench
	$(VENV)-bench/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r requirements-bench.lock
	$(VENV)-bench/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --editable .
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-bench $(VENV)-integrations .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
