"""Rules for names of jobs and replicas on a backend."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchx.util.records import dataclass
from torchx.util.secrets import mask_value

if TYPE_CHECKING:
    from torchx.specs.api import AppDef


@dataclass(frozen=True)
class NameRule:
    """The names that a backend allows.

    Args:
        max_length: in characters.
        allowed: the allowed characters, as the inside of a regular expression's character class.
        lower: upper case is not allowed.
        letter_first: the first character must be a letter.
    """

    max_length: int
    allowed: str = "A-Za-z0-9_.-"
    lower: bool = False
    letter_first: bool = False

    def obeys(self, name: str) -> bool:
        """Whether the backend allows ``name`` unchanged.

        >>> DNS_LABEL.obeys("train-1"), DNS_LABEL.obeys("Train_1")
        (True, False)
        """
        return name != "" and self.make(name) == name

    def make(self, text: str, *, room: int = 0) -> str:
        """Turn ``text`` into a valid name.

        Replaces characters that are not allowed by dashes, strips dashes, dots and underscores, and truncates the name.

        Args:
            room: characters to reserve for a suffix.

        >>> DNS_LABEL.make("My Job/é", room=8)
        'my-job'
        """
        name = re.sub(f"[^{self.allowed}]+", "-", text.lower() if self.lower else text)
        name = name.strip("-._")
        if self.letter_first:
            name = re.sub(r"^[^A-Za-z]+", "", name)
        name = name[: self.max_length - room].rstrip("-._")
        return name or "app"[: self.max_length - room]


DNS_LABEL = NameRule(63, "a-z0-9-", lower=True, letter_first=True)
"""https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#rfc-1035-label-names"""


def plain_metadata(app: AppDef) -> dict[str, str]:
    """Return the metadata of an app that are only notes, for tags and labels; credentials are masked.

    >>> from torchx.specs.api import AppDef
    >>> plain_metadata(AppDef("a", metadata={"team": "x", "torchx/timeout": "2h", "kubernetes.pod": "{}"}))
    {'team': 'x'}
    """
    return {
        str(key): str(mask_value(str(key), value))
        for key, value in app.metadata.items()
        if isinstance(value, str | int | float) and not re.match(r"torchx/|kubernetes(\.|$)", str(key))
    }


FILE_NAME = NameRule(180)
"""Safe as the name of a file or folder, as a shell word and as a part of an app handle."""
