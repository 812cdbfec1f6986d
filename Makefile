# `make help` lists what there is. Everything is set up on the way: a virtual environment in .venv, and a control plane in the cache.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python
PYTEST := $(BIN)/pytest

.DEFAULT_GOAL := help
BASE ?= HEAD
ROLES ?= webhook timekeeper extender sidecar
PREFIX ?= bursar
.PHONY: help demo up quick test all coverage test-versions check bench bench-compare soak mutants docs images images-lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

$(VENV)/.ready: setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Bursar needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another with: make PYTHON=python3.12 ...")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is missing; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "setting up the virtual environment in $(VENV) (about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@for pause in 10 60 no; do \
	  $(RUN) -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-compile -c constraints.txt -e '.[dev,docs]' && exit 0; \
	  [ $$pause = no ] || { echo "the Python packages could not be installed; trying again in $$pause s" >&2; sleep $$pause; }; \
	done; echo "the Python packages could not be installed; is the package index reachable?" >&2; exit 1
	@touch $@

demo: $(VENV)/.ready ## run the main job on a real control plane, step by step, and check each step
	@$(RUN) -m deploy.local demo

up: $(VENV)/.ready ## start a new cluster with the demo's nodes and budgets, and follow the decisions until Ctrl-C
	@$(RUN) -m deploy.local up

quick: $(VENV)/.ready ## lint, types, contracts and the pure tests, in about two minutes
	@$(RUN) -m tests.run --quick

test: $(VENV)/.ready ## what a change must pass before it is sent: checks, and one test on a cluster for each capability
	@$(RUN) -m tests.run

all: $(VENV)/.ready ## everything: also PostgreSQL, a real node, other projects' programs, every test on a cluster
	@$(RUN) -m tests.run --all

coverage: $(VENV)/.ready ## the lines and branches that tests pass; fails below its floor
	@$(RUN) -m tests.run --coverage

check: $(VENV)/.ready ## lint, types, import contracts and growth alone
	@$(RUN) -m tests.run --check

test-versions: $(VENV)/.ready ## what depends on Kubernetes' version, on each older one that is supported; each is built once
	@$(RUN) -m tests.run --versions

bench: $(VENV)/.ready ## measure; tables on the screen, JSON under .bench; PEER=gas=PATH: beside that extender
	@$(RUN) -m tests.bench --peer "$(PEER)"

bench-compare: $(VENV)/.ready ## what operations cost beside another commit, BASE=<ref>; fails where more than a tenth worse
	@$(RUN) -m tests.bench.cost --base "$(BASE)"

soak: $(VENV)/.ready ## the next slice, 20 minutes, of the larger profiles of the same tests; call it until nothing is left
	@$(RUN) -m tests.run --soak

soak-day: $(VENV)/.ready ## a busy cluster's day in two hours; DAY="--minutes 6 --pods 1500 --nodes 60" is a small one
	@$(RUN) -m tests.day $(DAY)

mutants: $(VENV)/.ready ## the next slice, 20 minutes, of the table of mutants; BASE=<ref>: of functions that differ from it
	@$(RUN) -m tests.mutants $(if $(filter-out file,$(origin BASE)),--base "$(BASE)")

docs: $(VENV)/.ready ## build the documentation as a site in build/site
	@$(RUN) -m deploy.site build/site

images: ## the images of the last commit, by buildah, podman or docker; ROLES, PREFIX and OPTIONS choose which, their names, and the builder's options
	@builder=$$(command -v buildah || command -v podman || command -v docker) || { echo "images are built by buildah, podman or docker: install one of them" >&2; exit 1; }; \
	checkout=$$(mktemp -d); trap 'rm -rf "$$checkout"' EXIT; git archive HEAD | tar -x -C "$$checkout"; \
	export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct); \
	case $$builder in *docker) time=();; *) time=(--timestamp "$$SOURCE_DATE_EPOCH");; esac; \
	version=$$(sed -n 's/^appVersion: *"\?\([^"]*\)"\?$$/\1/p' deploy/chart/Chart.yaml); \
	for role in $(ROLES); do \
	  "$$builder" build "$${time[@]}" --build-arg "SOURCE_DATE_EPOCH=$$SOURCE_DATE_EPOCH" --label "org.opencontainers.image.version=$$version" --label "org.opencontainers.image.revision=$$(git rev-parse HEAD)" \
	    $(OPTIONS) --target "$$role" --tag "$(PREFIX)/$$role:$$version" --file "$$checkout/deploy/Containerfile" "$$checkout"; \
	done

images-lock: ## the hashes of what the images install, at the versions of constraints.txt, by uv
	@lock() { uv pip compile --quiet --generate-hashes --no-annotate --no-header --python-version 3.11 --python-platform linux --constraints constraints.txt --output-file "deploy/requirements/$$1.txt" "$${@:2}"; }; \
	lock webhook --extra webhook setup.cfg; \
	lock timekeeper --extra timekeeper setup.cfg; \
	lock extender --extra scheduler setup.cfg; \
	lock sidecar --extra node --extra sidecar setup.cfg; \
	lock build - <<<setuptools

clean: ## remove what the other targets made in the checkout
	@rm -rf $(VENV) .bench .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* .mutants build dist *.egg-info
