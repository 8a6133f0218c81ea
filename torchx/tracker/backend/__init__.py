"""Trackers that come with torchx, one module each; none is imported before a job or a command asks for it."""
