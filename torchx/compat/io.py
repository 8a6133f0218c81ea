"""Files that are installed with torchx."""

from __future__ import annotations

import os


def get_abspath(relpath: str) -> str:
    """Return the absolute path of a file in the ``torchx`` package; absolute paths are returned unchanged.

    >>> get_abspath("py.typed").endswith("torchx/py.typed")
    True
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.normpath(os.path.join(package, relpath))


def read_conf_file(conf_file: str) -> str:
    """Return the text of a file in the ``torchx`` package, or of one with an absolute path.

    Raises:
        OSError: the file cannot be read.
    """
    with open(get_abspath(conf_file), encoding="utf-8") as f:
        return f.read()
