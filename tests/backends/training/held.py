"""The digits example, held at the end of an epoch until the test has looked: else it may be over by then."""

from __future__ import annotations

from pathlib import Path

from tests.backends.shell import ROOT

_PROGRAM = """
import os, re, sys, time
sys.path.insert(0, {folder!r})
import train

plain = train.say


def say(text):
    plain(text)
    found = re.match(r"epoch +(\\d+)/", text)
    while found and int(found[1]) >= {epoch} and not os.path.exists({go!r}):
        time.sleep(0.1)


train.say = say
train.main()
os._exit(0)  # as the example does
"""


class Held:
    """A program that is the example, and takes its arguments.

    Args:
        folder: where it is written.
        epoch: it is held at the end of this one, and at the end of each one after it.
    """

    def __init__(self, folder: Path, epoch: int) -> None:
        self.script = str(folder / "held.py")
        self._go = folder / "go"
        example = str(ROOT / "examples" / "ddp_digits")
        Path(self.script).write_text(_PROGRAM.format(folder=example, epoch=epoch, go=str(self._go)))

    def go_on(self) -> None:
        """From now on it is not held."""
        self._go.touch()
