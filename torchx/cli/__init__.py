"""The command line: parse arguments, call the Runner, render the results.

=====================  ====================================================================
``main``               the entry point: finds the verb, runs it, reports errors in one line
``commands``           the lazy table of verbs and plugins (group ``torchx.cli.cmds``)
``cmd_*``              verbs; those that share code share a module
``render``             tables, colours, times
=====================  ====================================================================
"""
