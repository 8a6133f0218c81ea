"""Notices that a batch script sends about the end of its job, and what watchers learn from that."""

from __future__ import annotations

import json
import time

import pytest

from tests.runner.sinks import http_sink
from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.slurm import notices
from torchx.schedulers.slurm_scheduler import create_scheduler
from torchx.specs import AppDef, Role
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.notices import NOTIFY, NOTIFY_ON


def app(via="slack", on="end"):
    return AppDef("a", [Role("r", "", entrypoint="true")], metadata={NOTIFY: via, NOTIFY_ON: on})


@pytest.mark.parametrize(
    ("via", "on", "wanted"),
    [
        ("slack", "end", True),
        ("desktop,mail", "start,fail", True),
        ("webhook", "start", False),
        ("desktop", "end", False),
        ("exec:/bin/true", "end", False),
    ],
)
def test_what_a_node_can_send(via, on, wanted):
    """Channels that do not need the user's machine, for events at the job's end."""
    assert notices.is_wanted(Wishes.of(app(via, on))) is wanted
    scheduler = create_scheduler("s")
    script = str(scheduler.submit_dryrun(app(via, on), {}).request.materialize())
    assert ("\nnotify=" in script) is wanted
    scheduler.close()


def test_addresses_of_the_ways_that_need_no_machine_of_ours():
    """The job's folder has only these; none if there is nothing to send."""
    plan = {"name": "a", "on": ["end"], "channels": {"desktop": {}, "slack": {"url": "http://x"}}, "sent": {}}
    assert json.loads(notices.content(plan, "s"))["channels"] == {"slack": {"url": "http://x"}}
    assert notices.content({**plan, "channels": {"desktop": {}}}, "s") == ""
    assert notices.content(None, "s") == ""


@pytest.fixture
def folder(tmp_path):
    """The folder of a job that has just ended, and whose script has not sent anything yet."""
    (tmp_path / "notices.json").write_text("{}")
    (tmp_path / "events").write_text(f"5 start 0 7\n{time.time():.0f} end 0\n")
    return tmp_path


def taken(folder):
    return notices.taken(JobFolder(LocalFiles(), str(folder)))


def test_the_script_may_be_at_it(folder):
    """While it may still send, watchers do not; after it has finished, its record counts."""
    assert taken(folder) is None
    (folder / "notices.sent").write_text("slack \nmail the server cannot be reached: x\n")
    assert taken(folder) is None
    (folder / "notices.sent").write_text("slack \nmail the server cannot be reached: x\n. \n")
    assert taken(folder) == {"slack": "", "mail": "the server cannot be reached: x"}
    assert not (folder / "notices.json").exists()


@pytest.mark.parametrize(
    "events",
    ["5 start 0 7\n", "5 start 0 7\n9 end 0\n", f"5 start 0 7\n{time.time() + 3600:.0f} end 0\n"],
    ids=["killed", "long ago", "a clock that is ahead"],
)
def test_a_script_that_sends_no_more(folder, events):
    """It was killed, or ended long ago: its record counts, and the addresses are removed."""
    (folder / "events").write_text(events)
    (folder / "notices.sent").write_text("slack \nma")
    assert taken(folder) == {"slack": ""}
    assert not (folder / "notices.json").exists()


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("JobState=COMPLETING RunTime=00:01:02 TimeLimit=00:01:00", "TIMEOUT"),
        ("JobState=COMPLETING RunTime=1-00:00:00 TimeLimit=23:59:00", "TIMEOUT"),
        ("JobState=COMPLETING RunTime=00:00:02 TimeLimit=00:01:00", "CANCELLED"),
        ("JobState=COMPLETING RunTime=00:00:02 TimeLimit=UNLIMITED", "CANCELLED"),
        ("", "CANCELLED"),
    ],
)
def test_why_slurm_ends_it(monkeypatch, text, state):
    """Its run time decides; if Slurm does not answer, it was cancelled."""
    monkeypatch.setattr(notices, "output_lines", lambda *_: [text])
    assert notices._why_terminated("7") == state


@pytest.mark.parametrize(
    ("code", "on", "states"), [("0", "end", ["SUCCEEDED"]), ("3", "fail", ["FAILED"]), ("0", "fail", [])]
)
def test_what_is_sent(tmp_path, monkeypatch, code, on, states):
    """The status follows from the job's own files; the addresses are removed, and sent notices are recorded."""
    role = {"name": "r", "image": "", "entrypoint": "sh", "num_replicas": 1}
    (tmp_path / "job.json").write_text(json.dumps({"app": {"name": "a", "roles": [role], "metadata": {}}}))
    (tmp_path / "r" / "0").mkdir(parents=True)
    (tmp_path / "r" / "0" / "stderr.log").write_text("ValueError: bad lr\n")
    (tmp_path / "events").write_text(f"5 start 0 7\n5 up r/0 n1\n9 down r/0 {code}\n9 end {code}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr("sys.argv", ["notices", code, "0"])
    with http_sink() as sink:
        url = f"http://127.0.0.1:{sink.port}/x"
        plan = {"name": "a", "on": [on], "channels": {"webhook": {"url": url}}, "sent": {}}
        (tmp_path / "notices.json").write_text(notices.content(plan, "s"))
        notices.main()
        notices.main()
    assert [(d["handle"], d["state"]) for d in sink.got] == [("slurm://s/7", state) for state in states]
    assert all("exit code 3" in d["text"] and "ValueError: bad lr" in d["text"] for d in sink.got if code == "3")
    assert taken(tmp_path) == dict.fromkeys(["webhook"] * len(states), "")
    assert sorted(p.name for p in tmp_path.glob("notices*")) == ["notices.sent"]
