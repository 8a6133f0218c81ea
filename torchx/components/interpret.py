"""How to run model interpretation; this module contains no components.

Feature attribution depends on the model, so the program belongs to the project that trains it. Launch it like any other
script, with ``utils.python`` or with a component of the project::

    torchx run examples/components/interpret.py:interpret --checkpoint digits.pt

``docs/interpret.md`` shows an example with Captum, for the model of ``examples/ddp_digits``.
"""
