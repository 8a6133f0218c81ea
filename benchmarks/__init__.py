"""How fast torchx is, beside its peers and beside what the machine can do at all: ``python -m benchmarks``."""
