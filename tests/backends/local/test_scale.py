"""A thousand replicas in a job, thousands of runs on record: no verb gets slow, or large."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.backends.leftovers import gone, living, resident_peak_mb
from torchx.runs import NewRun, RunRegistry
from torchx.specs.api import AppDef, AppState, Role
from torchx.specs.serialize import appdef_to_dict
from torchx.supervisor.layout import COMBINED_LOG, REQUEST_FILE, STATE_FILE, STDOUT_LOG
from torchx.supervisor.statefile import SUCCEEDED, JobState, StateWriter

from .conftest import eventually
from .moments import Steps, command, count

REPLICAS = 1000
FEW, MANY = 50, 5000


@pytest.fixture
def torchx(tmp_path):
    """What a torchx command prints."""

    def call(*args: str) -> str:
        done = subprocess.run(command(*args), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-500:] + done.stderr
        return done.stdout

    return call


@pytest.mark.timeout(1200)
def test_a_thousand_replicas_through_every_verb(torchx, tmp_path) -> None:
    """Started, described, logged, followed and cancelled: all thousand of them, and nothing is left."""
    handle = torchx(
        "run", "utils.sh", "--num_replicas", str(REPLICAS), "echo I am ${replica_id}; exec sleep 1000"
    ).strip()

    def states() -> Counter[str]:
        status = json.loads(torchx("status", "--json", handle))
        return Counter(replica["state"] for role in status["roles"] for replica in role["replicas"])

    eventually(lambda: states() == {"RUNNING": REPLICAS}, 300)
    assert f"{REPLICAS:,} RUNNING" in torchx("status", handle) or f"{REPLICAS} RUNNING" in torchx("status", handle)
    assert f"{REPLICAS}" in torchx("describe", handle)
    wanted = sorted(f"sh/{k} I am {k}" for k in range(REPLICAS))
    eventually(lambda: sorted(torchx("log", handle).splitlines()) == wanted, 300)
    assert torchx("log", f"{handle}/sh/998,3-4").splitlines() == [f"sh/{k} I am {k}" for k in (3, 4, 998)]
    ways = {"all": ["-f"], "some": ["-f", "--regex", "I am", "--tail", "5", "--json"]}
    followers = {}
    for name, options in ways.items():
        with open(tmp_path / name, "wb") as followed:
            whole = command("log", *options, handle)
            followers[name] = subprocess.Popen(whole, cwd=tmp_path, stdout=followed, stderr=followed)
    for name in ways:
        eventually(lambda name=name: (tmp_path / name).read_bytes().count(b"\n") == REPLICAS, 300)  # type: ignore[misc]  # mypy cannot infer the default of a lambda
    peaks = {p.pid: resident_peak_mb(p.pid) for p in living("launcher.py") + living("bin/torchx log")}
    assert {name: _threads(follower.pid) for name, follower in followers.items()} == dict.fromkeys(ways, 1)
    torchx("cancel", handle)
    assert [follower.wait(300) for follower in followers.values()] == [0, 0]
    assert sorted((tmp_path / "all").read_text().splitlines()) == wanted
    objects = map(json.loads, (tmp_path / "some").read_text().splitlines())
    assert sorted(f"{o['role']}/{o['replica']} {o['line']}" for o in objects) == wanted
    gone("launcher.py")
    assert states() == {"CANCELLED": REPLICAS}
    assert json.loads(torchx("list", "--json"))["runs"][0]["state"] == "CANCELLED"
    assert not living("sleep 1000")
    assert len(peaks) >= 4 and max(peaks.values()) < 60, peaks


def _threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def _finished(home: Path, begin: int, end: int) -> None:
    """Runs that have ended, on record and with all of a job's files."""
    registry = RunRegistry(str(home / "runs.db"))
    app = AppDef("old", [Role("r", "", entrypoint="echo", args=["hi"])])
    request = json.dumps({"format": 1, "app": appdef_to_dict(app)})
    seen = []
    for n in range(begin, end):
        app_id = f"old-{n:06d}"
        handle = f"local_cwd://torchx/{app_id}"
        new = NewRun(scheduler="local_cwd", session="torchx", name="old", handle=handle, app=appdef_to_dict(app))
        registry.submitted(registry.begin(new), handle)
        seen.append((handle, AppState.SUCCEEDED, "", time.time()))
        folder = home / "local/torchx" / app_id
        (folder / "r/0").mkdir(parents=True)
        (folder / REQUEST_FILE).write_text(request)
        for name in (STDOUT_LOG, COMBINED_LOG):
            (folder / "r/0" / name).write_text(f"hi of {n}\n")
        facts = {"app_id": app_id, "name": "old", "session": "torchx", "handle": handle}
        facts |= {"host": os.uname().nodename, "logs": str(folder)}
        job = JobState(facts, [("r", 1)])
        job.state = job.replicas[0].state = SUCCEEDED
        job.created = job.ended = time.time()
        writer = StateWriter(str(folder / STATE_FILE), job)
        writer.flush()
        writer.close()
    registry.saw_many(seen)
    registry.close()


@pytest.mark.timeout(1200)
def test_every_verb_stays_flat_with_thousands_of_runs(tmp_path, monkeypatch) -> None:
    """With 5,000 finished runs on record each verb does the same work as with 50, and SQLite nearly so."""
    home = tmp_path / "home"
    monkeypatch.setenv("TORCHX_HOME", str(home))
    _finished(home, 0, FEW)
    one = "local_cwd://torchx/old-000020"
    verbs = {
        "status": ("status", one),
        "status of a prefix": ("status", "old-000020"),
        "status of the last": ("status", "@last"),
        "describe": ("describe", one),
        "log": ("log", one),
        "list": ("list", "--limit", "20"),
        "list of a state": ("list", "--limit", "20", "--state", "succeeded"),
        "list of a name": ("list", "--limit", "20", "--name", "ol*"),
        "cancel": ("cancel", one),
        "dryrun": ("run", "--dryrun", "utils.echo"),
        "run": ("run", "utils.echo"),
    }

    def measured() -> dict[str, Steps]:
        found = {}
        for name, args in verbs.items():
            count(tmp_path, *args)  # what is done once is done now
            found[name] = count(tmp_path, *args)
        gone("launcher.py")
        return found

    with_few = measured()
    _finished(home, FEW, MANY)
    with_many = measured()
    assert "hi of 20" in with_many["log"].out
    assert with_many["list"].out.count("\n") == 21
    for name in verbs:
        few, many = with_few[name], with_many[name]
        assert many.calls < few.calls * 1.05 + 500, (name, few.calls, many.calls)
        assert abs(len(many.names) - len(few.names)) <= 3, (name, few.names, many.names)  # queries, reads and writes
        assert many.queried < few.queried * 1.5 + 1000, (name, few.queried, many.queried)
    everything = count(tmp_path, "list", "--json", "--limit", "0")
    assert len(json.loads(everything.out)["runs"]) >= MANY
    assert everything.queried > MANY  # work would be seen
