"""Objects of the Kubernetes API as text: what a dry run prints."""

from __future__ import annotations

import re

from torchx.util.secrets import mask_args, mask_env

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    _Object = dict[str, Any]

# `1e-4`, `0o17`, `2026-1-2`, `1_000`, `12e03` and the like: https://yaml.org/spec/1.2.2/#103-core-schema,
# https://yaml.org/type/. Too many are quoted rather than too few.
_ODD = (
    ("float", r"^[-+]?(?:[0-9]|\.[0-9_])[0-9a-fA-FxXoOpP_.,:+TtZz -]*$", "-+.0123456789"),
    ("float", r"^[-+]?\.(?i:inf|nan)$", "-+."),
    ("bool", r"^[yYnN]$", "yYnN"),
)


def to_yaml(item: _Object) -> str:
    """The object as YAML, or as JSON, which is YAML too, where PyYAML is missing. Secrets are masked."""
    shown = masked(item)
    try:
        import yaml
    except ImportError:
        import json

        return json.dumps(shown, indent=2)

    class Dumper(yaml.SafeDumper):
        """Quotes what other readers than PyYAML, that of kubectl for one, take for something else than a string."""

    for tag, pattern, first in _ODD:
        Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))
    text: str = yaml.dump(shown, Dumper=Dumper, sort_keys=False, default_flow_style=False, width=120)
    return text


def masked(value: Any) -> Any:
    """A copy without the values of secret variables and arguments."""
    if isinstance(value, list):
        return [masked(item) for item in value]
    if not isinstance(value, dict):
        return value
    shown = {key: masked(inner) for key, inner in value.items()}
    if isinstance(value.get("command"), list):
        shown["command"] = mask_args([str(word) for word in value["command"]])
    if isinstance(value.get("env"), list):
        shown["env"] = [_masked_variable(variable) for variable in value["env"]]
    return shown


def _masked_variable(variable: Any) -> Any:
    if not isinstance(variable, dict) or not isinstance(variable.get("value"), str):
        return variable
    name = str(variable.get("name"))
    return {**variable, "value": mask_env({name: variable["value"]})[name]}
