"""Runs as capsules: uses the record of a run to run it again, to compare it with another run, and to export it."""
