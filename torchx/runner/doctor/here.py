"""What there is to be said of this machine: what torchx finds installed, reads, and writes to."""

from __future__ import annotations

import os

from torchx.errors import install_extra
from torchx.schedulers.findings import BAD, GOOD, UNKNOWN, Check, Finding, disk_space
from torchx.settings import torchx_home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torchx.runner.backends import Backends

_EXTRAS = {"docker": "docker", "kubernetes": "kubernetes", "aws": "boto3", "mlflow": "mlflow", "ui": "starlette"}
_NEEDED_BY = {
    **dict.fromkeys(("kubernetes", "kubernetes_mcad"), "kubernetes"),
    **dict.fromkeys(("aws_batch", "aws_sagemaker"), "aws"),
    "local_docker": "docker",
}
_RC_FILES = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/config.fish"}


def checks(backends: Backends, session: str) -> list[Check]:
    """The questions about this machine."""
    return [
        Check("packages", _packages),
        Check("config", lambda: _config(backends, session)),
        Check("disk", lambda: _disk(torchx_home())),
        Check("record of runs", lambda: _record(torchx_home("runs.db"))),
        Check("completion", lambda: _completion(os.environ)),
    ]


def _packages() -> Iterator[Finding]:
    from importlib.util import find_spec

    from torchx import config

    missing = [extra for extra, module in _EXTRAS.items() if find_spec(module) is None]
    there = [extra for extra in _EXTRAS if extra not in missing]
    said = "; ".join(f"{head}: {', '.join(names)}" for head, names in (("installed", there), ("not", missing)) if names)
    yield Finding(GOOD, "packages", f"of the extras, {said}")
    for section in config.load_files().names():
        if (extra := _NEEDED_BY.get(section)) in missing and extra:
            said = f"`[{section}]` of the config file needs the extra `{extra}`, which is not installed"
            yield Finding(BAD, "packages", said, f"`{install_extra(extra)}`")


def _config(backends: Backends, session: str) -> Iterator[Finding]:
    from torchx import config
    from torchx.errors import TorchXError

    try:
        paths, files = config.find_configs(), config.load_files()
    except TorchXError as e:
        yield Finding(BAD, "config", str(e), e.hint)
        return
    yield Finding(GOOD, "config", f"read: {', '.join(paths)}" if paths else "no .torchxconfig here or in the home")
    for name in set(files.names()) & set(backends.factories()):
        try:
            opts = backends.run_opts(name, session)
        except TorchXError as e:
            yield Finding(BAD, "config", str(e), e.hint)
            continue
        section = files.section(name)
        for key in opts.unknown({key: entry.text for key, entry in section.items()}):
            error = config.unknown_option(name, opts, key, section[key].where())
            yield Finding(BAD, "config", str(error), error.hint)


def _disk(home: str) -> Finding:
    place = home
    while not os.path.exists(place):
        place = os.path.dirname(place)
    if not os.access(place, os.W_OK):
        fix = "`export TORCHX_HOME=$(mktemp -d)`, or another folder of yours"
        return Finding(BAD, "disk", f"`{place}` cannot be written to: no run will be on record", fix)
    return disk_space(place, f"`du -sh {home}/*` shows what takes it; `torchx delete JOB` removes a job with its logs")


def _record(path: str) -> Iterator[Finding]:
    import glob
    import sqlite3
    from urllib.parse import quote

    from torchx.runs.schema import VERSION

    what = "record of runs"
    for aside in glob.glob(f"{glob.escape(path)}.*-*"):
        if not aside.endswith(("-wal", "-shm", "-journal")):
            fix = f"when nobody misses its runs: `rm {aside}`"
            yield Finding(UNKNOWN, what, f"`{aside}` was set aside, since it could not be used", fix)
    if not os.path.exists(path):
        yield Finding(GOOD, what, f"`{path}` is made with the first run")
        return
    mend = "`torchx list` sets it aside, and begins a new one"
    try:
        db = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)
        try:
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            said = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
            count = int(db.execute("SELECT count(*) FROM runs").fetchone()[0]) if said == "ok" else 0
        finally:
            db.close()
    except sqlite3.OperationalError as e:
        verdict = UNKNOWN if "no such table" not in str(e) else BAD
        yield Finding(verdict, what, f"`{path}` cannot be read: {e}", mend if verdict == BAD else "")
        return
    except sqlite3.DatabaseError as e:
        yield Finding(BAD, what, f"`{path}` is damaged: {e}", mend)
        return
    if version > VERSION:
        yield Finding(BAD, what, f"`{path}` was written by a newer torchx (schema {version}, here {VERSION})", mend)
    elif said != "ok":
        yield Finding(BAD, what, f"`{path}` is damaged: {said}", mend)
    else:
        yield Finding(GOOD, what, f"{count:,} runs in `{path}`")


def _completion(environ: Mapping[str, str]) -> Finding:
    shell = os.path.basename(environ.get("SHELL", ""))
    if shell not in _RC_FILES:
        return Finding(UNKNOWN, "completion", f"`{shell or 'no shell'}` is not one that torchx completes words for")
    file = os.path.expanduser(_RC_FILES[shell])
    try:
        with open(file, encoding="utf-8", errors="replace") as f:
            there = "torchx completion" in f.read()
    except OSError:
        there = False
    if there:
        return Finding(GOOD, "completion", f"set up in `{file}`")
    line = "torchx completion fish | source" if shell == "fish" else f'eval "$(torchx completion {shell})"'
    return Finding(UNKNOWN, "completion", f"not set up in `{file}`", f"`echo '{line}' >> {_RC_FILES[shell]}`")
