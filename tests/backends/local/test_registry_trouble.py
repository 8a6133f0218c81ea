"""The run registry as many commands, and bad luck, find it: jobs start all the same, and none is lost."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess

import pytest

from tests.backends.leftovers import gone

from .moments import command


@pytest.fixture
def torchx(tmp_path):
    """Run a torchx command in a folder of its own: exit code, output, errors."""

    def call(*args: str) -> tuple[int, str, str]:
        done = subprocess.run(command(*args), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture
def registry(monkeypatch, tmp_path):
    """Where the registry is."""
    home = tmp_path / "torchx home"
    monkeypatch.setenv("TORCHX_HOME", str(home))
    return home / "runs.db"


def test_fifty_submissions_at_once(torchx, registry, tmp_path) -> None:
    """50 `torchx run` from 50 processes: each job runs once, is on record once, and nobody complains."""
    work = 'echo "$0" >> "ran.$0"; echo "I am $0"'
    runs = [
        subprocess.Popen(
            command("run", "utils.sh", "--", "sh", "-c", work, str(n)),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(50)
    ]
    answers = [run.communicate(timeout=500) for run in runs]
    assert [run.returncode for run in runs] == [0] * 50, answers
    assert "".join(err for _, err in answers) == ""
    handles = [out.strip() for out, _ in answers]
    assert len(set(handles)) == 50
    gone("launcher.py")
    code, out, err = torchx("list", "--json")
    assert (code, err) == (0, "")
    listed = json.loads(out)["runs"]
    assert sorted(run["handle"] for run in listed) == sorted(handles)
    assert {run["state"] for run in listed} == {"SUCCEEDED"}
    assert all((tmp_path / f"ran.{n}").read_text() == f"{n}\n" for n in range(50))
    logs = [registry.parent / "local/torchx" / handle.rpartition("/")[2] / "sh/0/stdout.log" for handle in handles]
    assert [log.read_text() for log in logs] == [f"I am {n}\n" for n in range(50)]


def _is_replaced(torchx, registry, why: str) -> None:
    """A run starts, warns once that the file was set aside, and is on record in a new one."""
    before = registry.read_bytes()
    code, out, err = torchx("run", "--wait", "utils.echo", "--msg", "still here")
    assert code == 0, err
    handle = out.splitlines()[0]
    assert err.count(f"{registry}") == 2 and "set aside as" in err, err  # the file, and its new name
    (aside,) = registry.parent.glob(f"runs.db.{why}-*[0-9]")
    assert aside.read_bytes()[: len(before)] == before
    code, out, err = torchx("list", "--json")
    assert (code, err) == (0, "")
    assert [run["handle"] for run in json.loads(out)["runs"]] == [handle]
    assert torchx("log", "--no-prefix", "@last") == (0, "still here\n", "")


@pytest.mark.parametrize("seed", range(4))
def test_a_file_cut_off_at_a_random_byte(torchx, registry, seed: int) -> None:
    """Cut off anywhere, the file is set aside with a warning; the job starts and is on record in a new one."""
    assert torchx("run", "utils.echo")[0] == 0
    whole = registry.read_bytes()
    with open(registry, "r+b") as f:
        f.truncate(random.Random(seed).randrange(1, len(whole)))
    _is_replaced(torchx, registry, "damaged")


def test_a_file_of_a_newer_schema(torchx, registry) -> None:
    """A newer torchx's file is left as it is; a run starts, warns once that it is not recorded, and has its log."""
    assert torchx("run", "utils.echo")[0] == 0
    with sqlite3.connect(registry) as db:
        db.execute("PRAGMA user_version = 999")
    db.close()
    before = registry.read_bytes()
    code, out, err = torchx("run", "--wait", "utils.echo", "--msg", "still here")
    assert (code, err.count(f"`{registry}` was written by a newer torchx")) == (0, 1), err
    assert torchx("log", "--no-prefix", out.splitlines()[0])[:2] == (0, "still here\n")
    assert torchx("status", "@last")[0] == 3
    assert registry.read_bytes() == before
    assert [path.name for path in registry.parent.glob("runs.db.*-2*")] == []
