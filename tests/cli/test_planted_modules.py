"""A current directory with a `json.py` or a `torchx` in it: whatever torchx starts imports from elsewhere."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call, until
from torchx.runner.inside.ssh import entry
from torchx.schedulers.batch.attempts import program, script
from torchx.schedulers.kit.inside.run import python_words
from torchx.util.procs import own_program

TORCHX = Path(__file__).parents[2] / "torchx"
PLANTED = ("json.py", "queue.py", "re.py", "subprocess.py", "torchx/__init__.py", "torchx/supervisor/__init__.py")
LAST = "@last/sh/0"


@pytest.fixture
def planted(project: Path) -> Path:
    """A current directory with modules that leave a file `marker` and fail."""
    for name in PLANTED:
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(project / 'marker')!r}, 'a').write({name!r}); raise SystemExit('planted')\n")
    return project


def test_every_verb(planted: Path, torchx: Call) -> None:
    """Each verb that starts a process works: supervisor, retries, watchdog, notices, sweeps, programs in replicas."""
    (planted / "hook.sh").write_text(f"#!/bin/sh\ntouch {planted}/noticed\n")
    (planted / "hook.sh").chmod(0o755)
    run = ["run", "-s", "local_cwd"]
    watched = ["--watchdog", "2s:cancel", "--notify", "exec:./hook.sh"]
    silent = torchx(*run, *watched, "utils.sh", "sleep 60").out.strip()
    assert torchx(*run, "--wait", "--retry", "error:1", "utils.sh", "test -e once || { touch once; exit 3; }").code == 0
    assert torchx("sweep", "-s", "local_cwd", "--grid", "n=1,2", "utils.sh", "exit 0 {n}").code == 0
    assert torchx("wait", "@last").code == 0
    assert torchx(*run, "utils.sh", "touch up; sleep 600").code == 0
    until((planted / "up").exists)
    assert "sh/0" in torchx("stacks", "@last").out
    assert torchx("exec", LAST, "--", "true").code == 0
    assert torchx("cp", f"{LAST}:up", "copied").code == 0
    assert torchx("simulate", "kill", "@last").code == 0
    for verb in ("status", "describe", "log", "metrics", "wait", "why", "diff", "delete"):
        torchx(verb, "@last")
    for verb in ("list", "doctor", "plugins", "builtins", "runopts", "configure"):
        torchx(verb)
    assert "no output for" in torchx("wait", silent).out
    until((planted / "noticed").exists)
    assert not (planted / "marker").exists()


def test_pages(planted: Path, torchx: Call) -> None:
    """The page's log, the screen's shell, and the entry for `ssh` start torchx itself."""
    pytest.importorskip("starlette")
    pytest.importorskip("textual")
    from torchx.ui.follow import log_lines
    from torchx.ui.top import app

    handle = torchx("run", "-s", "local_cwd", "utils.sh", "echo hello; touch up; sleep 600").out.strip()
    until((planted / "up").exists)

    async def first() -> Any:
        lines = log_lines(handle, last=1, stream=None)
        try:
            return await anext(lines)
        finally:
            await lines.aclose()

    assert asyncio.run(first()) == [{"role": "sh", "replica": 0, "line": "hello"}]
    calls: list[list[str]] = []
    real = subprocess.call
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "call", lambda words: calls.append(words) or real([*words[:3], "--version"]))
        app._shell(handle)
    assert calls[0][3:] == ["shell", "--", handle]
    text = entry(handle, ("sh", 0), name="n", user="me", keys="")
    proxy = next(line for line in text.splitlines() if "ProxyCommand" in line).replace("%%", "%").split(None, 1)[1]
    done = subprocess.run(
        ["sh", "-c", re.sub(r" -- sh .*", " -- echo entered", proxy)], capture_output=True, check=False
    )
    assert (done.stdout, done.returncode) == (b"entered\n", 0), done.stderr
    assert torchx("cancel", "@last").code == 0
    assert not (planted / "marker").exists()


@pytest.mark.parametrize("module", ["attempts failed 1", "hangs look", "notices 0 0"])
def test_programs_on_nodes(planted: Path, module: str) -> None:
    """The archive's programs, started in the job's folder as its script does, by each of its functions."""
    (planted / "retry.pyz").write_bytes(os.fsencode(program("slurm")))
    words = module.split()
    start = {"attempts": "decide", "hangs": "start_watch"}.get(words[0], "")
    call = f"wish=look; {start} {' '.join(words[1:])}; wait" if start else f'"$python" "$folder/retry.pyz" {module}'
    text = f"{script(__file__)}\npython={sys.executable} watch=$python folder=$PWD\n{call}"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False, cwd=planted)
    said = done.stdout + done.stderr + "".join(path.read_text() for path in planted.glob("*.log"))
    assert "planted" not in said
    assert not (planted / "marker").exists()


def test_programs_inside_replicas(planted: Path) -> None:
    """A replica's working directory is the user's code: the programs that look around there ignore its modules."""
    done = subprocess.run(python_words("import json, re; print(json.dumps(1))"), capture_output=True, check=True)
    assert done.stdout == b"1\n"


def test_another_torchx_and_backports(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This torchx is started, not one that is found first; and nothing beside it replaces a standard module."""
    for name in ("torchx", "json.py"):
        (planted / "lib").mkdir(exist_ok=True)
        (planted / name).rename(planted / "lib" / name)
    monkeypatch.setenv("PYTHONPATH", str(planted / "lib"))
    (planted / "lib" / "json.py").unlink()
    done = subprocess.run([*own_program("torchx.cli.main"), "--version"], capture_output=True, text=True, check=False)
    assert (done.stdout[:7], done.stderr) == ("torchx ", "")
    path = subprocess.run(own_program("tests.cli.test_planted_modules"), capture_output=True, text=True, check=True)
    assert path.stdout.split()[-1] == str(TORCHX.parent)


def main() -> None:
    """Prints the search path, for the test above."""
    print(*sys.path)


def test_there_is_one_way() -> None:
    """No program of torchx is started with `-m`, which imports from the current directory first."""
    found = re.compile(r'executable[^\n]*"-m"|python\d?"? -m torchx|\$\w+"? -m ')
    sources = [p for p in TORCHX.rglob("*") if p.suffix in (".py", ".sh")]
    lines = [f"{p.name}: {line}" for p in sources for line in p.read_text().splitlines() if found.search(line)]
    assert [line for line in lines if "``" not in line and "#" not in line] == []
