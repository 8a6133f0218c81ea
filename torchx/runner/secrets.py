"""Secrets of a job on its way to a scheduler: what the config files say of them, and whether it can be handed them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from torchx.config.files import ConfigFiles, active_profile
from torchx.errors import ConfigError, SpecError
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.secrets import check, is_value, revealed, split
from torchx.schedulers.kit.secrets import look_up as find_value
from torchx.specs.api import AppDryRunInfo, Role
from torchx.specs.secret import Secret
from torchx.util.notices import logger
from torchx.util.redaction import MASK, learn
from torchx.util.secrets import is_secret_name

SECTION = "secrets"


def settle(role: Role, scheduler: str, backend: Scheduler[Any], files: ConfigFiles) -> None:
    """Puts references in place of names that ``[secrets]`` knows, and refuses those that the backend cannot take.

    Raises:
        ConfigError: what a config file says of a name is not a reference.
        NotSupportedError: says what would work.
    """
    for name, value in role.env.items():
        if isinstance(value, Secret):
            role.env[name] = configured(value, files)
    check(role.env, backend.capabilities.secrets, scheduler)


def look_up(info: AppDryRunInfo[Any], backend: Scheduler[Any]) -> None:
    """Looks up the values of the job's secrets, so that one that is missing ends the submission before it begins.

    Raises:
        ConfigError: there is no value; says why.
    """
    plain: dict[str, None] = {}
    for role in info._app.roles if info._app is not None else ():
        _, secret = split(role.env)
        revealed({name: value for name, value in secret.items() if is_value(value)}, info._secrets)
        plain.update((name, None) for name, value in secret.items() if not isinstance(value, Secret))
    if plain and backend.backend != "local":  # where nothing is written down
        _note([*plain], backend.capabilities.secrets)


def learn_environment() -> None:
    """Has the values of this process's own credentials masked, for jobs may have been given them."""
    for name, value in os.environ.items():
        if is_secret_name(name) and not value.startswith("/"):  # nor a path: SSH_AUTH_SOCK
            learn(value)


def learn_roles(roles: Iterable[Role]) -> None:
    """Has the values of a recorded job's secrets masked in what this process prints, as far as they are at hand.

    References to variables and files are followed; of a variable that is masked on record, that of this process
    is taken. No command is run.
    """
    for role in roles:
        for name, value in role.env.items():
            try:
                if isinstance(value, Secret) and value.kind in ("env", "file"):
                    learn(find_value(name, value))
                elif value == MASK:
                    learn(os.environ.get(name, ""))
            except ConfigError:
                continue  # it is not here


def _note(names: list[str], taken: tuple[str, ...]) -> None:
    """Says what becomes of variables that have the names of credentials and were not given as secrets."""
    listed = ", ".join(f"`{name}`" for name in names)
    if "value" in taken:
        what = "a secret" if len(names) == 1 else "secrets"
        logger("torchx").warning("handed over as %s, by the name: %s", what, listed)
    else:
        safer = "; `--secret NAME=aws-sm:ARN` would be safer" if "aws-sm" in taken else ""
        logger("torchx").warning("whoever may look at the job can read: %s%s", listed, safer)


def configured(secret: Secret, files: ConfigFiles) -> Secret:
    """The reference that ``[secrets]`` has for a name; by default the variable of that name."""
    if secret.kind:
        return secret
    entry = files.section(SECTION, active_profile()).get(secret)
    if entry is None or not entry.text:
        return Secret(f"env:{secret}")
    try:
        found = Secret(entry.text)
    except SpecError as e:
        raise ConfigError(f"{entry.where()}: `{secret}`: {e}", hint=e.hint) from None
    if not found.kind:
        raise ConfigError(
            f"{entry.where()}: `{secret}`: a kind is missing", hint="write `env:NAME`, `cmd:COMMAND`, ..."
        )
    return found
