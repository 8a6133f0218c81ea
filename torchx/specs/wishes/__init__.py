"""What a user wants of a job beside its roles: retries, time limits, notices, a watchdog.

Each module has a metadata key and its parser.
"""
