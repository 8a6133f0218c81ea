"""Pages of what was, or would be, launched: the AppDef, the run options and their sources."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from torchx.cli.failures import note
from torchx.cli.render import bold, document, fields, gray, value_text
from torchx.config import DEFAULT
from torchx.runner.launch.record import masked_settings
from torchx.specs import AppDef, AppDryRunInfo, Resource, Role, serialize
from torchx.specs.mounts import format_mount
from torchx.specs.ready import has_order
from torchx.util.secrets import MASK, grade, mask_text
from torchx.util.shlex import join
from torchx.util.term import has_color, is_tty, printable

_SECTION = "\n# -- "  # begins a section in the scripts of backends; only the text before the first one is job-specific
# Shorter values are likely to occur elsewhere in the text.
_LEAST_SECRET = 4
_PACKED = re.compile(r"[A-Za-z0-9+/]{400,}={0,2}")  # base64


def show_dryrun(info: AppDryRunInfo[Any], *, as_json: bool, full: bool = False, manifest: bool = False) -> None:
    """Print what ``torchx run`` would submit, secrets masked.

    With ``manifest``, the request alone. With ``full``, also options at their default, and
    the sections of a script that are the same for every job.
    """
    app, scheduler = info._app, str(info._scheduler)
    shown = serialize.masked(app) if app is not None else None
    cfg = masked_settings(info.submission.settings, info._cfg)
    request = hide_secrets(str(info), app)
    if as_json:
        spec = serialize.appdef_to_dict(shown, fallback=repr) if shown is not None else None
        print(document({"dryrun": True, "scheduler": scheduler, "app": spec, "cfg": cfg, "request": request}))
        return
    if manifest:
        print(printable(request.strip(), lines=True))
        return
    color = has_color(sys.stdout)
    parts = [] if shown is None else [app_page(shown, color=color)]
    chosen = cfg if full else {key: setting for key, setting in cfg.items() if setting.get("source") != DEFAULT}
    if chosen:
        parts.append(cfg_page(chosen, title=f"options of {scheduler}", color=color))
    if not full:
        request, mark, rest = request.partition(_SECTION)
        left_out = (mark + rest).strip().count("\n") + 1 if mark else 0
        count = len(cfg) - len(chosen)
        more = [f"{count} default options"] * (count > 0)
        more += [f"{left_out} lines of script common to all jobs"] * (left_out > 0)
        request, packed = _PACKED.subn(lambda word: f"{word[0][:8]}... ({len(word[0]):,} characters)", request)
        more += ["packed programs"] * (packed > 0)
    parts.append(f"{bold(f'request to {scheduler}', color=color)}\n{_indent(request.strip())}")
    print("\n\n".join(parts))
    if not full and more and is_tty(sys.stderr):
        note(f"hidden (--full): {', '.join(more)}")


def app_page(
    app: AppDef, *, provenance: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}), color: bool = False
) -> str:
    """Format an AppDef, with a block for each role. The caller masks secrets.

    ``provenance`` holds image digests and workspace hashes, each by role name.
    """
    head = f"{bold('app', color=color)} {printable(app.name)}"
    if app.metadata:
        head += "\n" + fields([("metadata", _pairs(app.metadata))], indent="  ", color=color)
    if has_order(app):
        from torchx.schedulers.kit.order import graph

        order = graph(app)
        head += "\n" + fields([("order", "\n".join(order))], indent="  ", color=color)
    return "\n\n".join([head, *(_role_page(role, provenance, color=color) for role in app.roles)])


def cfg_page(cfg: Mapping[str, Mapping[str, Any]], *, title: str, color: bool = False) -> str:
    """Format run options with their values and sources."""
    rows = [(key, value_text(setting.get("value")), str(setting.get("source", ""))) for key, setting in cfg.items()]
    name_width = max((len(key) for key, _, _ in rows), default=0) + 1
    value_width = min(max((len(value) for _, value, _ in rows), default=0), 40)
    lines = [bold(title, color=color)]
    for key, value, source in rows:
        label = gray(f"{key}:", color=color) + " " * (name_width - len(key) - 1)
        lines.append(f"  {label}  {value:<{value_width}}  {gray(f'({source})', color=color)}".rstrip())
    return "\n".join(lines)


def hide_secrets(text: str, app: AppDef | None) -> str:
    """Masks the secrets of the job in ``text``, whatever format the text has."""
    for role in app.roles if app is not None else ():
        for name, value in role.env.items():
            if value.__class__ is str and grade(name, value) and len(value) >= _LEAST_SECRET:
                text = text.replace(value, MASK)
    return mask_text(text)


def _role_page(role: Role, provenance: tuple[Mapping[str, str], Mapping[str, str]], *, color: bool) -> str:
    replicas = f"{role.num_replicas} replica{'s' * (role.num_replicas != 1)}"
    if role.min_replicas is not None:
        replicas += f", at least {role.min_replicas}"
    retries = f"{role.max_retries}, policy {role.retry_policy.value}" if role.max_retries else ""
    digests, hashes = provenance
    pairs = [
        ("command", printable(join([role.entrypoint, *role.args]))),
        ("image", printable(role.image)),
        ("image digest", printable(digests.get(role.name, ""))),
        ("resource", _resource(role.resource)),
        ("retries", retries),
        ("env", _pairs(role.env)),
        ("ports", _pairs(role.port_map)),
        ("mounts", "\n".join(printable(format_mount(m)) for m in role.mounts)),
        ("workspace", printable(str(role.workspace)) if role.workspace else ""),
        ("workspace hash", printable(hashes.get(role.name, ""))),
        ("metadata", _pairs({key: value for key, value in role.metadata.items() if key != "torchx/sbatch"})),
    ]
    head = f"{bold('role', color=color)} {printable(role.name)} {gray(f'({replicas})', color=color)}"
    return f"{head}\n{fields(pairs, indent='  ', color=color)}"


def _resource(resource: Resource) -> str:
    if resource.is_unset:
        return ""
    parts = [f"{resource.cpu} cpu"] if resource.cpu >= 0 else []
    if resource.gpu > 0:
        parts.append(f"{resource.gpu} gpu")
    if resource.memMB >= 0:
        parts.append(f"{resource.memMB} MiB")
    parts += [f"{count} {name}" for name, count in resource.devices.items()]
    parts += [f"{name}={value}" for name, value in resource.capabilities.items()]
    return printable(", ".join(parts))


def _pairs(mapping: Mapping[str, Any]) -> str:
    return "\n".join(f"{printable(key)}={value_text(value)}" for key, value in mapping.items())


def _indent(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in printable(text, lines=True).splitlines())
