"""Objects of the Kubernetes API as text: what a dry run prints."""

from __future__ import annotations

import re

from torchx.schedulers.kit import manifests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# `1e-4`, `0o17`, `2026-1-2`, `1_000`, `12e03` and the like: https://yaml.org/spec/1.2.2/#103-core-schema,
# https://yaml.org/type/. Too many are quoted rather than too few.
_ODD = (
    ("float", r"^[-+]?(?:[0-9]|\.[0-9_])[0-9a-fA-FxXoOpP_.,:+TtZz -]*$", "-+.0123456789"),
    ("float", r"^[-+]?\.(?i:inf|nan)$", "-+."),
    ("bool", r"^[yYnN]$", "yYnN"),
)


def to_yaml(item: dict[str, Any]) -> str:
    """The object as YAML. Secrets are masked."""
    return manifests.to_yaml(item, _quoting)


def _quoting(dumper: Any) -> None:
    """Quotes what other readers than PyYAML, that of kubectl for one, take for something else than a string."""
    for tag, pattern, first in _ODD:
        dumper.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))
