"""Static checks of a job, from its AppDef and local files, without a connection or another process.

They are part of every submission. Only a certain problem stops a submission: a file that does not exist here may be in
the image, or an earlier job may create it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torchx.errors import SpecError
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.findings import BAD, GOOD, UNKNOWN, Finding
from torchx.schedulers.kit.shell import quote
from torchx.settings import NO_CHECK
from torchx.specs.api import AppDef, Role, Workspace, macros
from torchx.specs.images import NamesOnly
from torchx.specs.wishes import Wishes
from torchx.util.notices import logger
from torchx.util.records import dataclass
from torchx.util.strings import nearest

_LITTLE_MB = 1024
_MACROS = [name for name in vars(macros) if not name.startswith("_") and name != "Values"]
_BRACES = re.compile(r"(?<!\$)\$\{(\w+)\}")
_WORKERS = re.compile(r"--nproc[-_]per[-_]node[ =](\d+)")


def refuse_scripts(app: AppDef, backend: Scheduler[Any], cfg: Mapping[str, Any]) -> None:
    """Raise SpecError, before workspaces are built, if a script will certainly not be where the job looks for it."""
    if NamesOnly.on or NO_CHECK.is_on():
        return
    for role in app.roles:
        if role.metadata.get("script"):
            act(script(role, backend, cfg, waits=bool(Wishes.of(app).after)))


def refuse_names(app: AppDef, backend: Scheduler[Any]) -> None:
    """Raise SpecError if a macro of the job is certainly wrong; warns about probable mistakes."""
    if NO_CHECK.is_on():
        return
    for role in app.roles:
        for finding in leftovers(role, backend):
            act(finding)


def act(finding: Finding | None) -> None:
    """Raise SpecError for a bad finding, and warns about another one, if there is a fix for it."""
    if finding is None or not finding.fix:
        return
    if finding.verdict == BAD:
        raise SpecError(f"{finding.what}: {finding.said}", hint=f"{finding.fix} (`--no-check` submits it as it is)")
    logger("torchx").warning("%s: %s; %s", finding.what, finding.said, finding.fix)


def findings(app: AppDef, backend: Scheduler[Any], cfg: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings of all static checks, including good ones."""
    for role in app.roles:
        found = [script(role, backend, cfg, waits=bool(Wishes.of(app).after)), *leftovers(role, backend)]
        found += [memory(role) if backend.capabilities.resources else None, _workers(role)]
        yield from (finding for finding in found if finding is not None)


def script(role: Role, backend: Scheduler[Any], cfg: Mapping[str, Any], *, waits: bool = False) -> Finding | None:
    """Check whether a role's script, which its component names in ``metadata``, is where the role will look for it.

    If the job ``waits`` for an earlier job, that may create the script.
    """
    name = role.metadata.get("script")
    if not isinstance(name, str) or not name or re.search(r"^[/~]|[${]", name):
        return None
    what, name = f"script of role `{role.name}`", os.path.normpath(name)
    from torchx.workspace.dir_workspace import DirWorkspaceMixin
    from torchx.workspace.similar import similar_file

    in_folder = isinstance(backend, DirWorkspaceMixin)
    if in_folder and not (cfg.get("job_dir") or cfg.get("jobdir") or cfg.get("ssh")):
        there = os.path.isfile(name) or os.path.isfile(os.path.join(role.image, name))
        problem = f"`{name}` is neither in `{os.getcwd()}`, where the job runs, nor in its image"
        place, certain = _Place("" if there else problem, "."), not role.image.startswith(("/", "~", "."))
    elif role.workspace:
        place, certain = _look(role.workspace, name), in_folder
    else:
        return None
    if not place.problem:
        return Finding(GOOD, what, f"`{name}` is there")
    contained = cfg.get("container") or cfg.get("container_image") or cfg.get("docker")
    if certain and place.root and not (contained or waits or name.startswith("..")):
        return Finding(BAD, what, place.problem, _way_to(name, place))
    if place.ignores or (place.root and similar_file(name, place.root)):
        return Finding(UNKNOWN, what, place.problem, _way_to(name, place))
    return Finding(UNKNOWN, what, f"{place.problem}; it may be in the image, or an earlier job may create it")


