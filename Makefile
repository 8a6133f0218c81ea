# make demo    train on two workers, watch it from another process
# make test    lint, types, unit tests
# make docs    the documentation as a site, build/site/index.html; a warning is an error
# make check   these two, and the tests with real processes and real PyTorch; needs no root
# make check-real  every test with real parts (Docker, Slurm, ...); as root on Debian, it says first what it does to the machine.
#              PART='slurm ssh': these folders of tests/backends alone; ALL=1: other releases of Slurm and Kubernetes, too
# make coverage    what the unit tests reach, in lines and branches
# make fuzz    let atheris look for input that breaks a promise (EACH=60: seconds for each target)
# make torture MINUTES=10   kills, faults, garbage and hostile input for so long; a table of what was tried and what did not hold
# make mutants ROOM=runs N=40 SEED=1   plant small changes in torchx/runs, print those that no unit test notices
# make bench   the benchmark table (BENCH=--quick: a short one)
# make picture the moving picture of README, from a real run
# make screens the pictures of `torchx ui`, from real runs in a real browser
# make format  put the code in shape
#
# Everything is installed below .venv, .cache and ~/.cache/torchx-ci (large things); PYTHON=... names the interpreter.

# The tests start Python a thousand times: each start would compile what it imports, and pytest what it collects.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check check-real coverage lint types unit docs fuzz torture mutants bench picture screens format clean
.DEFAULT_GOAL := help
SCRIPTS := .ci/run scripts/demo scripts/env scripts/real scripts/try-dists $(wildcard torchx/*/*.sh torchx/schedulers/*/*.sh torchx/schedulers/*/*/*.sh)
CODE := torchx hydra_plugins tests examples benchmarks docs/conf.py docs/_site conftest.py scripts/release scripts/picture scripts/screens scripts/resolve
UNIT := .venv/bin/python -m pytest -q -n auto --maxprocesses 8 --dist worksteal

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed '/^$$/q'

demo:
	@scripts/env demo
	@scripts/demo

test: lint types unit

lint:
	@scripts/env dev
	.venv/bin/ruff check $(CODE)
	.venv/bin/ruff format --check $(CODE)
	.venv/bin/shellcheck $(SCRIPTS)

types:
	@scripts/env dev
	.venv/bin/mypy

unit:
	@scripts/env dev
	$(UNIT)

# What only child processes run (the supervisor, the command line as a program) does not count.
coverage:
	@scripts/env dev
	.venv/bin/pip install -q coverage pytest-cov
	$(UNIT) --cov=torchx --cov-branch --cov-report=term:skip-covered --cov-report=html:build/coverage

docs:
	@scripts/env dev
	.venv/bin/python -m sphinx -b html -d build/site-state -W --keep-going -q docs build/site

check: test docs
	scripts/real rootless

PART :=
check-real:
	scripts/real check $(PART)

# EACH: seconds for each target; TARGET: which of tests/fuzz/targets.py, all when empty
EACH := 60
fuzz:
	@scripts/env dev
	.venv/bin/pip install -q --only-binary :all: atheris
	.venv/bin/python -m tests.fuzz.coverage_guided --seconds $(EACH) $(TARGET)

# MINUTES: for all sweeps together; SWEEP: which of tests/torture, all when empty; PLANT: a fault of tests/torture/faults.py
# that the sweeps must find
MINUTES := 10
torture:
	@scripts/env dev
	.venv/bin/python -m tests.torture --minutes $(MINUTES) $(addprefix --plant ,$(PLANT)) $(SWEEP)

ROOM := kit
N := 40
SEED := 1
mutants:
	@scripts/env dev
	.venv/bin/python -m tests.mutation $(ROOM) --n $(N) --seed $(SEED)

bench:
	@scripts/env dev
	.venv/bin/python -m benchmarks $(BENCH)

picture:
	@scripts/env demo
	@"$$(scripts/env where)/bin/python" scripts/picture

screens:
	@scripts/real prepare ui
	@"$$(scripts/env where)/bin/python" scripts/screens

format:
	@scripts/env dev
	.venv/bin/ruff check --fix $(CODE)
	.venv/bin/ruff format $(CODE)

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
