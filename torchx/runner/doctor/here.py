"""Checks of this machine: installed extras, config files, disk space, run registry, shell completion."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from contextlib import closing

from torchx import config
from torchx.errors import TorchXError, install_extra
from torchx.runner.ground.backends import Backends
from torchx.runs.schema import VERSION, version_of
from torchx.schedulers.kit.findings import BAD, GOOD, TODO, UNKNOWN, Check, Finding, bad, disk_space, doubt
from torchx.settings import torchx_home

_EXTRAS = {
    "kubernetes": "kubernetes",
    "aws": "boto3",
    "docker": "docker",
    "mlflow": "mlflow",
    "hydra": "hydra",
    "tensorboard": "tensorboard",
    "ui": "starlette",
    "top": "textual",
    "stacks": "py_spy",
    "s3": "s3fs",
}
"""Extra -> a module of it. py-spy is a program, whose package has no module of that name everywhere."""
_SIGNS: dict[str, tuple[str, ...]] = {
    "slurm": ("sbatch",),
    "lsf": ("bsub",),
    "local_docker": ("/var/run/docker.sock", "DOCKER_HOST"),
    "kubernetes": ("~/.kube/config", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"),
    "aws_batch": ("~/.aws/config", "~/.aws/credentials", "AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
}
"""Scheduler -> programs, files or environment variables, one of which shows that it can be reached from here."""
_NEEDED_BY = {
    **dict.fromkeys(("kubernetes", "kubernetes_mcad"), "kubernetes"),
    **dict.fromkeys(("aws_batch", "aws_sagemaker"), "aws"),
    "local_docker": "docker",
}
_LOCKED_S = 0.5  # how long a locked record is waited for; all checks together have little more than two seconds
_RC_FILES = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/config.fish"}


def checks(backends: Backends, session: str) -> list[Check]:
    return [
        Check("packages", _packages),
        Check("schedulers", _schedulers),
        Check("config", lambda: _config(backends, session), certain=(TorchXError,)),
        Check("disk", lambda: _disk(torchx_home())),
        Check("record of runs", lambda: _record(torchx_home("runs.db"))),
        Check("completion", lambda: _completion(os.environ)),
    ]


def _packages() -> Iterator[Finding]:
    from importlib.util import find_spec

    missing = [extra for extra, module in _EXTRAS.items() if find_spec(module) is None]
    there = [extra for extra in _EXTRAS if extra not in missing]
    if there:
        yield Finding(GOOD, "", f"installed: {', '.join(there)}")
    if missing:
        fix = f"`{install_extra(missing[0])}`, if you need `{missing[0]}`"
        yield Finding(TODO, "", f"not installed: {', '.join(missing)}", fix)
    for section in config.load_files().names():
        if (extra := _NEEDED_BY.get(section)) in missing and extra:
            said = f"`[{section}]` of the config file needs the extra `{extra}`, which is not installed"
            yield bad(said, f"`{install_extra(extra)}`")


def _schedulers() -> Finding:
    from shutil import which

    found = []
    for name, signs in _SIGNS.items():
        if any(sign in os.environ or which(sign) or os.path.exists(os.path.expanduser(sign)) for sign in signs):
            found.append(name)
    if not found:
        return Finding(GOOD, "", "jobs run on this machine (local_cwd); no other scheduler was found here")
    named = " ".join(f"-s {name}" for name in found)
    return Finding(GOOD, "", f"also here: {', '.join(found)}; `torchx doctor {named}` checks them")


def _config(backends: Backends, session: str) -> Iterator[Finding]:
    paths, files = config.find_configs(), config.load_files()
    yield Finding(GOOD, "", f"read: {', '.join(paths)}" if paths else "no .torchxconfig here or in the home")
    for name in set(files.names()) & set(backends.factories()):
        try:
            opts = backends.run_opts(name, session)
        except TorchXError as e:
            yield bad(str(e), e.hint)
            continue
        section = files.section(name)
        for key in opts.unknown({key: entry.text for key, entry in section.items()}):
            error = config.unknown_option(name, opts, key, section[key].where())
            yield bad(str(error), error.hint)


def _disk(home: str) -> Finding:
    place = home
    while not os.path.exists(place):
        place = os.path.dirname(place)
    if not os.access(place, os.W_OK):
        fix = "`export TORCHX_HOME=$(mktemp -d)`, or another folder of yours"
        return bad(f"`{place}` cannot be written to: no run will be on record", fix)
    return disk_space(place, f"`du -sh {home}/*` shows what takes it; `torchx delete JOB` removes a job with its logs")


def _record(path: str) -> Iterator[Finding]:
    import sqlite3
    from urllib.parse import quote

    for aside in glob.glob(f"{glob.escape(path)}.*-*"):
        if not aside.endswith(("-wal", "-shm", "-journal")):
            newer = ".newer-" in os.path.basename(aside)
            why = "by an older torchx" if newer else "because it could not be used"
            fix = "`torchx list` takes it back" if newer else f"if its runs are not needed: `rm {aside}`"
            yield doubt(f"`{aside}` was set aside {why}", fix)
    if not os.path.exists(path):
        yield Finding(GOOD, "", f"`{path}` will be created by the first run")
        return
    problem, certain, count, mend = "", True, 0, "`torchx list` sets it aside, and begins a new one"
    try:
        url = f"file:{quote(os.fsencode(path))}?mode=ro"
        with closing(sqlite3.connect(url, uri=True, timeout=_LOCKED_S)) as db:
            version, said = version_of(db), str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
            if version > VERSION:
                problem = f"was written by a newer torchx (schema {version}, here {VERSION})"
                mend = "upgrade this torchx: until then, it works without runs on record"
            elif said != "ok":
                problem = f"is damaged: {said}"
            else:
                count = int(db.execute("SELECT count(*) FROM runs").fetchone()[0])
    except sqlite3.DatabaseError as e:  # including transient errors, such as a lock
        problem = f"cannot be read: {e}"
        certain = not isinstance(e, sqlite3.OperationalError) or "no such table" in str(e)
    if problem:
        yield Finding(BAD if certain else UNKNOWN, "", f"`{path}` {problem}", mend if certain else "")
    else:
        yield Finding(GOOD, "", f"{count:,} runs in `{path}`")


def _completion(environ: Mapping[str, str]) -> str | Finding:
    shell = os.path.basename(environ.get("SHELL", ""))
    if shell not in _RC_FILES:
        return doubt(f"torchx has no completion for `{shell}`" if shell else "SHELL is not set")
    file = os.path.expanduser(_RC_FILES[shell])
    try:
        with open(file, encoding="utf-8", errors="replace") as f:
            if "torchx completion" in f.read():
                return f"set up in `{file}`"
    except OSError:
        pass
    line = "torchx completion fish | source" if shell == "fish" else f'eval "$(torchx completion {shell})"'
    return Finding(TODO, "", f"not set up in `{file}`", f"`echo '{line}' >> {_RC_FILES[shell]}`")
