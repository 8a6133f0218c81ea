"""Verbs that work inside a running replica: exec, shell, cp, forward, ssh-config, stacks, simulate."""
