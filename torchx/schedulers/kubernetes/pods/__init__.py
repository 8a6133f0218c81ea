"""Pods: their specs, the facts that their status and events show, and their logs."""
