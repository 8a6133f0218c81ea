"""How ``torchx stacks`` learns where this process is: it writes down its stack when it gets a signal.

``faulthandler`` does that even while the process waits in a collective. The stack goes to a file in memory that nobody
else has, whose name says which signal it is. A program that does without torchx offers the same with three lines::

    import faulthandler, os, signal

    number = signal.SIGRTMIN + 13
    faulthandler.register(number, open(os.memfd_create(f"torchx-stacks-{number:d}"), "a"))
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

__all__ = ["offer"]

_file: IO[str] | None = None


def offer() -> None:
    """Writes the stack down on ``SIGRTMIN + 13``, from now on; does nothing twice, and nothing but on Linux."""
    global _file
    if _file is not None or sys.platform != "linux":
        return
    import faulthandler
    import signal

    number = int(signal.SIGRTMIN) + 13
    if signal.getsignal(number) != signal.SIG_DFL:  # the program has a use for it
        return
    try:
        _file = open(os.memfd_create(f"torchx-stacks-{number}"), "a")  # noqa: SIM115  # for as long as the process lives
        faulthandler.register(number, _file, all_threads=False)
    except OSError:
        return  # a sandbox: what can be asked by py-spy alone is asked by it
