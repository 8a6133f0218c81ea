"""Verbs for jobs that torchx did not launch: explain and adopt."""
