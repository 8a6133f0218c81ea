"""Bytes, trees and secrets that somebody may hand to us."""

from __future__ import annotations

import contextlib
import io
import os
import random
import socket
import string
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.torture.answers import mutated
from tests.torture.calls import Call

_BATCH = 50
CANARY = b"canary-of-the-world-outside"


def fuzz(rng: random.Random, place: Path) -> Iterator[str]:
    """The targets of `tests/fuzz`, with inputs that are like their seeds and unlike them."""
    from tests.fuzz.targets import TARGETS, seeds

    known = seeds()
    while True:
        name = rng.choice(sorted(TARGETS))
        batch = [
            mutated(rng, rng.choice(known[name])) if rng.random() < 0.8 else rng.randbytes(rng.randrange(400))
            for _ in range(_BATCH)
        ]
        ended = Call(partial(_try, TARGETS[name], batch)).ended()
        yield f"{name}: {ended.out[-300:]} {ended.err[-600:]}" if ended.code else ""
        yield from [""] * (_BATCH - 1)


def _try(target: Callable[[bytes], None], batch: list[bytes]) -> int:
    for data in batch:
        try:
            target(data)
        except BaseException:
            os.write(1, data.hex().encode()[:200])
            raise
    return 0


# -- workspaces ------------------------------------------------------------------------------------

_NAMES = (
    *("-rf", "a b", "a\nb", "..a", "~", "$HOME", "`id`", "x" * 200, "caf\udce9", "\u202e", "con", "%2e%2e", "*"),
    *("a'b\"c", "\x01", "Dockerfile", ".git", ".torchx-snapshots", "{}", "\\"),
)
_LINKS = (
    *("/etc/passwd", "..", "../..", "../outside", "../outside/secret", ".", "loop", "/", "gone"),
    *("a/../../outside/secret", "f1/../../outside", "f1", "../ws/f2", "/proc/self/root"),
)
_LINES = (
    *("FROM scratch", "FROM  $X AS", "COPY / /", "COPY ../outside/secret /x", "ADD http://h/x /", "# syntax=evil/x"),
    *("# escape=`", "RUN rm -rf / \\", "<<EOF", "\x00", "FROM " + "a" * 5000, "ARG X=${X:-${X}}", "\ufeffFROM x"),
    *("!**", "**", "*/../*", "[", "!.", "/", "!../outside/secret"),
)


def trees(rng: random.Random, place: Path) -> Iterator[str]:
    """Workspaces with links out, FIFOs, sockets, odd names and Dockerfiles: nothing from outside is taken along."""
    for number in range(1 << 30):
        top = place / str(number)
        (top / "outside").mkdir(parents=True)
        (top / "outside" / "secret").write_bytes(CANARY)
        (top / "other").write_bytes(b"a file that has another name in the workspace")
        made = _tree(rng, top / "ws")
        call = Call(partial(_pack, top), {"TORCHX_HOME": str(top / "home")})
        problem = call.ended().problem()
        yield problem and f"a workspace of {made}: {problem}"


def _tree(rng: random.Random, ws: Path) -> list[str]:
    folders, made = [ws], []
    ws.mkdir()
    for _ in range(rng.randrange(1, 14)):
        folder = rng.choice(folders)
        name = rng.choice(_NAMES) if rng.random() < 0.5 else f"f{rng.randrange(9)}"
        path = folder / name
        kind = rng.choice(("file", "file", "folder", "folder", "link", "link", "fifo", "socket", "closed", "hard"))
        if os.path.lexists(path):
            continue
        with contextlib.suppress(OSError, ValueError):
            _make(rng, path, kind)
            made.append(f"{kind} {str(path.relative_to(ws))!a}")
            if kind == "folder":
                folders.append(path)
    for name in ("Dockerfile.torchx", ".torchxignore", ".dockerignore"):
        if rng.random() < 0.4 and not os.path.lexists(ws / name):
            lines = [rng.choice(_LINES) for _ in range(rng.randrange(5))]
            (ws / name).write_text("\n".join(lines))
            made.append(f"{name} {lines!a}")
    return made


