"""Run options: their declarations, and how values are parsed."""
