# What a developer types. `make up` installs what it runs into .venv-up, and everything else is installed into .venv, each
# from a lock. Nothing else on the machine is touched, except that `make up` and `make test` install Debian's Prometheus and
# Alertmanager where they are missing and that is allowed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What `make up` runs: a sixth of the development tools.
UP_VENV := .venv-up
UP_STAMP := $(UP_VENV)/.installed
# What builds the documentation's site: no test needs it.
DOCS_VENV := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.installed
# The training frameworks take 7 GB on Linux, where PyTorch comes with CUDA; 0 leaves them out, and their tests skip.
STALLSCOPE_FRAMEWORKS ?= 1
# How many tests run at once, each file's own one after the other; what compares times runs in pairs, and alone what takes the
# whole machine.
JOBS ?= 4
# What `make matrix` checks with.
PYTHONS ?= python3.10 python3.11 python3.12 python3.13 python3.14
# Tests that start no server, browser or framework.
UNIT := $(wildcard tests/test_*.py) $(addprefix tests/,alerting/test_routes.py analysis capacity catalogue clients collectors \
  common doctor drivers grafana/test_dashboard_lint.py grafana/test_lint.py hangs intake owners protocol report sampling simulation \
  terminal view web)
# Tests that take long, install packages, or need a training framework, besides those marked nightly.
LONG := $(addprefix tests/,catalogue/test_new_cause.py cli/test_training_endings.py deploy/test_systemd.py \
  end_to_end/test_fault_reaches_webhook.py end_to_end/test_lost_gpu.py end_to_end/test_memory_ceiling.py intake/test_fuzz.py \
  packaging prometheus_examples rules/test_hours.py scenarios/test_score.py shim/integrations shim/test_loops.py)
# 0 leaves out the tests marked nightly, unless ARGS selects tests.
NIGHTLY ?= 1
NOT_NIGHTLY = $(if $(ARGS),,$(if $(filter 0,$(NIGHTLY)), and not nightly))
# Reading only these saves reading all tests again.
marked = $(shell grep -rl --include='test_*.py' 'mark[.]$(1)' tests)
# A test process that crashes ends the run at once: pytest-xdist restarts it, and then waits forever. No tests is no failure.
# Tests that run make share no jobs with this one.
IN_PARALLEL = env MAKEFLAGS= $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --max-worker-restart=0
BESIDE = nice $(IN_PARALLEL) --numprocesses $(JOBS) -m "not timed and not alone$(NOT_NIGHTLY)" $(1) || [ $$? -eq 5 ]
PAIRS = $(IN_PARALLEL) --numprocesses 2 -m "timed$(NOT_NIGHTLY)" $(1) || [ $$? -eq 5 ]
AFTER = $(BIN)/python -m pytest -m "alone$(NOT_NIGHTLY)" $(1) || [ $$? -eq 5 ]
FRAMEWORKS := $(VENV)/.frameworks
COMPILED := $(VENV)/.compiled
SBOM := dist/stallscope-exporter.cdx.json
# The image's name in the packaged chart.
REPOSITORY ?= stallscope/stallscope-exporter
# The image's base: pinned is the Dockerfile's.
BASE ?= pinned
AS_ROOT := $(if $(filter-out 0,$(shell id -u)),sudo)
INSTALL := -m pip install --quiet --disable-pip-version-check --only-binary :all:
PIP := $(BIN)/python $(INSTALL)
# uv takes a third of pip's time for large packages. Where it reaches no index, such as a mirror that only pip's settings
# name, pip installs them.
UV_PIP := $(BIN)/uv pip install --quiet --python $(BIN)/python --only-binary :all:
# Most of what these packages contain is never imported; the rest is compiled at its first use.
UP_PIP := $(UP_VENV)/bin/python $(INSTALL) --no-compile
DOCS_PIP := $(DOCS_VENV)/bin/python $(INSTALL)
# Hundreds of tests start Python: it keeps compiled files, regardless of the environment. The frameworks are compiled at their
# first use, because most of their modules are never imported.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: up audit sbom check unit matrix coverage prepare prepare-all test test-ci test-all test-gpu test-beside test-pairs test-cluster lint bench score external generate lock clean help runbooks dashboard-links tools frameworks vendor screenshots docs release-versions release-build release-try image-tools release-image release-push release-sign release-dry-run

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

# A lock lists every package. Without --no-deps, pip refuses it once a package that another one requires with an extra, such as
# coverage[toml], has a newer release.
$(STAMP): pyproject.toml requirements-dev.lock
	$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed: install python3-venv" >&2; exit 1; }
	$(PIP) --no-deps --require-hashes --requirement requirements-dev.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $@

$(UP_STAMP): pyproject.toml deploy/requirements-up.lock
	@echo "installing Stallscope and the packages it needs into $(UP_VENV): 100 MB to download, once"
	@$(PYTHON) -m venv $(UP_VENV) || { echo "python3 -m venv failed: install python3-venv" >&2; exit 1; }
	@$(UP_PIP) --no-deps --require-hashes --requirement deploy/requirements-up.lock
	@$(UP_PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(DOCS_STAMP): deploy/requirements-docs.lock
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_PIP) --no-deps --require-hashes --requirement deploy/requirements-docs.lock
	touch $@

