# Each target sets up what it needs; a machine with python3 (3.11 or newer) and make is enough.
# The environments live in the user's cache folder and are made once.

PYTHON ?= python3
SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
export PYTHONPATH := $(CURDIR)/src

# $(call env,NAME): the python of the environment made from requirements/NAME.txt
env = $$($(PYTHON) scripts/environment.py $(1))

.PHONY: help demo play test test-verl test-vllm check format bench bench-verl bench-vllm test-gpu clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo:  ## install, then train a tiny model on a game: one to three minutes
	@py=$(call env,demo)
	$$py -m turnwise train --fresh
	echo "The command turnwise and its viewer are not installed yet: pip install '.[view]'"

ENV ?= guess-number
play:  ## play a game yourself: make play ENV=grid-world
	@py=$(call env,play)
	$$py -m turnwise play $(ENV)

# The pages of the docs, and runs that take long.
LENGTHY := tests/docs tests/models/test_smollm2.py \
	tests/runs/test_doctor_real_runs.py tests/trainer/test_learning.py tests/trainer/test_notebook.py

test:  ## install, then run the tests
	@py=$(call env,dev)
	# Bytecode is kept, whatever the shell says: the tests start many processes, of which none
	# compiles all of turnwise again.
	export PYTHONDONTWRITEBYTECODE=
	$$py -m compileall -q src
	# Two processes with one thread each: with two each they would compete for the cores.
	OMP_NUM_THREADS=1 scripts/pytest_twice.sh $$py tests --ignore=tests/beside_agents --ignore=tests/beside_verl \
		--ignore=tests/beside_vllm --ignore=tests/browser --ignore=tests/examples --ignore=tests/faults \
		--ignore=tests/scale --ignore=tests/worlds \
		$(addprefix --ignore=,$(LENGTHY)) \
		-n 2 --dist loadfile --no-loadscope-reorder --durations 25

.PHONY: test-ray
test-ray:  ## episode workers and learners on a real Ray cluster, and sharded learners
	@py=$(call env,dev)
	# Some tests measure memory: torch for Arm gives it back only if its allocator is told to.
	export MIMALLOC_PURGE_DELAY=0 MIMALLOC_ARENA_EAGER_COMMIT=0
	OMP_NUM_THREADS=1 scripts/pytest_twice.sh $$py tests/scale -n 2 --dist loadfile

.PHONY: test-examples
test-examples:  ## examples/ in quick mode, the docs, a notebook, SmolLM2, runs the doctor diagnoses
	@py=$(call env,dev)
	export TURNWISE_THOROUGH=1 OMP_NUM_THREADS=1
	scripts/pytest_twice.sh $$py tests/examples $(LENGTHY) -n 2

.PHONY: test-faults
test-faults:  ## signals, kill -9, user code that hangs or fails; TURNWISE_THOROUGH=1: more kills
	@py=$(call env,dev)
	OMP_NUM_THREADS=1 scripts/pytest_twice.sh $$py tests/faults -n 2 --dist loadfile

.PHONY: test-view
test-view:  ## the run viewer in a real browser; installs Debian's chromium as root
	@py=$(call env,dev)
	if ! command -v chromium chromium-browser > /dev/null; then
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium
	  else
	    echo "This needs chromium: sudo apt-get install chromium (or your system's package)"
	    exit 1
	  fi
	fi
	scripts/pytest_twice.sh $$py tests/browser

.PHONY: test-agents
test-agents:  ## real clients of the gateway: SDKs, agent frameworks and a coding agent from npm
	@py=$(call env,agents)
	# The warnings are those of the clients.
	OMP_NUM_THREADS=1 scripts/pytest_twice.sh $$py tests/beside_agents --disable-warnings --durations 5

.PHONY: test-worlds
test-worlds:  ## environments of others, each in its own Python, and ours for their clients
	@py=$(call env,dev)
	OMP_NUM_THREADS=1 scripts/pytest_twice.sh $$py tests/worlds --durations 5

test-verl:  ## with VERL installed: its functions, its configuration and its own trainers
	@py=$(call env,verl)
	scripts/pytest_twice.sh $$py tests/beside_verl

# Tests of the learner's kernels, which run on a GPU or interpreted.
KERNELS := $(wildcard tests/learner/test_*kernels.py)

test-vllm:  ## real vLLM, CPU build, in its own environment; the learner's kernels, interpreted
	@py=$(call env,vllm)
	scripts/pytest_twice.sh $$py tests/beside_vllm
	# Its environment has Triton.
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 scripts/pytest_twice.sh $$py $(KERNELS) --disable-warnings

check:  ## lint, format and strict types; the viewer's JavaScript where there is npm
	@py=$(call env,dev)
	$$py -m ruff check .
	$$py -m ruff format --check .
	$$py -m mypy
	scripts/javascript/biome.sh ci

format:  ## format the code
	@py=$(call env,dev)
	$$py -m ruff check --fix .
	$$py -m ruff format .
	scripts/javascript/biome.sh check --write

# Freed memory stays with the process: otherwise page faults are a large and random part of short
# timings.
bench bench-verl: export MALLOC_MMAP_THRESHOLD_ = 1073741824
bench bench-verl: export MALLOC_TRIM_THRESHOLD_ = 8589934592
bench bench-verl: export MALLOC_TOP_PAD_ = 134217728

bench:  ## time the algorithms, the local engine and the parsers, and play the built-in games
	@py=$(call env,dev)
	$$py bench/algo.py
	$$py bench/players.py
	$$py bench/decode.py --batches 1 8 32 --deterministic
	$$py bench/parsers.py --inputs 20000
	$$py bench/overhead.py
	$$py bench/scale.py
	$$py bench/view.py

bench-verl:  ## time the algorithms, compared with VERL
	@py=$(call env,verl)
	$$py bench/algo.py

.PHONY: bench-verl-step
bench-verl-step:  ## time a start and a training step, compared with VERL's own trainer
	@py=$(call env,verl)
	$$py bench/verl_step.py

bench-vllm:  ## time the local engine, compared with the CPU build of vLLM
	@py=$(call env,vllm)
	$$py bench/decode.py --vllm --batches 1 8 32

.PHONY: bench-train
bench-train:  ## time a training step, compared with TRL and AgileRL, each in its own environment
	@py=$(call env,dev)
	$$py bench/train_step.py

test-gpu:  ## the algorithms, the local engine and the learner on a GPU; run it where torch sees one
	@$(PYTHON) bench/gpu/check.py
	$(PYTHON) bench/gpu/local_check.py
	$(PYTHON) -m pytest tests/inference/test_zoo.py tests/learner/test_gpu.py $(KERNELS) \
		tests/trainer/test_async_gpu.py

.PHONY: figures
figures:  ## write the figures of bench/results.jsonl into README.md and docs/
	@$(PYTHON) scripts/figures.py

.PHONY: docs newcomer
docs:  ## build the documentation into build/site, readable offline
	@py=$(call env,docs)
	NO_MKDOCS_2_WARNING=1 $$py -m mkdocs build --strict
	echo "build/site/index.html (the search needs a server: $(PYTHON) -m http.server -d build/site)"

newcomer:  ## run every command of the tutorial in a fresh clone and environment
	@tests/newcomer.sh

clean:  ## remove caches of this checkout (not the environments)
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
