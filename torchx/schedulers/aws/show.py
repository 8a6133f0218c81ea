"""Requests to AWS as text: what a dry run prints."""

from __future__ import annotations

from torchx.schedulers.kit import manifests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def to_yaml(item: dict[str, Any]) -> str:
    """The request as YAML: scripts line by line, and what is the same in two places twice. Secrets are masked."""
    return manifests.to_yaml(item, _readable, allow_unicode=True)


def _readable(dumper: Any) -> None:
    dumper.ignore_aliases = lambda *_: True
    dumper.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
        ),
    )
