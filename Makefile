# Everything happens in .venv/, which the first target that needs it creates.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DOCS_VENV  := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.installed
RAY_VENV   := .venv-ray
RAY_STAMP  := $(RAY_VENV)/.installed
TRAINING_VENV  := .venv-training
TRAINING_STAMP := $(TRAINING_VENV)/.installed

.DEFAULT_GOAL := help

$(STAMP): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sluice needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@echo "==> creating $(VENV) (locked, hash-checked packages)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@echo "==> compiling the inner loops"
	@$(BIN)/python -m optimizer.warm_up
	@$(BIN)/python -m simulations.warm_up
	@touch $(STAMP)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

.PHONY: try
try: $(STAMP) ## a recorded day of load, simulated: Sluice beside two other autoscalers (half a minute, builds nothing)
	@$(BIN)/sluice simulate simulations/scenarios/daily/scenario.yaml --policy sluice --policy hpa --policy static-peak --seeds 1 --out reports/try

.PHONY: demo
demo: $(STAMP) ## watch the operator rescale a live pipeline on a real Kubernetes (first time: builds it, ~8 min)
	@$(BIN)/sluice demo $(ARGS)

.PHONY: demo-speech
demo-speech: $(STAMP) ## watch the operator scale a real speech service: audio in, words out (first time: builds Kubernetes, ~8 min)
	@$(BIN)/sluice speech demo $(ARGS)

# Live servers in real time: what fails because the machine was busy with something else for a moment passes by itself.
# A lab with load takes about half a core, and more for moments: beside another one, the load is late on two slow cores.
tries = $(BIN)/python tests/support/second_tries.py
live = $(BIN)/pytest $(1) || { [ $$? -eq 1 ] && $(tries) note && $(BIN)/pytest $(1) -n 1 --last-failed; }

.PHONY: test
test: $(STAMP) browser ## everything CI runs: static checks and all tests but the long ones, in a browser and on the lab too
	@$(tries) start
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory docs
	@$(BIN)/pytest -n 2 --dist loadfile tests/browser
	@$(BIN)/sluice lab build --helm
	@$(BIN)/pytest -n 2 tests/charts
	@$(MAKE) --no-print-directory test-install ARGS='-m "not extended"'
	@$(call live,-n 2 --dist loadfile tests/integration -m "not (quiet or extended)")
	@$(call live,tests/integration tests/oracle tests/unit/simulations/lab -m quiet)
	@$(call live,tests/e2e -m "not extended")
	@$(call live,-n 2 --dist loadfile tests/faults -m "not extended")
	@$(tries) total

.PHONY: test-extended
test-extended: $(STAMP) browser ## the long tests that `test` leaves out, before a release (an hour)
	@$(tries) start
	@$(BIN)/pytest -n 2 -m extended $(addprefix --ignore=tests/,$(apart))
	@$(BIN)/sluice lab build --helm
	@$(MAKE) --no-print-directory test-install ARGS="-m extended"
	@$(call live,tests/e2e -m extended)
	@$(call live,-n 2 --dist loadfile tests/integration tests/faults -m extended)
	@$(tries) total

# Folders of tests that need more than this environment.
apart = integration e2e faults browser charts install keda karpenter ray ray_serve

.PHONY: check
check: $(STAMP) ## static checks and the tests that need neither browser, lab nor a quiet machine
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy & types=$$!; \
	 $(BIN)/pytest -n 2 -m "not (quiet or extended)" $(addprefix --ignore=tests/,$(apart)); \
	 tests=$$?; wait $$types && exit $$tests

.PHONY: test-faults
test-faults: $(STAMP) ## real servers under every fault: which promises hold, as a table (about 15 minutes)
	@$(BIN)/sluice lab build
	@$(if $(JSON),mkdir -p $(JSON))
	@PYTHONPATH=tests/support:tests/faults/harness $(BIN)/python tests/faults/matrix.py $(if $(JSON),--json $(JSON)/matrix.json) $(ARGS)

.PHONY: test-faults-full
test-faults-full: $(STAMP) ## the same with the cycles and durations of production
	@$(MAKE) --no-print-directory test-faults ARGS="--full $(ARGS)"

.PHONY: lease-rounds
lease-rounds: $(STAMP) ## three operators, a fault to the leader, 200 times: who wrote, by the audit log (20 to 65 minutes)
	@$(BIN)/sluice lab build
	@PYTHONPATH=tests/support:tests/faults/harness $(BIN)/python tests/faults/lease_rounds.py --rounds 200 $(ARGS)

