# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV ?= .venv
WHEEL := .venv-wheel
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM := false
# Without compiled files, each worker and each command that a test starts would compile the packages again.
unexport PYTHONDONTWRITEBYTECODE

# The tests write and fsync many small files: in memory, where there are 4 GB for them.
IN_MEMORY := $(shell [ "$$(df -k --output=avail /dev/shm 2> /dev/null | tail -1)" -gt 4000000 ] 2> /dev/null && \
	echo PYTEST_DEBUG_TEMPROOT=/dev/shm TMPDIR=/dev/shm)

.PHONY: demo test cluster examples docs docs-serve pictures notebooks lint bench record real faults bad-inputs dist install clean

demo: $(VENV)/installed
	$(BIN)/mechclust run task-clusters --preset quick --out runs/demo

# SLOW=1 adds the tests that take longest, before a release.
test: $(VENV)/installed-dev
	$(IN_MEMORY) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal $(if $(SLOW),-m "not cluster")

# How much `make cluster`, `make examples`, `make real`, `make faults` and `make bad-inputs` do: small is CI's.
ROUND ?= full

# On a Ray cluster of two nodes, which is started on this machine: nodes and workers are killed, and bits compared.
# ROUND=small tries jobs, shards and `clusters`, and leaves out studies and other commands.
cluster: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m cluster --timeout 600 --durations 10 \
		$(if $(filter small,$(ROUND)),$(addprefix tests/mechclust/,jobs/test_ray.py jobs/test_sharded_on_ray.py commands/clusters))

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy
	$(BIN)/mypy tests/typing/user_code.py

# The example scripts and notebooks, from a wheel in an environment of its own, far from the repository. ROUND=small
# leaves out notebooks that do what a script does.
TWINS := $(addprefix --deselect tests/examples/test_examples.py::test_notebook,[clustering_heads.ipynb] [head_roles.ipynb] \
	[task_clusters.ipynb] [topic_structure.ipynb])
examples: dist $(WHEEL)/installed
	$(WHEEL)/bin/pip install --quiet --no-deps --force-reinstall dist/*.whl
	folder=$$(mktemp -d) && mkdir $$folder/tests && cp -r examples $$folder && cp -r tests/examples $$folder/tests && \
		cd $$folder && OMP_NUM_THREADS=1 $(abspath $(WHEEL))/bin/python -P -m pytest -q -n auto --timeout 400 $(if $(filter small,$(ROUND)),$(TWINS)) tests && \
		rm -r $$folder

dist: $(VENV)/installed-dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist . > /dev/null

docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal tests/docs

# The site at http://127.0.0.1:8000, built again when a page changes.
docs-serve: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# The pictures of the documentation, without the captions, which pages hold; some only: make pictures ONLY="cka history". Needs Chromium.
pictures: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m docs.pictures $(ONLY)

# Runs the notebooks and stores their outputs in them.
notebooks: $(VENV)/installed-dev
	$(BIN)/python -P docs/notebooks.py

# With the packages that are measured against; some tables only: make bench TABLES="extraction cka". The goals on a GPU:
# make bench DEVICE=cuda. The goals' tables are written into docs/cost.md.
DEVICE ?= cpu
bench: $(VENV)/installed-dev
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m tests.benchmarks.run --device $(DEVICE) $(TABLES)

# Checkpoints that somebody trained, from packages in a cache folder (MECHCLUST_REAL_CACHE): docs/real-models.md.
# ROUND=small checks them, and judges no finding.
real: $(VENV)/installed-dev
	$(BIN)/python -m tests.real.run --round $(ROUND)

# Everything that writes files is killed, damaged and starved at random: docs/faults.md. ROUND=small is CI's; a trial
# that failed says how to repeat it (SEED=, ONLY=). RECORD=1 writes the table into the page.
SEED ?= 16
ONLY ?=
faults: $(VENV)/installed-dev
	$(BIN)/python -m tests.faults --round $(ROUND) --seed $(SEED) --only "$(ONLY)" $(if $(KINDS),--kinds $(KINDS)) $(if $(RECORD),--record)

# Everything that takes inputs is given bad ones; a table of what comes back. Some kinds only: KINDS=commands.
bad-inputs: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.bad_inputs --round $(ROUND) $(if $(KINDS),--kinds $(KINDS)) --only "$(ONLY)"

# The measured numbers of the documentation, from examples/results. -P: docs/probes is not the package `probes`.
record: $(VENV)/installed
	$(BIN)/python -P docs/record.py

install: $(VENV)/installed

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "mechclust needs Python 3.11 or newer; this is $$($(PYTHON) --version). Run: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch comes first: on its own it resolves to the pinned build, and what depends on it takes that.
$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(WHEEL)/installed: pyproject.toml constraints.txt | dist
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/pip install --quiet --constraint constraints.txt torch
	$(WHEEL)/bin/pip install --quiet --constraint constraints.txt "$$(ls dist/*.whl)[notebook]" pytest pytest-timeout pytest-xdist submitit
	@touch $@

clean:
	rm -rf $(VENV) $(WHEEL) .venv-oldest runs build dist *.egg-info
