"""Objects of the Kubernetes API as text: what a dry run prints."""

from __future__ import annotations

from torchx.util.secrets import mask_args, mask_env

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    _Object = dict[str, Any]


def to_yaml(item: _Object) -> str:
    """The object as YAML, or as JSON, which is YAML too, where PyYAML is missing. Secrets are masked."""
    shown = masked(item)
    try:
        import yaml
    except ImportError:
        import json

        return json.dumps(shown, indent=2)
    text: str = yaml.safe_dump(shown, sort_keys=False, default_flow_style=False, width=120)
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