def _make(rng: random.Random, path: Path, kind: str) -> None:
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        os.symlink(rng.choice(_LINKS), path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(os.fspath(path))
    elif kind == "hard":
        os.link(_other(path), path)
    else:
        path.write_bytes(rng.randbytes(rng.randrange(2000)))
        if kind == "closed":
            path.chmod(0)


def _other(path: Path) -> Path:
    while path.name != "ws":
        path = path.parent
    return path.parent / "other"


def _pack(top: Path) -> int:
    """Hashes, packs and copies the workspace; complains of what came along or lies outside."""
    from torchx.errors import TorchXError
    from torchx.specs import Role, Workspace
    from torchx.workspace.content import content_hash, entries
    from torchx.workspace.dir_workspace import DirWorkspaceMixin
    from torchx.workspace.images.docker_context import context_chunks

    workspace = Workspace({str(top / "ws"): ""})
    problems = []
    with contextlib.suppress(TorchXError):
        content_hash(entries(workspace))
    with contextlib.suppress(TorchXError):
        problems += _of_archive(b"".join(context_chunks(workspace)))
    with contextlib.suppress(TorchXError):
        role = Role("r", "", entrypoint="e", workspace=workspace)
        DirWorkspaceMixin().caching_build_workspace_and_update_role(role, {"job_dir": str(top / "job")}, {})
        problems += _of_folder(top / "job")
    if (top / "outside" / "secret").read_bytes() != CANARY:
        problems.append("what is outside was changed")
    os.write(2, "\n".join(problems).encode("utf-8", "replace"))
    return 99 if problems else 0


def _of_archive(data: bytes) -> list[str]:
    problems = ["the canary is in the archive"] if CANARY in data else []
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            if member.name.startswith("/") or ".." in member.name.split("/"):
                problems.append(f"`{member.name!a}` leads out of the archive")
            if not (member.isfile() or member.isdir() or member.issym()):
                problems.append(f"`{member.name!a}` is neither file, folder nor link")
            target = os.path.normpath(os.path.join(os.path.dirname(member.name), member.linkname))
            if member.issym() and (member.linkname.startswith("/") or target.split("/")[0] == ".."):
                problems.append(f"link `{member.name!a}` leads out: `{member.linkname!a}`")
    return problems


def _of_folder(folder: Path) -> list[str]:
    problems = []
    real = os.path.realpath(folder)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            if os.path.islink(path):
                if not os.path.realpath(path).startswith(real):
                    problems.append(f"link `{path!a}` leads out")
            elif os.path.isfile(path) and CANARY in Path(path).read_bytes():
                problems.append(f"the canary is in `{path!a}`")
    return problems


# -- secrets ---------------------------------------------------------------------------------------

_CFG: dict[str, dict[str, object]] = {
    "local_cwd": {},
    "local_docker": {},
    "slurm": {},
    "lsf": {},
    "kubernetes": {"queue": "q"},
    "kubernetes_mcad": {"namespace": "ns"},
    "aws_batch": {"queue": "q"},
    "aws_sagemaker": {"role": "arn:aws:iam::123456789012:role/x", "instance_type": "ml.m5.large"},
}
_SECRET_NAMES = (
    *("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "GH_PAT", "MY_PASSWORD", "SLACK_TOKEN"),
    *("DB_PASSWD", "OPENAI_API_KEY"),
)
_SHAPES = ("hf_{}", "ghp_{}", "sk-{}", "https://u:{}@h.io/x", "postgresql://u:{}@h/db")


def secrets(rng: random.Random, place: Path) -> Iterator[str]:
    """Dry runs of every backend, as text and as JSON, with credentials in names, options, URLs and known shapes."""
    while True:
        scheduler = rng.choice(sorted(_CFG))
        word = "".join(rng.choices(string.ascii_letters + string.digits, k=36))
        shape = rng.choice(_SHAPES).format(word)
        where, env, args = rng.choice(
            (
                ("a variable", {rng.choice(_SECRET_NAMES): word}, []),
                ("a variable's value", {"PLAIN": shape}, []),
                ("an option", {}, ["--password", word]),
                ("an option", {}, [f"--api-key={word}"]),
                ("an argument", {}, [shape]),
            )
        )
        for as_json in (False, True):
            work = partial(_shows, scheduler, env, args, as_json=as_json)
            ended = Call(work, {"TORCHX_HOME": str(place)}).ended()
            problem = ended.problem()
            if word in ended.out + ended.err:
                problem = f"it is shown: {ended.out + ended.err}"
            elif not ended.code and len(ended.out) < 200:
                problem = f"nothing is shown: {ended.out}"
            yield problem and f"{scheduler}, {where}, `{env or args}`: {problem}"


def _shows(scheduler: str, env: dict[str, str], args: list[str], *, as_json: bool) -> int:
    from torchx.cli.spec_page import show_dryrun
    from torchx.errors import TorchXError
    from torchx.runner import get_runner
    from torchx.specs import AppDef, Resource, Role

    role = Role("r", "img", entrypoint="train", args=args, env=env, resource=Resource(1, 0, 64))
    with get_runner() as runner:
        try:
            info = runner.dryrun(AppDef("a", [role]), scheduler, dict(_CFG[scheduler]))  # type: ignore[arg-type]
        except TorchXError as e:
            print(f"{e}\n{e.hint}")
            return e.exit_code
    show_dryrun(info, as_json=as_json)
    print(info)
    return 0
