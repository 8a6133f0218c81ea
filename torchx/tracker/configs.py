"""Reads the configuration of a tracker: an address, an INI file, or a JSON object."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping

from torchx.errors import ConfigError
from torchx.util.foreign import loads

_FILE_ENDINGS = (".ini", ".cfg", ".conf")


def read_config(text: str, section: str) -> Mapping[str, object] | None:
    """Return the settings in a config, or None if it is an address.

    Otherwise it is a JSON object, or the path of an INI file with ``[section]``, ``[tracker:section]`` or no sections.

    Raises:
        ConfigError: the file, or the JSON, cannot be read, or the file has no such section.

    >>> read_config('{"root_path": "bucket/runs", "anon": true}', "fsspec")
    {'root_path': 'bucket/runs', 'anon': True}
    >>> read_config("s3://bucket/runs", "fsspec") is None
    True
    """
    text = text.strip()
    if text.startswith("{"):
        return _json(text)
    path = os.path.expanduser(text.removeprefix("file://"))
    if os.path.isfile(path) or ("://" not in path and path.endswith(_FILE_ENDINGS)):
        return _ini(path, section)
    return None


def _json(text: str) -> dict[str, object]:
    try:
        found = loads(text)
    except ValueError as e:
        # The message omits the text, which may contain a password.
        raise ConfigError(f"the tracker's config begins with a brace and is not a JSON object: {e}") from None
    return dict(found)


def _ini(path: str, section: str) -> dict[str, object]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
        try:
            parser.read_string(text, path)
        except configparser.MissingSectionHeaderError:  # nothing but `key = value`
            parser.read_string(f"[{section}]\n{text}", path)
    except OSError as e:
        raise ConfigError(
            f"the tracker's config file `{path}` cannot be read: {e.strerror}",
            hint="the file must be where the job runs, too; an address or a JSON object needs no file",
        ) from e
    except (configparser.Error, ValueError) as e:
        raise ConfigError(f"the tracker's config file `{path}` is not an INI file: {' '.join(str(e).split())}") from e
    for name in (section, f"tracker:{section}"):
        if parser.has_section(name):
            return {key: _value(text) for key, text in parser.items(name)}
    raise ConfigError(f"the tracker's config file `{path}` has no section `[{section}]`")


def _value(text: str) -> object:
    """Return the boolean, None or JSON value in the text; else the text.

    >>> _value("TRUE"), _value("8"), _value('{"a": 1}'), _value("file")
    (True, 8, {'a': 1}, 'file')
    """
    lower = text.strip().lower()
    if lower in ("true", "false", "null", "none"):
        return {"true": True, "false": False}.get(lower)
    try:
        return loads(text)
    except ValueError:
        return text


def seconds(value: object, name: str) -> float:
    """Return a positive number of seconds, or raise ConfigError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise ConfigError(f"`{name}` of the tracker's config must be a number of seconds, not `{value}`")
