"""The face: parse the command line, call the Runner, render what it says.

=====================  ====================================================================
``main``               the entry point: finds the verb, runs it, turns errors into one line
``commands``           the lazy table of verbs, and plugins of the group ``torchx.cli.cmds``
``cmd_*``              one verb each
``render``             tables, colours, times
=====================  ====================================================================
"""

from __future__ import annotations
