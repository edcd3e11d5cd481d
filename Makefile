# The commands a developer needs. `make` alone lists them.

PYTHON := $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
DATA ?= data
# A line ending in «## text» is shown by `make help`.

.PHONY: $(shell sed -nE 's/^([a-z][a-z-]*):.*/\1/p' $(firstword $(MAKEFILE_LIST)))
.DEFAULT_GOAL := help

help:  ## list these commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26

demo: $(VENV)/.installed  ## compare, plan and run strategies on this machine, three minutes; writes demo/report.html
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh demo

# Tests start hundreds of processes: they share compiled modules even where PYTHONDONTWRITEBYTECODE is set.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test: $(VENV)/.installed  ## run all tests
	$(PYTEST) -n 3 --dist worksteal

test-fast: $(VENV)/.installed  ## run the tests that start no processes, check no paper's claims and take no seconds
	$(PYTEST) -n 2 --dist worksteal -m 'not processes and not paper and not slow'

check: $(VENV)/.installed  ## format, lint, types, layers, links and README examples
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest --durations=0 tests/test_layers.py
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.check_readme

format: $(VENV)/.installed  ## rewrite the sources in the house format
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench-simulator: $(VENV)/.installed  ## measure the simulator's speed
	$(BIN)/python benchmarks/simulator.py --out benchmarks/results/simulator.json

bench-simulator-cuda: $(VENV)/.installed  ## measure the simulator on a CUDA GPU, about 8 minutes; DATA=… names the folder with CIFAR-10
	$(BIN)/python -m benchmarks.simulator_cuda $(if $(DATA),--data $(DATA)) --out benchmarks/results/simulator_cuda.json

bench-compare: $(VENV)/.installed  ## measure tacit compare with one run at a time and with two, about 6 minutes
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/compare_jobs.py --out benchmarks/results/compare_jobs.json

bench-servers: $(VENV)/.installed  ## measure timing-only runs of the server strategies
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/server_speed.py --full --out benchmarks/results/server_speed.json

bench-messages: $(VENV)/.installed  ## measure messages between processes against bare pyzmq and gloo
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/messages.py --out benchmarks/results/messages.json

bench-peers: $(VENV)/.installed  ## measure step times beside DDP, PostLocalSGD, accelerate and torchft, about 20 minutes; needs root
	$(BIN)/python -m benchmarks.peers --install
	$(BIN)/python -m benchmarks.peers --out benchmarks/results/peers.json

bench-end-to-end: $(VENV)/.installed  ## measure loss after equal time at 100 Mbit/s, about 13 minutes; needs root; DATA=… names the folder with CIFAR-10
	$(BIN)/python -m benchmarks.end_to_end $(if $(DATA),--data $(DATA)) --out benchmarks/results/end_to_end.json

bench-gossip: $(VENV)/.installed  ## measure SwarmSGD's steps at 2, 4 and 8 peers on slow links and the bytes of an exchange, about 8 minutes; needs root
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.gossip_links

bench-hierarchy: $(VENV)/.installed  ## measure Hierarchical on two sites, 1 Gbit/s inside and 50 Mbit/s across, about 3 minutes; needs root
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.hierarchy

bench-compressed-step: $(VENV)/.installed  ## measure the processor time of compressed steps at 100 Mbit/s and 1 Gbit/s, about 5 minutes; needs root
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.compressed_step --out benchmarks/results/compressed_step.json

RUNS ?= build/fidelity
bench-fidelity: $(VENV)/.installed  ## measure step times of real runs beside predicted ones at nine places, about 15 minutes; needs root; RUNS=… keeps the real runs
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fidelity --folder $(RUNS)

bench-plan: RUNS = build/plan
bench-plan: $(VENV)/.installed  ## measure whether plans hold: time to a loss, winners, durations, drift, memory, a user's script, about 55 minutes; needs root; RUNS=… keeps the real runs; DATA=… names the folder with tinyshakespeare.txt.gz
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.plan $(if $(DATA),--data $(DATA)) --folder $(RUNS)

bench-time-to-accuracy: RUNS = build/time-to-accuracy
bench-time-to-accuracy: $(VENV)/.installed  ## measure seconds to an accuracy beside DDP, PowerSGD, LocalSGD and DiLoCo of others, about 75 minutes; needs root; RUNS=… keeps the runs; DATA=… names the folder with mnist/
	$(BIN)/python -m benchmarks.time_to_accuracy --install
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.time_to_accuracy $(if $(DATA),--data $(DATA)) --folder $(RUNS)

bench-kills: $(VENV)/.installed  ## kill runs at random moments while they write checkpoints and resume them, about 20 minutes; continues build/kills
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.kills --out benchmarks/results/kills.json

