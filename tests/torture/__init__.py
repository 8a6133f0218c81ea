"""Sweeps that look for what breaks: kills, faults, garbage and hostile input, for as long as they are given.

``make torture`` runs them and prints how much was tried and what did not hold; ``test_torture.py`` tries a little of
each with the unit tests. A sweep is a function that yields after each attempt what was wrong, or an empty string.
"""
