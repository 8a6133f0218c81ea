"""The family of backends that are driven by commands: one base, job folders, logs, and sites behind a login node."""
