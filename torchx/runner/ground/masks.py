"""Restores values that are masked on record, when a run is launched again."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchx.config.files import ConfigFiles, active_profile
from torchx.errors import ConfigError
from torchx.runner.ground.secrets import SECTION, configured
from torchx.specs.api import AppDef, Role
from torchx.specs.secret import Secret
from torchx.specs.serialize import appdef_to_dict, masked
from torchx.util.records import replace
from torchx.util.redaction import MASK
from torchx.util.secrets import AMBIGUOUS, CERTAIN, mask_args, mask_env, mask_value

if TYPE_CHECKING:
    from torchx.runs import Run

Ask = Callable[[str], str]


def fill(app: AppDef, files: ConfigFiles, ask: Ask | None) -> list[str]:
    """Replace masks in ``app`` by values; return notes about the sources of those that were found without a prompt.

    Args:
        ask: prompts the user for a value; None: there is no user to ask.

    Raises:
        ConfigError: a value cannot be found; the hint says how to set it.
    """
    notes: dict[str, None] = {}
    answers: dict[str, str] = {}

    def answer(what: str, hint: str) -> str:
        if what not in answers:
            if ask is None:
                raise ConfigError(f"the value of {what} is not on record: it is masked there", hint=hint)
            answers[what] = ask(what)
        return answers[what]

    for role in app.roles:
        for name, value in role.env.items():
            if MASK in value:
                hint = f"set it: `export {name}=...`, or `--set env.{name}=VALUE`"
                known = _variable(name, value, files, notes)
                role.env[name] = known or value.replace(MASK, answer(f"`{name}`", hint))
        _fill_args(role, answer)
    for where, mapping in [("the app", app.metadata), *((f"role `{r.name}`", r.metadata) for r in app.roles)]:
        if MASK in str(mapping):
            raise ConfigError(
                f"the metadata of {where} hold a value that is masked on record", hint="launch it with `torchx run`"
            )
    return list(notes)


def for_display(run: Run) -> Run:
    """Return a copy of a recorded run for output: the record also has values that are credentials only perhaps."""
    app = run.appdef()
    return replace(
        run,
        app=appdef_to_dict(masked(app), fallback=repr) if app is not None else {},
        argv=mask_args(run.argv),
        cfg={key: {**setting, "value": mask_value(key, setting.get("value"))} for key, setting in run.cfg.items()},
    )


def without_values(app: AppDef) -> None:
    """Replace masked variables by references to environment variables: an export contains no values of secrets."""
    for role in app.roles:
        for name, value in role.env.items():
            if MASK in value:
                role.env[name] = Secret(f"env:{name}")


def fill_options(cfg: dict[str, Any], given: set[str]) -> None:
    """Raise ConfigError for a run option that is masked on record and is not in ``given``."""
    for key, value in cfg.items():
        if key not in given and MASK in str(value):
            raise ConfigError(
                f"the value of the option `{key}` is not on record: it is masked there", hint=f"add `-cfg {key}=VALUE`"
            )


def _variable(name: str, recorded: str, files: ConfigFiles, notes: dict[str, None]) -> str:
    """Return the new value of a variable: a reference from ``[secrets]``, or its value in this environment;
    else empty.
    """
    if files.section(SECTION, active_profile()).get(name) is not None:
        reference = configured(Secret(name), files)
        notes[f"`{name}` by `{reference}`, as [secrets] says"] = None
        return reference
    value = os.environ.get(name, "")
    if value and any(mask_env({name: value}, least)[name] == recorded for least in (AMBIGUOUS, CERTAIN)):
        notes[f"`{name}` from this environment"] = None
        return value
    return ""


def _fill_args(role: Role, answer: Callable[[str, str], str]) -> None:
    for i, arg in enumerate(role.args):
        if MASK not in arg:
            continue
        before = role.args[i - 1] if i and arg == MASK else arg.partition("=")[0]
        if len(before) > 40 or MASK in before:  # a shell command: its last words before the mask describe the value
            before = " ".join(arg.partition(MASK)[0].split()[-2:]) or f"argument {i}"
        hint = f"add `--set roles.{role.name}.args.{i}=VALUE`, or all arguments behind `--`"
        role.args[i] = arg.replace(MASK, answer(f"`{before}`", hint))
