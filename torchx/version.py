"""The version of this distribution, readable without importing anything."""

__version__ = "0.8.0"
