"""Placeholders in a role that only the scheduler can fill in."""

from __future__ import annotations

from torchx.util.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torchx.specs.api import Role
    from torchx.specs.mounts import BindMount, DeviceMount, VolumeMount

__all__ = ["macros"]


class macros:  # noqa: N801 - a public name
    """Names that a role's ``entrypoint``, ``args``, ``env``, ``metadata`` and ``mounts`` may contain.

    Only these five are replaced; any other ``$``, ``$$`` or ``${...}`` is left as it is, for the shell. ``$${``
    stands for a ``${`` that is not the beginning of a macro: components write ``$${`` + ``macros.rank0_env`` + ``}``
    for a variable of the shell whose name is the macro's value.

    >>> role_args = ["--id", macros.app_id, "${HOME}/$$", "$${app_id}", "$${" + macros.rank0_env + ":=localhost}"]
    >>> values = macros.Values(img_root="/img", app_id="job_1", replica_id="0", rank0_env="RANK0")
    >>> [values.substitute(arg) for arg in role_args]
    ['--id', 'job_1', '${HOME}/$$', '${app_id}', '${RANK0:=localhost}']
    """

    img_root = "${img_root}"
    """Root directory of the pulled image."""

    base_img_root = "${base_img_root}"
    """Root directory of the base image, where a scheduler keeps one apart; else as ``img_root``."""

    app_id = "${app_id}"
    """The id that the scheduler gave to the job."""

    replica_id = "${replica_id}"
    """Index of the replica within its role: 0, 1, 2, ..."""

    rank0_env = "${rank0_env}"
    """Name of the environment variable that holds the host name of replica 0."""

    @dataclass
    class Values:
        """What the macros stand for in one replica.

        Args:
            img_root: as above, and so the others.
            base_img_root: ``img_root`` when empty.
        """

        img_root: str
        app_id: str
        replica_id: str
        rank0_env: str
        base_img_root: str = ""

        def apply(self, role: Role) -> Role:
            """A new role with the macros replaced.

            ``args``, ``env``, ``metadata``, ``mounts`` and ``port_map`` of the new role are its own; the values that
            no macro can be in (``resource``, ``workspace``, ``overrides``) are shared with the given one.
            """
            table = self._table()
            new: Role = role.__class__.__new__(role.__class__)
            attributes = new.__dict__
            attributes.update(role.__dict__)
            attributes["entrypoint"] = _text(role.entrypoint, table)
            attributes["args"] = [_text(arg, table) for arg in role.args]
            attributes["env"] = {k: _text(v, table) for k, v in role.env.items()}
            attributes["metadata"] = {k: _any(v, table) for k, v in role.metadata.items()}
            attributes["mounts"] = [_mount(m, table) for m in role.mounts]
            attributes["port_map"] = dict(role.port_map)
            return new

        def substitute(self, arg: str) -> str:
            """``arg`` with the macros replaced."""
            return _text(arg, self._table())

        def _table(self) -> dict[str, str]:
            return {
                "img_root": str(self.img_root),
                "base_img_root": str(self.base_img_root or self.img_root),
                "app_id": str(self.app_id),
                "replica_id": str(self.replica_id),
                "rank0_env": str(self.rank0_env),
            }


def _text(text: str, table: dict[str, str]) -> str:
    # One pass by hand: a replaced value is not searched again, and `re` costs 5 ms to import.
    if text.__class__ is not str or "${" not in text:
        return text
    before, *rest = text.split("${")
    done = [before]
    for piece in rest:
        dollars = len(before) - len(before.rstrip("$"))
        name, brace, tail = piece.partition("}")
        value = table.get(name) if brace else None
        if dollars % 2:  # `$${`: the dollar before escapes this one
            done[-1] = done[-1][: len(done[-1]) - (dollars + 1) // 2]
            value = None
        done += (f"${{{piece}",) if value is None else (value, tail)
        before = piece if value is None else tail
    return "".join(done)


def split_macros(text: str) -> list[str]:
    """The text before, between and after its macros, and these, in turn.

    >>> split_macros("a ${app_id} ${b} $${app_id}")
    ['a ', '${app_id}', ' ${b} $${app_id}']
    """
    import re

    return re.split(r"(?<!\$)((?:\$\$)*\$\{(?:img_root|base_img_root|app_id|replica_id|rank0_env)\})", text)


def unescaped(text: str) -> str:
    """A text without macros as it is after they have been replaced.

    >>> unescaped("$${app_id} $5")
    '${app_id} $5'
    """
    return _text(text, {})


def _any(value: Any, table: dict[str, str]) -> Any:
    kind = value.__class__
    if kind is str:
        return _text(value, table)
    if kind is dict:
        return {k: _any(v, table) for k, v in value.items()}
    if kind is list:
        return [_any(v, table) for v in value]
    if kind is tuple:
        return tuple(_any(v, table) for v in value)
    return value


def _mount(
    mount: BindMount | VolumeMount | DeviceMount, table: dict[str, str]
) -> BindMount | VolumeMount | DeviceMount:
    new: BindMount | VolumeMount | DeviceMount = mount.__class__.__new__(mount.__class__)
    new.__dict__.update({k: _any(v, table) for k, v in mount.__dict__.items()})
    return new
