"""Finds components by name, reads their signatures, parses their arguments, and formats their help."""
