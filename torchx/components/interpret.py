"""Where components that explain a model's answers are to be found: this module has none of its own.

Which inputs an answer came from depends on the model, so such a program belongs to the project that trained it. It is a
script like any other, launched by ``utils.python`` or by a component that names its options::

    torchx run examples/components/interpret.py:interpret --checkpoint digits.pt

The page ``docs/interpret.md`` does so with Captum, for the model that ``examples/ddp_digits`` trains.

>>> from torchx.components.utils import python
>>> python("--checkpoint", "digits.pt", script="interpret.py").roles[0].args
['interpret.py', '--checkpoint', 'digits.pt']
"""
