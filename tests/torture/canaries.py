"""Files of secrets in a git repository: what they hold is neither shown nor copied."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.torture.calls import torchx

_WORD = "canary-of-a-secret"
_KEY = "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n"
_KINDS = {
    "wandb.key": "{}\n",  # a secret is read from it
    ".env": "TOKEN={}\n",
    ".netrc": "machine h login u password {}\n",
    ".ssh/id_rsa": _KEY,
    "conf/server.pem": _KEY,
}
_WHEN = ("committed", "committed and changed", "not committed", "staged")
_SECRET = "WANDB_API_KEY=file:wandb.key"
_RUN = ("run", "--wait", "-s", "local_cwd", "--secret", _SECRET, "utils.sh", 'test -n "$WANDB_API_KEY"; cat code.txt')
_VERBS = (
    ("diff", "@last~1", "@last"),
    ("diff", "--full", "@last~1", "@last"),
    ("diff", "--json", "@last~1", "@last"),
    ("export", "@last", "-o", "{out}/then", "--code", "then"),
    ("export", "@last", "-o", "{out}/now", "--format", "sbatch"),
    ("rerun", "--code", "then", "--wait", "--log", "@last"),
    ("describe", "@last"),
    ("describe", "--json", "@last"),
    ("log", "@last"),
    ("status", "--json", "@last"),
    ("list", "--json"),
)


def canaries(rng: random.Random, place: Path) -> Iterator[str]:
    """Each kind of file, committed or not, through the verbs that record, show or copy code."""
    for number in range(1 << 30):
        folder = place / str(number)
        repository, out = folder / "repository", folder / "out"
        repository.mkdir(parents=True)
        out.mkdir()
        when = {name: rng.choice(_WHEN) for name in _KINDS if name == "wandb.key" or rng.random() < 0.5}
        env = {"TORCHX_HOME": f"{folder}/home", "HOME": str(folder), "TMPDIR": str(out), "TORCHX_ERROR_FILE": ""}
        _prepare(repository, when)
        for verb in (_RUN, None, _RUN, *rng.sample(_VERBS, 4)):
            if verb is None:
                _write(repository, "code.txt", "second\n")
                for name in [name for name in when if rng.random() < 0.5]:
                    _write(repository, name, _KINDS[name].format(f"{_WORD}-after"))
                continue
            argv = [word.format(out=out) for word in verb] if verb is not _RUN else list(verb)
            ended = torchx(argv, env, cwd=str(repository)).ended()
            refused = ended.code == 2 and "--format" in argv  # for the whole folder is a workspace then
            problem = "" if ended.code == 0 or refused else f"exit code {ended.code}: {ended.err[-300:]}"
            problem = ended.problem() or problem
            if _WORD in ended.out + ended.err:
                problem = f"a canary is shown: {ended.out + ended.err}"
            elif copies := _copies(folder, repository):
                problem = f"a canary is in {copies}"
            yield problem and f"`torchx {' '.join(argv)}` with {when}: {problem}"
            if problem:
                break


def _prepare(repository: Path, when: dict[str, str]) -> None:
    _git(repository, "init", "-q")
    _write(repository, "code.txt", "first\n")
    for name, how in when.items():
        if how.startswith("committed"):
            _write(repository, name, _KINDS[name].format(f"{_WORD}-then"))
    _git(repository, "add", "--all", "--force")
    _git(repository, "-c", "user.name=u", "-c", "user.email=u@h", "commit", "-qm", "x")
    for name, how in when.items():
        if how != "committed":
            _write(repository, name, _KINDS[name].format(f"{_WORD}-since"))
        if how == "staged":
            _git(repository, "add", "--force", name)


def _write(repository: Path, name: str, text: str) -> None:
    path = repository / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def _git(repository: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=repository, check=True, stdout=subprocess.DEVNULL)


def _copies(folder: Path, repository: Path) -> list[str]:
    """The files outside of the repository that hold a canary."""
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(parent, name) != repository]
        paths = [Path(parent, name) for name in files]
        found += [str(path) for path in paths if path.is_file() and _WORD.encode() in path.read_bytes()]
    return found
