"""Values that no file, command line or answer may have, and where to look for them."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from torchx.specs import Secret


class Canaries:
    """Two values that a job gets: one by reference, one by the name of its variable.

    The job prints their digests with :data:`SHOW`: that it has them is seen without them.
    """

    def __init__(self) -> None:
        self.values = [f"canary-{secrets.token_hex(12)}'$x" for _ in range(2)]
        self.env = {"BY_REFERENCE": Secret("env:MY_CANARY"), "CANARY_TOKEN": self.values[1], "PLAIN": "seen"}

    def shown(self) -> list[str]:
        """The lines that :data:`SHOW` prints."""
        return [hashlib.sha256(value.encode()).hexdigest()[:16] + "\n" for value in self.values]

    def found_in(self, texts: Iterable[str]) -> list[str]:
        """The texts that have a value in them."""
        return [text for text in texts if any(value.split("'")[0] in text for value in self.values)]

    def files_below(self, *folders: Path | str) -> list[Path]:
        """The files that have a value in them, links not followed."""
        paths = (Path(top, name) for folder in folders for top, _, names in os.walk(folder) for name in names)
        return [path for path in paths if path.is_file() and self.found_in([path.read_bytes().decode("latin-1")])]

    def command_lines(self) -> list[str]:
        """The command lines of processes of this machine that have a value in them."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                found.append(Path("/proc", pid, "cmdline").read_bytes().decode("utf-8", "replace"))
            except OSError:
                continue  # it has ended
        return self.found_in(found)


SHOW = 'for v in "$BY_REFERENCE" "$CANARY_TOKEN"; do printf %s "$v" | sha256sum | cut -c1-16; done'