.PHONY: test-keda
test-keda: $(STAMP) ## real KEDA follows the external scaler, on the lab (first time: builds KEDA, 15 minutes and more)
	@[ "$$(id -u)" = 0 ] || { echo "test-keda needs root: KEDA listens on all addresses, so it runs in a network namespace" >&2; exit 1; }
	@PYTHONPATH=tests/support $(BIN)/python -m keda_lab
	@unshare -n sh -c 'ip link set lo up && exec $(BIN)/pytest tests/keda'

.PHONY: test-karpenter
test-karpenter: $(STAMP) ## real Karpenter makes the lab's nodes and takes them away (first time: builds it, 4 minutes)
	@PYTHONPATH=tests/support $(BIN)/python -m karpenter_lab
	@unshare --net $$([ "$$(id -u)" = 0 ] || echo --map-root-user) \
	  sh -c 'ip link set lo up && exec $(BIN)/pytest tests/karpenter $(ARGS)'

# `ray stop` ends every process of Ray that it finds, and Ray binds all addresses: it must find only this one.
apart_from_all = unshare --net --pid --fork --mount-proc $$([ "$$(id -u)" = 0 ] || echo --map-root-user) sh -c

.PHONY: test-ray
test-ray: $(RAY_STAMP) ## simulated runs spread over a Ray cluster of this machine: the same bytes (first time: installs Ray, 1 GB)
	@$(apart_from_all) 'ip link set lo up && exec $(RAY_VENV)/bin/python -m pytest tests/ray $(ARGS)'

.PHONY: test-ray-serve
test-ray-serve: $(RAY_STAMP) ## a speech application on real Ray Serve under Sluice: scaled, drained, reset, refused (first time: installs Ray, 1 GB)
	@$(RAY_VENV)/bin/sluice lab build
	@$(apart_from_all) 'ip link set lo up && exec $(RAY_VENV)/bin/python -m pytest tests/ray_serve $(ARGS)'

.PHONY: race-ray-serve
race-ray-serve: $(RAY_STAMP) ## Sluice against Ray's own autoscaler on real Ray Serve: cost, and what users wait (25 minutes)
	@$(RAY_VENV)/bin/sluice lab build
	@$(apart_from_all) 'ip link set lo up && exec $(RAY_VENV)/bin/python -m simulations.speech.ray_serve.race $(ARGS)'

.PHONY: race
race: $(STAMP) ## Sluice against HPA and KEDA, live on the lab: three loads, three seeds (four hours; first time builds both)
	@$(BIN)/sluice lab build --rivals
	@unshare --net $$([ "$$(id -u)" = 0 ] || echo --map-root-user) \
	  sh -c 'ip link set lo up && for load in day bursts shortage; do \
	    $(BIN)/sluice race simulations/scenarios/race/$$load.yaml --out reports/race-$$load $(ARGS) || exit 1; done'

.PHONY: bench-diagnosis
bench-diagnosis: $(STAMP) ## which cause the diagnosis names for each incident, over seeds (ten minutes)
	@PYTHONPATH=tests/support $(BIN)/python tests/bench/bench_diagnosis.py $(ARGS)

.PHONY: incidents
incidents: $(STAMP) ## run the three incidents of docs/diagnosis.md on the reference service, and diagnose them (nine minutes)
	@folder=$$(mktemp -d); for name in queue memory entities; do \
	  $(BIN)/sluice lab run simulations/scenarios/incidents/$$name.yaml --report $$folder/$$name.json || exit 1; \
	  $(BIN)/sluice diagnose speech/captions --from-record $$folder/$$name.operator.jsonl || exit 1; \
	done

.PHONY: bench-live-diagnosis
bench-live-diagnosis: $(STAMP) ## the same on the lab, all incidents side by side (four minutes for each seed)
	@PYTHONPATH=tests/support $(BIN)/python tests/bench/bench_live_diagnosis.py $(ARGS)

.PHONY: speech-weights
speech-weights: $(TRAINING_STAMP) ## train the recogniser of the reference service again (first time: installs JAX, 650 MB; 20 minutes and more)
	@$(TRAINING_VENV)/bin/python -m simulations.speech.training $(ARGS)

