"""Renders requests to an API as YAML, for dry runs (with secrets masked) and exports."""

from __future__ import annotations

import re
from typing import Any

from torchx.util.secrets import mask_args, mask_env

_WORDS = ("command", "ContainerEntrypoint", "ContainerArguments")
_TABLES = ("Environment", "HyperParameters", "tags")


# Strings such as `1e-4`, `0o17`, `2026-1-2`, `1_000`, `12e03`, which some YAML readers take for numbers or dates:
# https://yaml.org/spec/1.2.2/#103-core-schema, https://yaml.org/type/. Quoting too many of them does no harm.
_ODD = (
    ("float", r"^[-+]?(?:[0-9]|\.[0-9_])[0-9a-fA-FxXoOpP_.,:+TtZz -]*$", "-+.0123456789"),
    ("float", r"^[-+]?\.(?i:inf|nan)$", "-+."),
    ("bool", r"^[yYnN]$", "yYnN"),
)


def shown_yaml(item: dict[str, Any], *, in_lines: bool = False) -> str:
    """:func:`to_yaml` with secrets masked."""
    return to_yaml(masked(item), in_lines=in_lines)


def to_yaml(value: Any, *, in_lines: bool = False) -> str:
    """Render JSON types as YAML, or as JSON, a subset of YAML, if PyYAML is missing.

    Quotes strings that readers such as kubectl's parse as another type, even if PyYAML does not.

    Args:
        in_lines: render strings with line breaks as block scalars, and non-ASCII characters unescaped.
    """
    try:
        import yaml
    except ImportError:
        import json

        return json.dumps(value, indent=2) + "\n"

    class Dumper(yaml.SafeDumper):
        """A subclass, so that the changes below do not affect other users of PyYAML."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # the base class's signature
            return True

    for tag, pattern, first in _ODD:
        Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))
    if in_lines:
        Dumper.add_representer(
            str,
            lambda dumper, text: dumper.represent_scalar(
                "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
            ),
        )
    written: str = yaml.dump(
        value, Dumper=Dumper, sort_keys=False, default_flow_style=False, width=120, allow_unicode=in_lines
    )
    return written


def masked(value: Any) -> Any:
    """Return a copy with the values of secret variables and arguments masked.

    >>> masked({"command": ["a", "--token", "t"], "environment": [{"name": "API_KEY", "value": "v"}]})
    {'command': ['a', '--token', '********'], 'environment': [{'name': 'API_KEY', 'value': '********'}]}
    """
    if isinstance(value, list):
        return [masked(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"name", "value"} and isinstance(value["value"], str):
        name = str(value["name"])
        return {"name": value["name"], "value": mask_env({name: value["value"]})[name]}
    shown: dict[str, Any] = {}
    for key, inner in value.items():
        if key in _WORDS and isinstance(inner, list):
            shown[key] = mask_args([str(word) for word in inner])
        elif key in _TABLES and isinstance(inner, dict):
            shown[key] = mask_env({str(k): str(v) for k, v in inner.items()})
        else:
            shown[key] = masked(inner)
    return shown
