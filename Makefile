# Everything here runs on a fresh machine that has Python and make.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Otherwise every process of the tests and of the demo would compile torch's modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all docs lint format clean

demo: $(VENV)/.lab  ## see in a minute what whitening is for: demo/report.html
	$(BIN)/whitenorm demo

test: lint  ## lint, types, tests, doctests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'not slow'

test-all: $(VENV)/.all lint  ## the tests that take minutes too, and those of the Ray executor
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

docs: $(VENV)/.docs  ## the site, in docs/_build/html/index.html; warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One environment; the demo needs the laboratory only, the tests everything but the site's tools.
$(VENV)/.lab $(VENV)/.dev $(VENV)/.all $(VENV)/.docs: $(VENV)/.%: pyproject.toml constraints.txt
	@echo "Installing whitenorm[$*] and what it needs into $(VENV): a minute or two, mostly downloads."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build dist docs/_build .mypy_cache .pytest_cache .ruff_cache