bench-chaos: $(VENV)/.installed  ## run every family with eight workers under drawn faults, about 8 minutes each; continues build/chaos; ENVIRONMENTS=… names the folder in which bench-peers has made torchft's
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.chaos $(if $(ENVIRONMENTS),--environments $(ENVIRONMENTS)) --out benchmarks/results/chaos.json

bench-cuts: $(VENV)/.installed  ## cut one of four workers off for 10 s and for 60 s, every family, about 50 minutes; needs root; continues build/chaos
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.chaos --cuts --out benchmarks/results/chaos.json

bench-ends: $(VENV)/.installed  ## lose workers in runs that end then: how soon all survivors know, and when no process is left, about 5 minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ended_runs --out benchmarks/results/ended_runs.json

bench-recovery: OUT = benchmarks/results/recovery.json
bench-recovery: $(VENV)/.installed  ## kill, stop and restart workers while they train, about 12 minutes on two idle cores
	rm -f $(OUT)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.recovery --out $(OUT)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.recovery --strategy "AllReduce()" --out $(OUT)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.recovery --strategy "CompressedGradient(compressor=TopK(fraction=0.1),feedback=EF21())" --out $(OUT)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.recovery --healthy --strategy "AllReduce()" --out $(OUT)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.recovery --seats 3 --faults 8 --numbers 11000000 --out $(OUT)

bench-server-pace: $(VENV)/.installed  ## measure updates per second of servers on four processes beside theory and simulator, about 4 minutes
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/server_pace.py --out benchmarks/results/server_pace.json

bench-compression: $(VENV)/.installed  ## measure the compressors' inner loops against a copy; on a CUDA GPU if one is here
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/compression.py --out benchmarks/results/compression.json

bench-papers: $(VENV)/.installed  ## measure what the papers claim; DATA=… names the folder with libsvm/a9a.bz2 and mushrooms.bz2
	$(BIN)/python -m benchmarks.papers.local_sgd $(if $(DATA),--data $(DATA))
	$(BIN)/python -m benchmarks.papers.adpsgd
	$(BIN)/python -m benchmarks.papers.ef21 $(if $(DATA),--data $(DATA))
	$(BIN)/python -m benchmarks.papers.servers
	$(BIN)/python -m benchmarks.papers.swarm $(if $(DATA),--data $(DATA))

bench-papers-scale: $(VENV)/.installed  ## measure the papers on MNIST, least squares and a set of epsilon's shape, about half an hour of one core; continues rows; DATA=… names the folder with libsvm and mnist
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.papers.ef21_least_squares --data $(DATA)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.papers.servers_mnist --data $(DATA)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.papers.lupa_scale --data $(DATA)

ROWS ?= benchmarks/results/papers_cuda_rows.jsonl
bench-papers-cuda: $(VENV)/.installed  ## measure the papers with ResNet-20 on CIFAR-10 on a CUDA GPU, about two hours; continues ROWS=…; DATA=… names the folder with CIFAR-10
	$(BIN)/python -m benchmarks.papers_cuda --data $(DATA) --rows $(ROWS)
	$(BIN)/python -m benchmarks.papers_cuda --rows $(ROWS) --summary benchmarks/results/papers_cuda.json

SECONDS ?= 60
fuzz: $(VENV)/.installed  ## throw bytes at the packed wire for SECONDS=60, coverage-guided where atheris can be installed; OUT=… takes the count
	-$(BIN)/pip install --quiet --target build/atheris atheris
	PYTHONPATH=build/atheris OMP_NUM_THREADS=1 $(BIN)/python fuzz/wire.py --seconds $(SECONDS) $(if $(OUT),--out $(OUT))

fuzz-handlers: MESSAGES ?= 1000000
fuzz-handlers: $(VENV)/.installed  ## give MESSAGES=1000000 wild messages to the handlers of servers, learners and gossip, about 2 minutes; OUT=… takes the count
	OMP_NUM_THREADS=1 $(BIN)/python fuzz/handlers.py --messages $(MESSAGES) $(if $(OUT),--out $(OUT))

PLANS ?= 200
STRATEGY ?= all
fuzz-plans: $(VENV)/.installed  ## run PLANS=200 drawn plans of faults of each STRATEGY=all on both hosts of the simulator, about 25 minutes of processor time; OUT=… takes the counts
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.plans --plans $(PLANS) --strategy $(STRATEGY) $(if $(OUT),--out $(OUT))

reference: $(VENV)/.installed  ## write the generated pages of docs/reference again
	$(BIN)/python tools/reference_pages.py
	$(BIN)/python -m tools.layout_figures --static

docs: $(VENV)/.docs  ## build the documentation as a site into build/site; open build/site/index.html
	$(BIN)/python tools/reference_pages.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## remove everything that can be made again, the virtual environment included
	rm -rf $(VENV) build dist demo .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch first and pinned: the digests in the tests hold for this version.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "tacit needs Python 3.11 or newer; none is on the PATH." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet '$(TORCH)'
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[docs]'
	@touch $@
