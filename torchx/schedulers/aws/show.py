"""Requests to AWS as text: what a dry run prints."""

from __future__ import annotations

from torchx.util.secrets import mask_args, mask_env

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WORDS = ("command", "ContainerEntrypoint", "ContainerArguments")
_TABLES = ("Environment", "HyperParameters", "tags")


def to_yaml(item: dict[str, Any]) -> str:
    """The request as YAML, or as JSON, which is YAML too, where PyYAML is missing. Secrets are masked."""
    shown = masked(item)
    try:
        import yaml
    except ImportError:
        import json

        return json.dumps(shown, indent=2)

    class Readable(yaml.SafeDumper):
        """Scripts line by line; what is the same in two places is told twice."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # the signature of PyYAML
            return True

    Readable.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
        ),
    )
    text: str = yaml.dump(
        shown, Dumper=Readable, sort_keys=False, default_flow_style=False, width=120, allow_unicode=True
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
        return {"name": value["name"], "value": mask_env({value["name"]: value["value"]})[value["name"]]}
    shown: dict[str, Any] = {}
    for key, inner in value.items():
        if key in _WORDS and isinstance(inner, list):
            shown[key] = mask_args([str(word) for word in inner])
        elif key in _TABLES and isinstance(inner, dict):
            shown[key] = mask_env({str(k): str(v) for k, v in inner.items()})
        else:
            shown[key] = masked(inner)
    return shown
