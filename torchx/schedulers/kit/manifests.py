"""Requests to an API as text, secrets masked: what a dry run prints."""

from __future__ import annotations

from torchx.util.secrets import mask_args, mask_env

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WORDS = ("command", "ContainerEntrypoint", "ContainerArguments")
_TABLES = ("Environment", "HyperParameters", "tags")


def to_yaml(item: dict[str, Any], dress: Callable[[Any], None], *, allow_unicode: bool = False) -> str:
    """A request as YAML, or as JSON, which is YAML too, where PyYAML is missing.

    Args:
        dress: called with a ``yaml.SafeDumper`` of our own, to add to it what this API wants.
        allow_unicode: characters beyond ASCII are shown as they are.
    """
    shown = masked(item)
    try:
        import yaml
    except ImportError:
        import json

        return json.dumps(shown, indent=2)

    class Dumper(yaml.SafeDumper):
        """What is changed of it is ours alone."""

    dress(Dumper)
    text: str = yaml.dump(
        shown, Dumper=Dumper, sort_keys=False, default_flow_style=False, width=120, allow_unicode=allow_unicode
    )
    return text


def masked(value: Any) -> Any:
    """A copy without the values of secret variables and arguments.

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
