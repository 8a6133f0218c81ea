"""Runs as capsules: what is on record of a run, put to use to run it again, to compare it, and to take it away."""
