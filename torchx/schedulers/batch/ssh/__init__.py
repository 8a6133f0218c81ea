"""A login node over SSH: commands, files and workspaces there."""
