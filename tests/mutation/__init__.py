"""Plants small changes in a copy of torchx and looks whether the unit tests notice: ``make mutants ROOM=runs``."""
