"""The processes that own local jobs, and the files in which they record the jobs' states.

Uses only the standard library and imports nothing else of torchx, because :mod:`launcher` runs as a program of its own
(``python -I -S launcher.py``) next to jobs that may run for weeks. Which process does what:
``docs/contributing/decisions/006-a-local-job-outlives-its-shell.md``.
"""
