"""Placeholders in a role that the scheduler substitutes."""

from __future__ import annotations

from torchx.util.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torchx.specs.api import Role
    from torchx.specs.mounts import Mount


class macros:  # noqa: N801 - a public name
    """Placeholders for a role's ``entrypoint``, ``args``, ``env``, ``metadata`` and ``mounts``.

    Only these five, and the addresses of roles (:class:`torchx.specs.order.Addresses`: ``${role.NAME.host}``,
    ``.hosts``, ``.port.PORT``), are substituted; any other ``$``, ``$$`` or ``${...}`` is left for the shell.
    ``$${`` escapes a ``${``: components write ``$${`` + ``macros.rank0_env`` + ``}`` for the shell variable whose name
    is the value of the macro.

    >>> role_args = ["--id", macros.app_id, "${HOME}/$$", "$${app_id}", "$${" + macros.rank0_env + ":=localhost}"]
    >>> values = macros.Values(img_root="/img", app_id="job_1", replica_id="0", rank0_env="RANK0")
    >>> [values.substitute(arg) for arg in role_args]
    ['--id', 'job_1', '${HOME}/$$', '${app_id}', '${RANK0:=localhost}']
    """

    img_root = "${img_root}"
    """Root directory of the pulled image."""

    base_img_root = "${base_img_root}"
    """Root directory of the base image, if the scheduler has a separate one; otherwise ``img_root``."""

    app_id = "${app_id}"
    """Id of the job, assigned by the scheduler."""

    replica_id = "${replica_id}"
    """Index of the replica within its role, from 0."""

    rank0_env = "${rank0_env}"
    """Name of the environment variable that holds the host name of replica 0."""

    @dataclass
    class Values:
        """Values of the macros for one replica; an empty ``base_img_root`` means ``img_root``; ``addresses`` are those
        of roles, by macro.
        """

        img_root: str
        app_id: str
        replica_id: str
        rank0_env: str
        base_img_root: str = ""
        addresses: dict[str, str] = field(default_factory=dict)

        def apply(self, role: Role) -> Role:
            """Return a new role with the macros substituted.

            ``args``, ``env``, ``metadata``, ``mounts`` and ``port_map`` are copies; ``resource``, ``workspace`` and
            ``overrides``, which contain no macros, are shared with the given role.
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
            """Return ``arg`` with the macros substituted."""
            return _text(arg, self._table())

        def _table(self) -> dict[str, str]:
            return {
                "img_root": str(self.img_root),
                "base_img_root": str(self.base_img_root or self.img_root),
                "app_id": str(self.app_id),
                "replica_id": str(self.replica_id),
                "rank0_env": str(self.rank0_env),
                **self.addresses,
            }


def _text(text: str, table: dict[str, str]) -> str:
    # One pass, so that substituted values are not searched again; without `re`, whose import takes 5 ms.
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
    """Split a text into plain text and macros, which alternate.

    >>> split_macros("a ${app_id} ${b} $${app_id}")
    ['a ', '${app_id}', ' ${b} $${app_id}']
    """
    import re

    return re.split(r"(?<!\$)((?:\$\$)*\$\{(?:img_root|base_img_root|app_id|replica_id|rank0_env)\})", text)


def unescaped(text: str) -> str:
    """Return a text without macros as substitution would leave it: ``$${`` becomes ``${``.

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


def _mount(mount: Mount, table: dict[str, str]) -> Mount:
    new: Mount = mount.__class__.__new__(mount.__class__)
    new.__dict__.update({k: _any(v, table) for k, v in mount.__dict__.items()})
    return new
