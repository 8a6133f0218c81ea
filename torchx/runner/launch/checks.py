"""Validates an AppDef: checks that names, numbers and texts are such that any scheduler could run it."""

from __future__ import annotations

from typing import Any

from torchx.errors import SpecError
from torchx.schedulers.kit.shell import is_name
from torchx.specs.api import MISSING, AppDef, BindMount, DeviceMount, Role, VolumeMount

MAX_REPLICAS = 1_000_000
_DEEPEST = 100


def check(app: AppDef, *, image_program: bool = False, odd_names: bool = False) -> None:
    """Raise SpecError for an AppDef that no scheduler could run; the message names the role and the problem."""
    if not hasattr(app, "roles"):
        raise SpecError(f"`{app!r}` is not an AppDef", hint="to run a component by its name, call `run_component`")
    _check_name(app.name, "the app")
    if not app.roles:
        raise SpecError(f"app `{app.name}` has no roles", hint="give it at least one: `AppDef(..., roles=[Role(...)])`")
    if app.metadata:
        _check_depth(app.metadata, f"the metadata of app `{app.name}`")
    names = set()
    for role in app.roles:
        if not hasattr(role, "entrypoint"):
            raise SpecError(
                f"app `{app.name}` has a role `{role!r}`, which is not a Role", hint="make it one: `Role(...)`"
            )
        _check_role(role, image_program, odd_names)
        if role.name in names:
            raise SpecError(f"app `{app.name}` has two roles `{role.name}`", hint="names of roles must differ")
        names.add(role.name)


def _check_role(role: Role, image_program: bool, odd_names: bool) -> None:
    _check_name(role.name, "a role")
    if role.entrypoint == MISSING or not (role.entrypoint or (image_program and role.entrypoint == "")):
        raise SpecError(
            f"role `{role.name}` has no entrypoint", hint="say what to run: `Role(..., entrypoint='python')`"
        )
    _check_text(role, "its entrypoint", role.entrypoint)
    if role.image:
        _check_text(role, "its image", role.image)
    _check_counts(role)
    _check_resource(role)
    for mount in role.mounts:
        if not isinstance(mount, (BindMount, VolumeMount, DeviceMount)):
            raise SpecError(
                f"role `{role.name}` has a mount `{mount!r}`, which is not a mount",
                hint="use BindMount, VolumeMount, DeviceMount",
            )
    if isinstance(role.args, str):
        raise SpecError(
            f"role `{role.name}` has `args={role.args!r}`, one string", hint="give a list: `args=['-c', 'foo']`"
        )
    for arg in role.args:
        _check_text(role, "an argument", arg)
    for name, value in role.env.items():
        if not (isinstance(name, str) and (is_name(name) or _is_dotted(name, value) or (odd_names and "=" in name))):
            raise SpecError(
                f"role `{role.name}`: `{name!r}` is not a valid name of an environment variable",
                hint="use letters, digits and underscores, and no digit at the start",
            )
        _check_text(role, f"the value of environment variable `{name}`", value)
    if role.metadata:
        _check_depth(role.metadata, f"the metadata of role `{role.name}`")


def _is_dotted(name: str, value: object) -> bool:
    """Return whether a name may be that of a variable, although a shell, which sets secrets, cannot hold it."""
    from torchx.schedulers.kit.secrets import is_secret

    return is_name(name.replace(".", "_")) and not is_secret(name, str(value))


def _check_counts(role: Role) -> None:
    for what, count, least in (("num_replicas", role.num_replicas, 1), ("max_retries", role.max_retries, 0)):
        if not isinstance(count, int) or isinstance(count, bool):
            raise SpecError(f"role `{role.name}` has `{what}={count!r}`", hint="it is a whole number")
        if not least <= count <= MAX_REPLICAS:
            raise SpecError(
                f"role `{role.name}` has `{what}={count if count < 10**20 else '10**20 or more'}`",
                hint=f"it needs {least} or more, and at most {MAX_REPLICAS:,}",
            )
    least_of = role.min_replicas
    if least_of is not None and not (least_of.__class__ is int and 1 <= least_of <= role.num_replicas):
        raise SpecError(
            f"role `{role.name}` has `min_replicas={least_of}` and `num_replicas={role.num_replicas}`",
            hint="`min_replicas` must be between 1 and `num_replicas`",
        )


def _check_resource(role: Role) -> None:
    for what in ("cpu", "gpu", "memMB"):
        amount = getattr(role.resource, what, "nothing")
        if amount is None and what == "memMB":
            continue
        if not isinstance(amount, (int, float)) or isinstance(amount, bool) or not abs(amount) < 1e18:
            raise SpecError(
                f"role `{role.name}` has `{amount!r}` as `{what}` of its resource",
                hint="it is a number: `Resource(cpu=4, gpu=1, memMB=16384)`",
            )


def _check_name(name: object, whose: str) -> None:
    if not name:
        kind = "Role" if whose == "a role" else "AppDef"
        raise SpecError(f"{whose} has no name", hint=f"give it one: `{kind}(name=...)`")
    if not isinstance(name, str) or not is_encodable(name):
        raise SpecError(f"{whose} has the name `{name!a}`, which is not text", hint="use letters of any script")


def _check_text(role: Role, what: str, value: Any) -> None:
    if value.__class__ is not str:
        _check_kind(role, what, value)
    if "\0" in value or not is_encodable(value):
        odd = "a NUL character" if "\0" in value else "half of a surrogate pair"
        raise SpecError(f"role `{role.name}`: {what}, `{value!a}`, has {odd} in it", hint="remove it")


def _check_kind(role: Role, what: str, value: object) -> None:
    from torchx.specs.secret import Secret

    if not isinstance(value, str):
        raise SpecError(
            f"role `{role.name}`: {what}, `{value!r}`, is of type {type(value).__name__}", hint="write it as a string"
        )
    if isinstance(value, Secret) and not what.startswith("the value of"):
        raise SpecError(
            f"role `{role.name}` has a Secret among its arguments, which every list of processes shows",
            hint="make it a value of `env`",
        )


def is_encodable(text: str) -> bool:
    """Whether a text can be passed to a program; bytes that are not UTF-8 are surrogates, as of ``os.fsdecode``."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _check_depth(value: object, what: str) -> None:
    """Raise SpecError for metadata that contains itself, or is nested too deeply."""
    level = [value]
    for _ in range(_DEEPEST):
        if not level:
            return
        below: list[object] = []
        for one in level:
            below += one.values() if isinstance(one, dict) else one if isinstance(one, (list, tuple)) else ()
        level = below[:MAX_REPLICAS]
    raise SpecError(f"{what} is more than {_DEEPEST} levels deep", hint="does it contain itself?")