$(FRAMEWORKS): requirements-frameworks.lock $(STAMP)
	$(UV_PIP) --no-deps --require-hashes --requirement requirements-frameworks.lock || \
	  $(PIP) --no-compile --no-deps --require-hashes --requirement requirements-frameworks.lock
	touch $@

frameworks: $(FRAMEWORKS) ## install the training frameworks that the integrations are tested with

# On a new checkout, each of several test processes would otherwise compile all tests, while packages are downloaded now.
$(COMPILED): $(STAMP)
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null || true
	@touch $@

tools:
	sh tests/install_tools.sh

up: $(UP_STAMP) ## the whole stack on this machine: exporter, Prometheus, Alertmanager, a training job
	@echo "$(UP_VENV)/bin/stallscope up $(ARGS)"
	@exec $(UP_VENV)/bin/stallscope up $(ARGS)

prepare: $(STAMP) tools ## install what the tests need, without the frameworks
	$(BIN)/python -m tests.deploy.kubernetes_tools

prepare-all: prepare $(COMPILED) $(if $(filter-out 0,$(STALLSCOPE_FRAMEWORKS)),$(FRAMEWORKS)) ## install what all tests need

check: lint unit ## lint, types, and the tests that start no server

unit: $(STAMP) ## the tests that start no server
	$(call BESIDE,$(or $(ARGS),$(UNIT) --ignore=tests/intake/test_fuzz.py -m "not timed and not alone and not slow"))

matrix: ## `make unit` with each supported Python that is installed, in an environment of its own
	@for python in $(PYTHONS); do \
	  if $$python -c '' 2>/dev/null; then $(MAKE) unit PYTHON=$$python VENV=.venv-$$python || failed="$$failed $$python"; \
	  else echo "$$python: not installed, skipped"; fi; \
	done; [ -z "$$failed" ] || { echo "make unit fails with$$failed" >&2; exit 1; }

coverage: prepare ## list the lines of the package that `make test` does not execute
	rm -f .coverage
	-PYTEST_ADDOPTS='--cov --cov-append --cov-report=' $(MAKE) test
	$(BIN)/coverage report

test: NIGHTLY := 0
test: prepare ## the tests with real Prometheus, Alertmanager, Chromium and the stand-in driver library
	$(call BESIDE,$(LONG:%=--ignore=%) $(ARGS))
	$(call PAIRS,$(or $(ARGS),$(filter-out $(LONG) $(LONG:%=%/%),$(call marked,timed))))
	$(if $(ARGS),$(call AFTER,$(ARGS)))

test-all: prepare-all ## every test: also those marked nightly, which take long
	$(MAKE) --jobs=2 --keep-going test-beside test-pairs
	$(call AFTER,$(or $(ARGS),$(call marked,alone)))

test-ci: ## what CI runs: also with training frameworks, built packages and the score of the diagnosis
	$(MAKE) test-all NIGHTLY=0

# What compares times mostly waits, and comes first where both want a CPU.
test-beside:
	$(call BESIDE,$(ARGS))

test-pairs:
	$(call PAIRS,$(or $(ARGS),$(call marked,timed)))

test-gpu: $(STAMP) ## the tests on a real NVIDIA GPU; skipped without a driver (to record a GPU: tests/captures)
	$(BIN)/python -m pytest -m hardware -rs tests/hardware $(ARGS)

test-cluster: $(STAMP) ## our steps in a real cluster: make test-cluster KUBECONFIG=FILE IMAGE=REPOSITORY:TAG; skipped without
	KUBECONFIG=$(KUBECONFIG) IMAGE=$(IMAGE) HELM_FLAGS="$(HELM_FLAGS)" $(BIN)/python -m tests.deploy.cluster

lint: $(STAMP) ## style, types and the word list of tests/language.yml
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.language

bench: $(STAMP) tools ## compare the cost with other exporters; prints the tables of tests/benchmarks/RESULTS.md
	$(BIN)/python -m tests.benchmarks $(ARGS)

score: $(STAMP) tools ## how often the diagnosis is right: every labelled scenario; writes tests/scenarios/RESULTS.md
	$(BIN)/python -m tests.scenarios $(ARGS)

external: $(STAMP) tools ## replay trainings that were measured elsewhere, and compare with the published causes
	$(BIN)/python -m tests.external $(ARGS)

generate: $(STAMP) ## regenerate the committed files that are generated
	$(BIN)/python -m exporter.tools.metrics_reference
	$(BIN)/python -m exporter.tools.causes_reference
	$(BIN)/python -m alerts.alert_rules
	$(BIN)/python -m alerts.inhibition_rules
	$(BIN)/python -m grafana
	$(BIN)/python -m prometheus.canonical_rules
	$(BIN)/python -m deploy.generate
	$(BIN)/python -m tests.captures.golden
	$(BIN)/python -m tests.alerting.golden
	$(BIN)/python -m tests.rules.layers

