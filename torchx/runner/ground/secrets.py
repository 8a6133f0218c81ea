"""Resolves the secrets of a job before it is submitted: their references, their values, and what the backend takes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torchx.config.files import ConfigFiles, active_profile
from torchx.errors import ConfigError, SpecError
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.secrets import check, is_value, revealed, split
from torchx.schedulers.kit.secrets import look_up as find_value
from torchx.specs.api import AppDef, AppDryRunInfo, Role
from torchx.specs.secret import Secret
from torchx.util.notices import logger
from torchx.util.redaction import MASK, learn

if TYPE_CHECKING:
    from torchx.runs import Run

SECTION = "secrets"


def record_source(role: Role, scheduler: str, backend: Scheduler[Any], files: ConfigFiles) -> None:
    """Replace names of secrets by their references in ``[secrets]``, and check that the backend supports them."""
    for name, value in role.env.items():
        if isinstance(value, Secret):
            role.env[name] = configured(value, files)
    check(role.env, backend.capabilities.secrets, scheduler)


def look_up(info: AppDryRunInfo[Any], backend: Scheduler[Any]) -> None:
    """Look up the values of the job's secrets before it is submitted, so that a missing value stops the submission."""
    plain: dict[str, None] = {}
    for role in info._app.roles if info._app is not None else ():
        _, secret = split(role.env)
        for value in secret.values():
            if isinstance(value, Secret):
                from torchx.config.trust import permit

                permit(value)
        revealed({name: value for name, value in secret.items() if is_value(value)}, info.submission.secrets)
        plain.update((name, None) for name, value in secret.items() if not isinstance(value, Secret))
    if plain and backend.backend != "local":  # local jobs get their environment in memory
        _warn_of_credentials([*plain], backend.capabilities.secrets)


def absolute(secret: Secret, cwd: str) -> Secret:
    """Return the reference, with an absolute path if it is one to a file; relative paths start in ``cwd``."""
    return Secret(f"file:{os.path.join(cwd, os.path.expanduser(secret.place))}") if secret.kind == "file" else secret


def secret_files(app: AppDef | None, files: ConfigFiles, cwd: str = "") -> list[str]:
    """Absolute paths of the files from which secrets of a job and of ``[secrets]`` are read.

    Relative ones start in ``cwd``, by default the current directory.
    """
    given = [entry.text or "" for entry in files.section(SECTION, active_profile()).values()]
    given += [v for role in (app.roles if app is not None else ()) for v in role.env.values() if isinstance(v, Secret)]
    found = [absolute(Secret(text), cwd or os.getcwd()) for text in given if text.startswith("file:")]
    return [os.path.normpath(secret.place) for secret in found]


def learned(run: Run | None) -> Run | None:
    """Return a recorded run, and masks its secrets as :func:`learn_roles` does."""
    app = run.appdef() if run is not None else None
    if run is not None and app is not None:
        learn_roles(app.roles, run.cwd)
    return run


def learn_roles(roles: Iterable[Role], cwd: str = "") -> None:
    """Masks the values of a recorded job's secrets in the output of this process, as far as they are available.

    References to variables and files (relative to ``cwd``) are resolved; references to commands are not. For a variable
    that is masked on record, the value in this environment is used.
    """
    for role in roles:
        for name, value in role.env.items():
            try:
                if isinstance(value, Secret) and value.kind in ("env", "file"):
                    learn(find_value(name, absolute(value, cwd)))
                elif value == MASK:
                    learn(os.environ.get(name, ""))
            except ConfigError:
                continue  # the value is not available here


def _warn_of_credentials(names: list[str], kinds: tuple[str, ...]) -> None:
    """Warns about plain variables that are named like credentials; the backend supports these kinds of secrets."""
    listed = ", ".join(f"`{name}`" for name in names)
    if "value" in kinds:
        what = "a secret" if len(names) == 1 else "secrets"
        logger("torchx").warning("handed over as %s, by the name: %s", what, listed)
    else:
        safer = "; `--secret NAME=aws-sm:ARN` would be safer" if "aws-sm" in kinds else ""
        logger("torchx").warning("anybody who can view the job can read: %s%s", listed, safer)


def configured(secret: Secret, files: ConfigFiles) -> Secret:
    """Return the reference for a name in ``[secrets]``; by default the environment variable of that name."""
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
