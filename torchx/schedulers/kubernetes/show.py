"""Objects of the Kubernetes API as text: what a dry run prints, and what a file of a user's says."""

from __future__ import annotations

from torchx.errors import ConfigError
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


def read_overlay(path: str) -> _Object:
    """An overlay of a file: YAML, or JSON.

    Raises:
        ConfigError: the file cannot be read, or holds no mapping.
    """
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"pod_overlay `{path}` cannot be read: {e}") from None
    found = _parse(path, text)
    if not isinstance(found, dict):
        raise ConfigError(f"pod_overlay `{path}` holds no mapping", hint="it has the shape of a pod: `spec:` ...")
    return found


def _parse(path: str, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        import json

        try:
            return json.loads(text)
        except ValueError as e:
            raise ConfigError(
                f"pod_overlay `{path}` is no JSON: {e}", hint="to read YAML: pip install 'torchx[kubernetes]'"
            ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise ConfigError(f"pod_overlay `{path}` is no YAML: {str(e).splitlines()[0]}") from None
