"""Secrets in the environment of a role: finds the secret variables, and resolves their values at submission.

A backend that can pass a value to the replicas without exposing it has ``"value"`` in ``Capabilities.secrets``. It
excludes the secret variables (:func:`split`) from all that it stores or shows, and gets their values in ``schedule``
with :func:`revealed`. It passes on references of other kinds that it supports (``k8s``) unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from torchx.errors import ConfigError, NotSupportedError
from torchx.specs.secret import VALUES, Secret
from torchx.util.redaction import learn
from torchx.util.secrets import PLAIN, grade

MAX_BYTES = 128 << 10
"""Limit of Linux for the size of one environment variable, with its name, ``=`` and NUL."""

_COMMAND_S = 120.0  # enough for a user to type a passphrase


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is a Secret or a credential, by its name and value, such as ``HF_TOKEN``.

    >>> is_secret("MY_KEY", Secret("file:/k")), is_secret("HF_TOKEN", "hf_x"), is_secret("EPOCHS", "3")
    (True, True, False)
    """
    return isinstance(value, Secret) or grade(name, value) > PLAIN


def is_value(secret: str) -> bool:
    """Whether the value is known or resolved where the job is submitted, not by the backend."""
    return not isinstance(secret, Secret) or secret.kind in ("", *VALUES)


def split(env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split an environment into public and secret variables.

    >>> split({"EPOCHS": "3", "HF_TOKEN": "hf_x"})
    ({'EPOCHS': '3'}, {'HF_TOKEN': 'hf_x'})
    """
    secret = {name: value for name, value in env.items() if is_secret(name, value)}
    return {name: value for name, value in env.items() if name not in secret}, secret


def check(env: Mapping[str, str], taken: Collection[str], scheduler: str) -> None:
    """Rejects Secrets of kinds that are not among those ``taken`` by a scheduler, its ``Capabilities.secrets``."""
    for name, secret in env.items():
        if not isinstance(secret, Secret) or ("value" if is_value(secret) else secret.kind) in taken:
            continue
        forms = [
            *(f"`{kind}:`" for kind in VALUES if "value" in taken),
            *(["`k8s:NAME/KEY`"] if "k8s" in taken else []),
        ]
        hint = f"it takes {', '.join(forms)}" if forms else "let the program fetch it itself"
        if "aws-sm" in taken:
            hint = f"store it (`aws secretsmanager create-secret`), and name it by its ARN: `{name}=aws-sm:ARN`"
        raise NotSupportedError(f"`{scheduler}` cannot take secret `{name}` from `{secret}`", hint=hint)


def revealed(env: Mapping[str, str], known: dict[str, str]) -> dict[str, str]:
    """Replace references in an environment by their values; raise ConfigError if one cannot be resolved.

    New values are added to ``known``, usually ``specs.Submission.secrets``, so that a command runs once per submission.
    """
    found = {}
    for name, value in env.items():
        if isinstance(value, Secret):
            if value not in known:
                known[str(value)] = look_up(name, value)
            found[name] = known[value]
        else:
            found[name] = value
        if is_secret(name, value):
            learn(found[name])
    return found


def sources(env: Mapping[str, str]) -> list[str]:
    """Names of the variables on this machine that contain secrets, to hide them from programs that submit jobs.

    >>> sources({"HF_TOKEN": Secret("env:MY_HF"), "EPOCHS": "3"})
    ['HF_TOKEN', 'MY_HF']
    """
    _, secret = split(env)
    read = [v.place for v in secret.values() if isinstance(v, Secret) and v.kind in ("", "env")]
    return list(dict.fromkeys([*secret, *read]))


def look_up(name: str, secret: Secret) -> str:
    """Resolve the secret of the variable ``name``. Strips one trailing line end.

    The ConfigError, if there is no value, never contains the output of a command or the content of a file.
    """
    find = {"cmd": _from_command, "file": _from_file}.get(secret.kind, _from_variable)
    value = find(f"secret `{name}`", secret.place)
    value = value[:-1] if value.endswith("\n") else value
    too_long = len(os.fsencode(f"{name}={value}")) >= MAX_BYTES
    if not value or "\0" in value or too_long:
        odd = "empty" if not value else "longer than 128 KiB" if too_long else "not text"
        raise ConfigError(f"secret `{name}`: what `{secret}` gives is {odd}", hint="no variable can have that value")
    return value


def _from_variable(what: str, place: str) -> str:
    value = os.environ.get(place)
    if value is None:
        raise ConfigError(
            f"{what}: the variable `{place}` is not set here",
            hint=f"export it, or say where the value is: `{place}=cmd:COMMAND`, `{place}=file:PATH`",
        )
    return value


def _from_file(what: str, place: str) -> str:
    path = os.path.expanduser(place)
    if os.path.exists(path) and not os.path.isfile(path):
        raise ConfigError(f"{what}: `{path}` is not a file")
    try:
        with open(path, "rb") as f:
            return os.fsdecode(f.read(MAX_BYTES + 2))
    except OSError as e:
        raise ConfigError(f"{what}: `{path}` cannot be read: {e.strerror}") from None


def _from_command(what: str, place: str) -> str:
    import subprocess

    try:
        done = subprocess.run(
            ["/bin/sh", "-c", place], stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{what}: `{place}` did not end within {_COMMAND_S:g} s") from None
    if done.returncode:
        raise ConfigError(
            f"{what}: `{place}` failed with exit code {done.returncode}", hint="run it by itself to see what it says"
        )
    return os.fsdecode(done.stdout)
