"""A small look-alike of IBM Spectrum LSF 10.1, for tests: real processes, LSF's commands and documented formats.

It is not LSF and shares no line with it: see README.md, next to this folder, for what it does and does not do.
"""
