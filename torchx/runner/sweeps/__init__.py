"""Verbs for sweeps: launch, read results, retry what failed."""
