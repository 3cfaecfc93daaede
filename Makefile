# The commands of this project. Each one makes and refreshes its own .venv; without make, see the README.
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
ARGS ?=

.PHONY: help lab doctor test lint format bench notebooks exercises browser
.DEFAULT_GOAL := help

help:
	@echo "make lab        open the course in JupyterLab (your copies live in my-work/)"
	@echo "make doctor     say whether this machine is fit for the course"
	@echo "make test       lint, tests, and every notebook run again"
	@echo "make browser    the lessons in a real JupyterLab and a real browser"
	@echo "make bench      what accumulation costs, beside hand-written loops and frameworks"
	@echo "make notebooks  run the notebooks and solutions and store what they print"
	@echo "make exercises  write the exercises from their solutions"
	@echo "make lint       ruff;   make format: let ruff mend what it can"

lab: $(VENV)/.with-course
	@$(PY) -m accumkit lab $(ARGS)

doctor: $(VENV)/.with-course
	@$(PY) -m accumkit doctor

test: lint
	$(PY) -m pytest -n 2 --dist loadfile -m "not browser" $(ARGS)

lint: $(VENV)/.with-test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: $(VENV)/.with-test
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

browser: $(VENV)/.with-test
	$(PY) -m pytest -n 2 --dist worksteal -m browser $(ARGS)

bench: $(VENV)/.with-test
	$(PY) -m tests.bench $(ARGS)

notebooks: $(VENV)/.with-test
	$(PY) tests/write_notebooks.py $(ARGS)

exercises: $(VENV)/.with-test
	$(PY) tests/write_exercises.py $(ARGS)

# The environment. .with-EXTRA says that the extra is installed, from these very files and for this very folder:
# a folder that was moved or copied has its packages linked to the old place, so they are installed again.
ifneq ($(wildcard $(VENV)/.place),)
ifneq ($(shell cat $(VENV)/.place),$(CURDIR))
$(shell rm -f $(VENV)/.with-*)
endif
endif

$(VENV)/.with-course: EXTRAS = course
$(VENV)/.with-test: EXTRAS = test,frameworks

$(VENV)/.with-%: pyproject.toml constraints.txt | $(PY)
	@echo "Installing accumkit[$(EXTRAS)] into $(VENV); the first time this takes some minutes ..."
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@printf '%s\n' '$(subst ','\'',$(CURDIR))' > $(VENV)/.place
	@touch $@

$(PY):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "accumkit needs Python 3.11 or newer, and there is no $(PYTHON) on this machine."; \
	  echo "Install it, or name the one you have: make PYTHON=/path/to/python ..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "accumkit needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name a newer one, for example: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "This Python cannot make virtual environments: its module venv or ensurepip is missing."; \
	  echo "On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version 2>&1) ..."
	@$(PYTHON) -m venv --clear $(VENV)
