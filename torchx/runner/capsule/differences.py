"""Compares two recorded runs: code, images, arguments, options, resources, environment, outcome."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from torchx.errors import NotFoundError
from torchx.runner.capsule import code
from torchx.runs import Run
from torchx.settings import ENV_IMAGE_DIGEST, ENV_JOB_ID, ENV_WORKSPACE_HASH
from torchx.util.records import dataclass, field, replace
from torchx.util.secrets import mask_value
from torchx.util.shlex import SHELLS

_OURS = (ENV_JOB_ID, ENV_IMAGE_DIGEST, ENV_WORKSPACE_HASH)
"""Variables whose values are compared in other rows."""
_FIELDS = (
    *("num_replicas", "min_replicas", "max_retries", "retry_policy", "port_map", "mounts", "overrides"),
    *("after", "ready", "ends_job", "restarts_after"),
)


@dataclass(frozen=True)
class Difference:
    """One difference between two runs.

    Attributes:
        section: ``run``, ``code``, ``image``, ``arguments``, ``options``, ``origin``, ``resources``, ``environment``,
            ``metadata`` or ``outcome``.
        role: name of the role; empty for the job as a whole.
        name: name of the option, variable, ...
        a: value in the first run; None if it has none.
        b: value in the second run.
    """

    section: str
    role: str
    name: str
    a: Any
    b: Any


@dataclass
class Comparison:
    """The comparison of two runs.

    Attributes:
        rows: the differences.
        patch: output of ``git diff`` from the code of the first run to that of the second.
        unknown: what could not be compared, and why.
    """

    a: Run
    b: Run
    rows: list[Difference] = field(default_factory=list)
    patch: str = ""
    unknown: list[str] = field(default_factory=list)


def compare(a: Run, b: Run) -> Comparison:
    """Compare two runs, as far as they are on record. Masked values count as equal."""
    found = Comparison(a, b)
    rows = found.rows
    heads = ({"scheduler": r.scheduler, "name": r.name, "parent run": r.parent_run_id or None} for r in (a, b))
    rows += _values("run", "", *heads)
    _compare_code(found)
    roles_a, roles_b = _roles(a), _roles(b)
    for name in dict.fromkeys([*roles_a, *roles_b]):
        if name not in roles_a or name not in roles_b:
            rows.append(
                Difference("run", "", f"role {name}", *("yes" if name in r else None for r in (roles_a, roles_b)))
            )
            continue
        rows += _compare_role(name, roles_a[name], roles_b[name])
    rows += _options(a, b)
    rows += _values("metadata", "", a.app.get("metadata", {}), b.app.get("metadata", {}))
    rows += _values("outcome", "", *({"state": r.state.name, "message": r.msg or None} for r in (a, b)))
    found.rows = [replace(r, a=mask_value(r.name, r.a), b=mask_value(r.name, r.b)) for r in rows]
    return found


def _roles(run: Run) -> dict[str, dict[str, Any]]:
    roles = {str(role["name"]): role for role in run.app.get("roles", [])}
    return {
        name: {
            **role,
            "image": run.tags.get(f"image.{name}", role["image"]),
            "digest": run.image_digests.get(name),
            "hash": run.workspace_hashes.get(name),
        }
        for name, role in roles.items()
    }


def _compare_role(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    yield from _values("code", name, {"content": a["hash"]}, {"content": b["hash"]})
    yield from _values("image", name, *({"image": r["image"], "digest": r["digest"]} for r in (a, b)))
    yield from _values("arguments", name, _arguments(a), _arguments(b))
    yield from _values("resources", name, *({**{k: r.get(k) for k in _FIELDS}, **_resource(r)} for r in (a, b)))
    yield from _values("environment", name, *({k: v for k, v in r["env"].items() if k not in _OURS} for r in (a, b)))
    yield from _values("metadata", name, a.get("metadata", {}), b.get("metadata", {}))


def _resource(role: Mapping[str, Any]) -> dict[str, Any]:
    resource = dict(role.get("resource") or {})
    found = {k: resource.pop(k, None) for k in ("cpu", "gpu", "memMB")}
    for kind, mapping in resource.items():
        found.update({f"{kind}.{k}": v for k, v in (mapping or {}).items()})
    return found


def _arguments(role: Mapping[str, Any]) -> dict[str, Any]:
    """Options with their values, and positional arguments; the words of a shell command count as arguments, too.

    >>> _arguments({"entrypoint": "sh", "args": ["-c", "python train.py --lr 0.1 --bf16 x"]})
    {'program': 'sh', '-c': '', 'argument 1': 'python', 'argument 2': 'train.py', '--lr': '0.1', '--bf16': 'x'}
    """
    words: list[str | None] = []
    for i, arg in enumerate(role["args"]):
        line = i > 0 and str(role["args"][i - 1]).endswith("c") and os.path.basename(role["entrypoint"]) in SHELLS
        words += [None, *_split(str(arg))] if line else [str(arg)]  # None: start of a shell command
    found: dict[str, Any] = {"program": role["entrypoint"]}
    option, place = "", 0
    for word in words:
        if word is None:
            option = ""
            continue
        if word.startswith("-") and len(word) > 1 and not word[1:2].isdigit():
            option, equals, value = word.partition("=")
            found[option] = value if option not in found else f"{found[option]}, {value}"
            option = "" if equals else option
        elif option:
            found[option] += word
            option = ""
        else:
            place += 1
            found[f"argument {place}"] = word
    return found


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return [line]


def _options(a: Run, b: Run) -> Iterator[Difference]:
    if a.scheduler != b.scheduler:
        return  # the options of other schedulers cannot be compared
    values = ({k: s.get("value") for k, s in run.cfg.items()} for run in (a, b))
    rows = [*_values("options", "", *values)]
    yield from rows
    differing = {row.name for row in rows}
    sources = ({k: s.get("source") for k, s in run.cfg.items()} for run in (a, b))
    yield from (row for row in _values("origin", "", *sources) if row.name not in differing)


def _values(section: str, role: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys([*a, *b]):
        if a.get(name) != b.get(name):
            yield Difference(section, role, name, a.get(name), b.get(name))


def _compare_code(found: Comparison) -> None:
    """Compare the commits and the files of the code; add to ``unknown`` if git cannot."""
    a, b = found.a, found.b
    found.rows += _values("code", "", {"commit": a.git_commit or None}, {"commit": b.git_commit or None})
    if not (a.git_commit or b.git_commit):
        if not (a.workspace_hashes and b.workspace_hashes):
            found.unknown.append("the code: neither run was launched in a git repository")
        return
    try:
        if a.git_commit == b.git_commit and code.changes(a) == code.changes(b):
            return
        numbers, found.patch, notes = code.difference(a, b)
    except NotFoundError as e:
        found.unknown.append(f"the code: {e}")
        return
    found.unknown += notes
    for line in numbers.splitlines():
        added, removed, name = line.split("\t", 2)
        what = "changed" if added == "-" else f"+{added} -{removed}"
        found.rows.append(Difference("code", "", name, None, what))
