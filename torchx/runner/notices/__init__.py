"""Notices of jobs: their plans, their channels, and the program that sends them."""