$(TRAINING_STAMP): requirements-training.lock
	@echo "==> creating $(TRAINING_VENV) (locked, hash-checked packages)"
	@$(PYTHON) -m venv --clear $(TRAINING_VENV)
	@$(TRAINING_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-training.lock
	@touch $(TRAINING_STAMP)

$(RAY_STAMP): requirements-ray.lock pyproject.toml
	@echo "==> creating $(RAY_VENV) (locked, hash-checked packages)"
	@$(PYTHON) -m venv --clear $(RAY_VENV)
	@$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-ray.lock
	@$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(RAY_STAMP)

.PHONY: browser
browser: $(STAMP) ## find a Chromium for the tests of the report, or install Debian's (as root)
	@PYTHONPATH=tests/support $(BIN)/python -c 'from browser import find_browser; find_browser()' 2>/dev/null || \
	 { [ "$$(id -u)" = 0 ] && echo "==> installing chromium" && apt-get update -qq && \
	   DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || \
	 { echo "the tests of the report need Chromium: install it, or name one in SLUICE_BROWSER" >&2; exit 1; }

images = PYTHONPATH=tests/support $(BIN)/python -m images

.PHONY: image
image: $(STAMP) ## build the container images and check them in read-only containers without network (docs/image.md)
	@$(images) build
	@SLUICE_IMAGES=built $(BIN)/pytest tests/install/test_image.py -rP

.PHONY: test-install
test-install: $(STAMP) ## the images, and releases of the chart whose pods run from them: install, upgrade, takeover, uninstall (as root)
	@if [ "$$(id -u)" = 0 ] && { command -v podman || command -v apt-get; } >/dev/null; then \
	  $(BIN)/sluice lab build --helm && $(images) build && SLUICE_IMAGES=built $(BIN)/pytest tests/install -rP $(ARGS); \
	 else \
	  echo "==> not run: checks of the container images, and releases with pods from them (tests/install); they need root and podman"; \
	 fi

.PHONY: test-kubelet
test-kubelet: $(STAMP) ## the same releases with their pods run by a real kubelet and containerd, before a release of Sluice (as root)
	@if [ "$$(id -u)" = 0 ]; then \
	  $(BIN)/sluice lab build --helm && $(images) build --target operator && \
	  PYTHONPATH=tests/support:tests/install/harness $(BIN)/python -m kubelet_host && \
	  SLUICE_IMAGES=built SLUICE_PODS=kubelet unshare --net sh -c 'ip link set lo up && \
	    exec $(BIN)/pytest tests/install --ignore=tests/install/test_image.py -rP $(ARGS)'; \
	else \
	  echo "==> not run: releases with pods run by a kubelet and containerd (tests/install); they need root"; \
	fi

.PHONY: image-reproducible
image-reproducible: $(STAMP) ## build the operator's image twice without a cache: all but the machine code must be identical
	@$(images) compare

.PHONY: fmt
fmt: $(STAMP) ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: crds
crds: $(STAMP) ## regenerate crds/*.yaml from the models
	@$(BIN)/python -m controller.resources.schema crds
	@$(MAKE) --no-print-directory chart

.PHONY: chart
chart: ## renew what charts/sluice has of other folders: CRDs, roles, policies
	@cp crds/*.yaml charts/sluice/files/crds/
	@cp controller/kube/*.yaml charts/sluice/files/

.PHONY: dashboards
dashboards: $(STAMP) ## regenerate the Grafana dashboards and the alert rules of the chart
	@$(BIN)/python -m controller.monitoring.generate charts/sluice

# Results as JSON beside the tables: make bench-latency JSON=results
JSON ?=
bench = PYTHONPATH=tests/support $(BIN)/python tests/bench/$(1).py $(if $(JSON),--json $(JSON)/$(1).json) $(ARGS)

.PHONY: bench-latency
bench-latency: $(STAMP) ## how far the latency model is from independent event simulations, beside the textbooks
	@$(if $(JSON),mkdir -p $(JSON))
	@$(call bench,bench_latency)
	@$(call bench,bench_end_to_end)

.PHONY: bench-optimizer
bench-optimizer: $(STAMP) ## how good and how fast plans are, beside a MILP solver and other planners' rules
	@$(if $(JSON),mkdir -p $(JSON))
	@$(call bench,bench_optimizer)
	@$(call bench,bench_fleet)
	@$(call bench,bench_shortage)

.PHONY: bench-mixing
bench-mixing: $(STAMP) ## what free mixes of pools save, how long plans take, and how far the latency model is off for them
	@PYTHONPATH=tests/support $(BIN)/python tests/bench/bench_mixing.py $(ARGS)

.PHONY: bench-simulator
bench-simulator: $(STAMP) ## how fast the simulator is beside SimPy, and whether both give the same answer
	@$(if $(JSON),mkdir -p $(JSON))
	@$(call bench,bench_simulator)

.PHONY: bench-speech
bench-speech: $(STAMP) ## the reference service: laws, start, word errors, and 400 streams beside an echo (2 minutes)
	@$(if $(JSON),mkdir -p $(JSON))
	@$(call bench,bench_speech)

.PHONY: bench-robustness
bench-robustness: $(STAMP) ## Sluice with wrong service times, and with none: windows within the SLA and cost
	@$(if $(JSON),mkdir -p $(JSON))
	@$(call bench,bench_robustness)

.PHONY: bench-policies
bench-policies: $(STAMP) ## every autoscaler on three stated loads: cost, bound, share of windows within the SLA
	@$(if $(JSON),mkdir -p $(JSON))
	@$(call bench,bench_policies)

.PHONY: bench-foresight
bench-foresight: $(STAMP) ## what not knowing the load costs: Sluice on three stated loads beside itself, told the load
	@$(if $(JSON),mkdir -p $(JSON))
	@$(call bench,bench_foresight)

.PHONY: bench-money
bench-money: $(STAMP) ## where the money goes: the cost of Sluice on the stated loads, in parts that add up to the whole
	@$(if $(JSON),mkdir -p $(JSON))
	@$(call bench,bench_money)

.PHONY: bench-season
bench-season: $(STAMP) ## what a history of the demand is worth, and what a useless one costs
	@$(call bench,bench_season)

.PHONY: fidelity
fidelity: $(STAMP) ## the simulator against the lab: the same scenarios in both (about 20 minutes)
	@$(if $(JSON),mkdir -p $(JSON))
	@$(call bench,bench_fidelity)

.PHONY: bench-operator
bench-operator: $(STAMP) ## a cycle of 100, 1,000 and 5,000 pipelines on the lab's API server: time, memory, requests
	@$(BIN)/sluice lab build
	@$(if $(JSON),mkdir -p $(JSON))
	@$(call bench,bench_operator)

.PHONY: batching-table
batching-table: $(STAMP) ## simulate the table of latencies under batching again
	@$(BIN)/python -m simulations.engine.make_batching_table

.PHONY: docs
docs: $(DOCS_STAMP) ## build the site of docs/ into site/ and check every link (its packages are in an environment of their own)
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --clean
	@$(DOCS_VENV)/bin/python tests/support/site_links.py site

$(DOCS_STAMP): requirements-docs.lock
	@echo "==> creating $(DOCS_VENV) (locked, hash-checked packages)"
	@$(PYTHON) -m venv --clear $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $(DOCS_STAMP)

.PHONY: docs-renew
docs-renew: $(STAMP) ## renew what docs/ has of the code: quoted outputs, the list of reasons, the reference
	@PYTHONPATH=tests/support $(BIN)/python -m quoted_output
	@PYTHONPATH=tests/support $(BIN)/python -m reasons_document docs/reasons.md
	@PYTHONPATH=tests/support $(BIN)/python -m bounds_document
	@PYTHONPATH=tests/support $(BIN)/python -m metrics_document docs/metrics.md
	@PYTHONPATH=tests/support $(BIN)/python -m backtest_document docs/adoption.md
	@PYTHONPATH=tests/support $(BIN)/python -m reference_documents

picture = PYTHONPATH=tests/support $(BIN)/python -m browser reports/try/report.html

.PHONY: pictures
pictures: try browser ## take the pictures of the report in docs/images again, from what `make try` runs (a minute)
	@$(picture) docs/images/report.png --width 1400 --height 1130
	@$(picture) docs/images/report-phone.png --width 400 --height 1150
	@PYTHONPATH=tests/support $(BIN)/python -m pictured reports/try/results.json docs/images/report.json

resolve = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

.PHONY: lock
lock: $(STAMP) ## resolve the dependencies again and rewrite the lock files
	@$(resolve) --extra keda pyproject.toml -o requirements.lock
	@$(resolve) --extra keda --extra lab --extra simulate --extra speech --group dev pyproject.toml -o requirements-dev.lock
	@$(resolve) --extra keda --extra simulate -c requirements.lock pyproject.toml -o requirements-simulate.lock
	@$(resolve) --extra ray --extra simulate --extra speech --extra keda --extra lab --group dev --group ray-serve -c requirements-dev.lock pyproject.toml -o requirements-ray.lock
	@$(resolve) --group image -o requirements-build.lock
	@$(resolve) --group docs -o requirements-docs.lock
	@$(resolve) --group training -c requirements-dev.lock -o requirements-training.lock

.PHONY: clean
clean: ## remove the environment and tool caches (the lab's binaries stay in the user's cache)
	@rm -rf $(VENV) $(DOCS_VENV) $(RAY_VENV) $(TRAINING_VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