runbooks: $(STAMP) ## point all links to runbooks to another address: make runbooks URL=http://HOST:19400/runbooks
	@test -n "$(URL)" || { echo "make runbooks: URL: missing; name the folder of the runbooks, such as \
http://HOST:19400/runbooks of an exporter" >&2; exit 2; }
	@old=$$($(BIN)/python -c 'from stallscope.common.bundle import RUNBOOKS; print(RUNBOOKS)'); \
	grep -rlF "$$old" alerts deploy exporter/stallscope grafana prometheus | xargs sed -i "s#$$old#$(URL:/=)#g"

dashboard-links: ## write Grafana's address into the alerts' dashboard_url: make dashboard-links URL=https://grafana.example.org
	@test -n "$(URL)" || { echo "make dashboard-links: URL: missing; name the address of Grafana, such as \
https://grafana.example.org" >&2; exit 2; }
	@grep -rl '/d/stallscope-' alerts --include=*.yml --include=alert_rules.py > .links
	@grep -rl 'dashboard_url:.*/d/stallscope-' deploy --include=*.yaml >> .links || true
	@xargs sed -i -E 's#(^|["\x27[:space:]])[^"\x27[:space:]]*/d/stallscope-#\1$(URL:/=)/d/stallscope-#g' < .links
	@rm .links
	@grep -rlF 'https://grafana.example.org{{ . }}' alerts deploy | xargs -r sed -i 's#https://grafana.example.org{{ . }}#{{ . }}#'

sbom: $(STAMP) ## list what the image installs, as CycloneDX JSON: dist/stallscope-exporter.cdx.json
	mkdir -p $(dir $(SBOM))
	$(BIN)/cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml --output-file $(SBOM) \
	  deploy/requirements-exporter.lock

audit: $(STAMP) ## look up known vulnerabilities of the locked packages; skipped with a message if no database is reachable
	$(BIN)/python -m deploy.audit $(ARGS)

screenshots: $(STAMP) tools ## take the README's screenshots of the status page and of a report again; needs Chromium
	$(BIN)/python -m tests.browser.screenshots

vendor: $(STAMP) ## the shim as one file to copy: dist/stallscope_shim.zip
	$(BIN)/python -m exporter.tools.shim_zip

docs: $(DOCS_STAMP) ## the documentation as a site: build/site
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --clean --config-file deploy/mkdocs.yml

release-versions: $(STAMP) ## check that all places state one version, and TAG=v0.1.0 if it is given
	$(BIN)/python -m deploy.release versions --tag "$(TAG)"

release-build: prepare docs ## every artifact of a release: dist/
	$(BIN)/python -m deploy.release build --repository "$(REPOSITORY)"

release-try: prepare ## install each artifact of dist/ as a user does, and check its size
	$(BIN)/python -m deploy.release try

image-tools: # a base that stands in for the Dockerfile's is made by mmdebstrap
	@command -v buildah && command -v mmdebstrap || { $(AS_ROOT) apt-get -qq update && \
	  $(AS_ROOT) apt-get -qq install -y --no-install-recommends buildah mmdebstrap; }

release-image: $(STAMP) image-tools ## the image of this machine's architecture, tried: dist/image/ (BASE=any: without a registry too)
	$(BIN)/python -m deploy.image build --base "$(BASE)"
	$(BIN)/python -m deploy.image try

release-push: ## publish the images of dist/image/ and the chart: make release-push REGISTRY=ghcr.io/OWNER/NAME
	$(PYTHON) -m deploy.image push --registry "$(REGISTRY)" $(ARGS)

release-sign: ## sign what was pushed, by digest, with cosign: make release-sign REGISTRY=ghcr.io/OWNER/NAME
	$(PYTHON) -m deploy.image sign --registry "$(REGISTRY)"

release-dry-run: ## build every artifact of a release and try it; nothing is published
	$(MAKE) release-build
	$(MAKE) release-try
	$(MAKE) release-image BASE=any

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-annotate --no-header --no-emit-index-url \
  --no-emit-find-links --generate-hashes

lock: ## renew the locks: development tools, frameworks, and what deploy/ installs
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	$(COMPILE) --group dev --extra all --extra otlp --extra stacks pyproject.toml -o requirements-dev.lock
	$(COMPILE) --group frameworks --constraint requirements-dev.lock pyproject.toml -o requirements-frameworks.lock
	$(COMPILE) --constraint requirements-dev.lock --extra exporter --extra stacks pyproject.toml \
	  -o deploy/requirements-exporter.lock
	printf 'editables\nhatchling\n' | $(COMPILE) --constraint requirements-dev.lock --extra all pyproject.toml - \
	  -o deploy/requirements-up.lock
	printf 'build\nhatchling\n' | $(COMPILE) --constraint requirements-dev.lock - \
	  -o deploy/requirements-build.lock
	$(COMPILE:3.10=3.11) --constraint requirements-dev.lock --group docs -o deploy/requirements-docs.lock

clean: ## remove what was built
	rm -rf $(VENV) $(UP_VENV) $(DOCS_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
