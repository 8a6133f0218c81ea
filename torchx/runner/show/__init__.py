"""Statuses and runs as tables and as JSON documents, for all faces."""
