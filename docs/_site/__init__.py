"""Sphinx extensions that build the site from the pages."""