def leftovers(role: Role, backend: Scheduler[Any]) -> Iterator[Finding]:
    """Find macros where none are substituted, and probable typos in the names of macros."""
    if _BRACES.search(role.image):
        from torchx.workspace.docker_workspace import DockerWorkspaceMixin

        said = f"`{role.image}` contains a macro, but macros are not substituted in images"
        if isinstance(backend, DockerWorkspaceMixin):
            yield Finding(BAD, f"image of role `{role.name}`", said, "write the name itself: `--image HOST/NAME:TAG`")
    texts = [role.entrypoint, *role.args, *role.env.values()]
    for word in {found for text in texts if "${" in text for found in _BRACES.findall(text)} - {*_MACROS}:
        meant = nearest(word, _MACROS, cutoff=0.8)
        if meant and word not in role.env:
            said = f"`${{{word}}}` is not a macro and is not substituted; there is a macro `${{{meant}}}`"
            fix = f"write `${{{meant}}}`, or `$${{{word}}}` if a shell is meant"
            yield Finding(UNKNOWN, f"macros of role `{role.name}`", said, fix)


def memory(role: Role) -> Finding | None:
    """Check whether a role with GPUs has more memory than the default of components without GPUs."""
    gpus, mb = role.resource.gpu, role.resource.memMB
    if gpus <= 0 or mb is None or mb <= 0:
        return None
    what = f"memory of role `{role.name}`"
    if mb > _LITTLE_MB:
        return Finding(GOOD, what, f"{mb} MiB for {gpus} GPUs")
    said = f"{int(mb)} MiB with {gpus:d} GPUs and {int(role.resource.cpu)} CPUs: most training jobs run out of memory"
    usual = f"`--cpu {8 * gpus} --memMB {32768 * gpus}` is usual, or a named resource, such as `-h gpu.small`"
    return Finding(UNKNOWN, what, said, usual)


def _workers(role: Role) -> Finding | None:
    """Check that torchrun does not start more workers on a node than it has GPUs."""
    found, gpus = _WORKERS.search(" ".join(role.args)), int(role.resource.gpu)
    if found is None or gpus <= 0:
        return None
    what, said = f"workers of role `{role.name}`", f"{found[1]} on each node of {gpus} GPUs"
    if int(found[1]) <= gpus:
        return Finding(GOOD, what, said)
    fix = f"`-j {role.num_replicas}x{gpus}`, or `--gpu {found[1]}`"
    return Finding(UNKNOWN, what, f"{said}: some share a GPU, which NCCL does not support", fix)


@dataclass(frozen=True)
class _Place:
    """The result of a search for a file in a workspace.

    Attributes:
        problem: why the file is not in the workspace; empty if it is.
        root: the folder to search for similar files; empty if it is not certain.
        ignores: the ignore file whose rules exclude it.
    """

    problem: str
    root: str = ""
    ignores: str = ""


def _look(workspace: Workspace, name: str) -> _Place:
    from torchx.workspace.files import ignore_file, ignore_rules, open_workspace

    problem, root = f"`{name}` is not in the workspace `{workspace}`", ""
    for source, place in reversed([*workspace.projects.items()]):
        if "://" in source and not source.startswith(("file://", "local://")):
            return _Place(f"`{name}` may be in `{source}`, which was not looked at")
        inside = os.path.relpath(name, place) if place else name
        fs, root = open_workspace(source)
        if not os.path.isdir(root):
            return _Place(problem)  # building the workspace fails with an error of its own
        path = os.path.join(root, inside)
        if inside.startswith("..") or not os.path.isfile(path):
            continue
        if ignore_rules(fs, root).ignores(inside):
            ignores = ignore_file(fs, root)
            said = f"`{name}` is in the workspace `{root}`, but its `{ignores}` leaves it out"
            return _Place(said, root, ignores)
        inner = os.path.realpath(path).startswith(os.path.realpath(root) + os.sep)
        return _Place("", root) if inner else _Place(f"`{name}` is a link that leads out of the workspace")
    return _Place(problem, root)


def _way_to(name: str, place: _Place) -> str:
    """Return what the user should type to provide the script."""
    from torchx.workspace.similar import similar_file

    root = place.root
    if place.ignores:
        file = os.path.relpath(os.path.join(root, place.ignores))
        return f"take it back in: `printf '\\n!%s\\n' {quote(name)} >> {quote(file)}`"
    found = similar_file(name, root)
    if found:
        return f"did you mean `--script {quote(found)}`?"
    if os.path.isfile(name) and os.path.realpath(root) != os.path.realpath("."):
        return "it is in the current directory: `--workspace .`"
    return "give its path from there: `--script PATH`, or another `--workspace`"
