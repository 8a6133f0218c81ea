"""Sweeps whose tasks are submitted as single jobs, for schedulers without job arrays."""
