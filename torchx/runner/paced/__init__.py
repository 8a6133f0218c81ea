"""Sweeps as single jobs, so many at a time: what a scheduler without arrays, or a task of several replicas, needs."""
