"""Reads the settings of notice channels from the config files; :mod:`torchx.schedulers.kit.notices` sends to them."""

from __future__ import annotations

import os
from typing import Any

from torchx.config import find_configs, get_section
from torchx.config.trust import permit
from torchx.errors import ConfigError, SpecError
from torchx.util.redaction import learn

SECTION = "notify"
KEYS = ("via", "on", "slack", "webhook", "mail", "mail_from", "smtp", "smtp_user", "smtp_password")
"""The keys of ``[notify]``. ``slack``, ``webhook`` and ``smtp_password`` are references to secrets."""


def settings_of(channel: str) -> dict[str, Any]:
    """Return the settings of a channel, with the values of its secrets: another process may need them much later."""
    kind, _, place = channel.partition(":")
    permit(channel)
    if kind == "exec":
        path = os.path.abspath(os.path.expanduser(place))
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise ConfigError(f"`{channel}`: `{path}` is not a program", hint="name an executable file")
        return {"path": path, "cwd": os.getcwd()}
    if kind == "desktop":
        return {}
    section = get_section(SECTION)
    if kind in ("slack", "webhook"):
        url = _secret(section, kind)
        if not url.startswith(("https://", "http://")):
            raise ConfigError(f"the value of `[notify] {kind}` does not begin with https://")
        return {"url": url}
    if not section.get("mail"):
        raise ConfigError("`[notify]` has no key `mail`", hint=f"write `mail = me@example.org` into {_file()}")
    mail = {"to": section["mail"], "from": section.get("mail_from") or section["mail"]}
    mail.update(server=section.get("smtp") or "localhost", user=section.get("smtp_user", ""))
    return {**mail, "password": _secret(section, "smtp_password") if mail["user"] else ""}


def _file() -> str:
    """Return the config file to edit: the last one that was read, or the user's own."""
    paths = find_configs()
    return f"`{paths[-1] if paths else '~/.torchxconfig'}`"


def _secret(section: dict[str, str], key: str) -> str:
    from torchx.schedulers.kit.secrets import look_up
    from torchx.specs.secret import VALUES, Secret

    example = f"{key} = env:NAME_OF_A_VARIABLE"
    hint = f"write `{example}` (or `cmd:COMMAND`, `file:PATH`) below `[{SECTION}]` in {_file()}"
    if not section.get(key):
        raise ConfigError(f"`[notify]` has no key `{key}`", hint=hint)
    try:
        reference = Secret(section[key])
    except SpecError:
        reference = None
    if reference is None or reference.kind not in VALUES:
        raise ConfigError(f"`[notify] {key}` is not a reference to a secret", hint=hint)
    permit(reference)
    value = look_up(key, reference)
    learn(value)
    return value
