"""Sweeps whose tasks are submitted as single jobs, if the scheduler cannot run them as a job array."""
