# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# The tests start many processes: compiled modules are kept, even if the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-fast test-ray test-flower test-trackers test-page test-long test-reverts check docs pictures install clean

demo: $(READY)
	$(BIN)/cdfl run digits-4 --preset experts

# Three processes: some tests wait for servers. The tests of a file share servers and databases, so they stay together.
test: check
	$(BIN)/pytest -n 3 --dist loadfile -m "not browser and not long and not ray"

# What is quick: no servers in processes of their own, no whole runs, no PostgreSQL.
test-fast: $(READY)
	$(BIN)/pytest -n 3 --dist loadfile -m "not slow and not long and not ray"

# The page in Chromium, from the system's packages (apt-get install chromium).
test-page: $(READY)
	$(BIN)/pytest -n 2 --dist loadfile -m browser

# One more case of what `make test` covers, and plans of attackers: some minutes.
test-long: $(READY)
	$(BIN)/pytest -n 3 --dist loadfile -m long

# A Ray cluster of two nodes on this machine, where only loopback exists.
test-ray: $(READY)
	$(BIN)/python -m benchmarks.on_loopback $(BIN)/python -m pytest -m ray

# Undoes the mends of the service one by one; a test must fail each time. Some minutes.
test-reverts: $(READY)
	$(BIN)/python -m tests.server.reverts

# Installs Flower into an environment of its own, which takes a minute.
test-flower: $(READY)
	CDFL_TEST_FLOWER=1 $(BIN)/pytest tests/client/test_flower_itself.py

# Installs MLflow and Weights & Biases into an environment of its own, which takes a minute.
test-trackers: $(READY)
	CDFL_TEST_TRACKERS=1 $(BIN)/pytest tests/track/test_trackers_themselves.py

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The pictures of the pages: some minutes, and Chromium.
pictures: $(READY)
	$(BIN)/python docs/pictures.py

# The site, in site/. A broken link or reference is an error.
docs: $(READY)
	$(BIN)/python -m benchmarks.write_tables
	$(BIN)/mkdocs build --strict --quiet

install: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info
