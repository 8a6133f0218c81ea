"""Batch scripts that a user wrote: how they are read, submitted, and translated for other schedulers."""
