"""Encodes names and values for MLflow's tags, metrics and parameters.

MLflow's limits: https://mlflow.org/docs/latest/rest-api.html (names: up to 250 letters, digits, ``_-. /``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torchx.tracker.values import plain
from torchx.util.foreign import loads

METADATA = "torchx.metadata."
ARTIFACT = "torchx.artifact.path."
TAG_ARTIFACT_MD_PREFIX = "torchx.artifact.metadata"
SOURCE = "torchx.source."
PARENT = "torchx.parent."
LONGEST_VALUE = 5000  # of a tag; newer servers accept 8000
_LONGEST_NAME = 250 - len(TAG_ARTIFACT_MD_PREFIX) - 1
_LONGEST_PARAM = 500  # the limit of the oldest servers
_ODD = re.compile(r"[^A-Za-z0-9_. /-]|-(?=u)")
_ESCAPE = re.compile(r"-u([0-9a-f]+)-")


def safe(name: str) -> str:
    """Encode a name in characters that MLflow accepts; :func:`unsafe` decodes it.

    >>> safe("loss"), safe("train/loss"), safe("a:b"), safe("../x")
    ('loss', 'train/loss', 'a-u3a-b', '-u2e-./x')
    """
    text = _ODD.sub(_escape, name)
    # MLflow rejects names that begin with `..`, and names that are not normalized paths, such as `a//b` or `/a`.
    if text == "." or text.startswith(".."):
        text = f"-u2e-{text[1:]}"
    if text.startswith("/") or (text and posixpath.normpath(text) != text):
        text = text.replace("/", "-u2f-")
    return text


def unsafe(name: str) -> str:
    """Decode a name encoded with :func:`safe`.

    >>> unsafe(safe("-u2f- è"))
    '-u2f- è'
    """
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), name)


def encode(name: str, value: object) -> str:
    """Encode a value as the text of a tag; raise ValueError if it or the name is too long for MLflow."""
    text = json.dumps(plain(value))
    if len(text) > LONGEST_VALUE:
        raise ValueError(
            f"`{name}` is {len(text)} characters long, and MLflow keeps {LONGEST_VALUE}:"
            " write it to a file and add that as an artifact"
        )
    if not name or len(safe(name)) > _LONGEST_NAME:
        raise ValueError(f"`{name[:50]}` is not a valid name for MLflow: it takes 1 to {_LONGEST_NAME} characters")
    return text


def decoded(tags: Mapping[str, str], prefix: str) -> Iterator[tuple[str, object]]:
    """Decode names and values of the tags with that prefix."""
    for tag, text in tags.items():
        if tag.startswith(prefix):
            try:
                yield unsafe(tag[len(prefix) :]), loads(text)
            except ValueError:  # somebody has edited it
                yield unsafe(tag[len(prefix) :]), text


def numbers(values: Mapping[str, object]) -> dict[str, float]:
    """Return the values that are numbers.

    >>> numbers({"loss": 0.5, "ok": True, "name": "x"})
    {'loss': 0.5}
    """
    found = {name: plain(value) for name, value in values.items()}
    return {name: float(v) for name, v in found.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


def flat(value: Any, key: str) -> dict[str, str]:
    """Return the leaves of a configuration by their paths.

    >>> flat({"optim": {"lr": 0.1}, "sizes": [1, 2]}, "")
    {'optim.lr': '0.1', 'sizes.0': '1', 'sizes.1': '2'}
    """
    value = _container(value)
    pairs: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if pairs is None or not value:
        return {key: str(plain(value))[:_LONGEST_PARAM]} if key else {}
    found: dict[str, str] = {}
    for name, part in pairs:
        found |= flat(part, f"{key}.{name}" if key else str(name))
    return {name: text for name, text in found.items() if 0 < len(safe(name)) <= _LONGEST_NAME}


def digest(text: str) -> str:
    """Return a short name for a text that MLflow may not accept as a name."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _escape(found: re.Match[str]) -> str:
    return f"-u{ord(found[0]):x}-"


def _container(value: Any) -> Any:
    """Convert containers (data classes, tuples, OmegaConf) to dictionaries and lists."""
    if type(value).__module__.partition(".")[0] == "omegaconf":
        from omegaconf import OmegaConf

        return OmegaConf.to_container(value, resolve=True)
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return list(value)
    return value
