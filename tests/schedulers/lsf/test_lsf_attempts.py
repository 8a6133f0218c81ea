"""Retries on LSF: what the first replica that fails learns on its host, and how the next attempt is submitted."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import SpecError
from torchx.schedulers.lsf import attempts
from torchx.schedulers.lsf.options import Opts
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs import AppDef, Resource, RetryPolicy, Role
from torchx.specs.serialize import appdef_to_dict
from torchx.specs.wishes.retries import RETRY, Attempt

OPTIONS: dict[str, Any] = {"resreq": "select[type==any]", "bsub_args": "-G team", "time": "1:30"}


def app(policy: str = "standard, error:2", **role: Any) -> AppDef:
    return AppDef(
        "a", [Role("r/x", "", entrypoint="p", num_replicas=2, resource=Resource(1, 0, 100), **role)], {RETRY: policy}
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job whose replicas have started; LSF's commands return nothing."""
    monkeypatch.setattr(attempts, "output_lines", lambda *_: [])
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "job.json").write_text(json.dumps({"name": "a-x1", "app": appdef_to_dict(app())}))
    (tmp_path / "retry.json").write_text(json.dumps(dict(Opts(**OPTIONS))))
    (tmp_path / "run.0.7").write_text("n1\n")
    for k in (0, 1):
        (tmp_path / "r%2fx" / str(k)).mkdir(parents=True)
    return tmp_path


def ended(folder: Path, how: str = "failed", **more: str) -> Attempt | None:
    """The record after replica 0 has exited with code 3."""
    (folder / "r%2fx" / "0" / "exit").write_text(f"3 {int(how == 'killed')} {time.time():.0f}\n")
    return attempts.attempt_ended(str(folder), how, (0, 0), **more)


def test_a_failure_is_judged(folder: Path) -> None:
    """The record has its class, the replica's last line, and the start of the next attempt's logs; LSF need not answer."""
    (folder / "r%2fx" / "0" / "stderr.log").write_text("ValueError: no data\n")
    first = ended(folder)
    assert first and (first.kind, first.again, first.why) == ("error", True, "error: retry 1 of 2")
    assert first.cause == "r/x/0: exit code 3: ValueError: no data"
    assert first.more["begins"]["r%2fx/0/stderr.log"] == 20
    assert first.started == os.stat(folder / "run.0.7").st_mtime
    second = ended(folder)
    assert second and second.cause == "r/x/0: exit code 3"


@pytest.mark.parametrize(
    ("how", "answer", "kind"),
    [
        ("timeout", [], "timeout"),
        ("killed", ["100 Mbytes|100 M"], "oom"),
        ("killed", ["1.9 Gbytes|1.9 G"], "oom"),
        ("killed", ["80 Mbytes|100 M"], ""),
        ("killed", ["-|-"], ""),
        ("killed", [], ""),
        ("requeued", ["HOST_NAME STATUS JL/U", "n3 unavail -"], "node"),
        ("requeued", ["HOST_NAME STATUS JL/U", "n3 unreach -"], "node"),
        ("requeued", ["HOST_NAME STATUS JL/U", "n3 ok -"], "preempted"),
        ("requeued", [], "preempted"),
    ],
)
def test_why_lsf_ended_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, how: str, answer: list[str], kind: str
) -> None:
    """Memory and host states from LSF's commands decide; a cancelled attempt is not recorded."""
    monkeypatch.setattr(attempts, "output_lines", lambda *_: answer)
    found = ended(folder, how, host="n3" if how == "requeued" else "")
    assert (found.kind if found else "") == kind
    assert not found or kind not in ("node", "preempted") or found.hosts == ["n3"]


def test_the_next_submission(folder: Path) -> None:
    """It has more memory and excludes failed hosts, in addition to the user's own options for hosts and bsub."""
    script = attempts.next_submission(str(folder), Attempt(avoid=["n1", "n-2"], memory=1.5))
    lines = [shlex.split(line) for line in script.splitlines() if line.startswith("bsub")]
    assert [words[-3] for words in lines] == [f"$run 0 {k} $attempt" for k in (0, 1)]
    for words in lines:
        needs = [words[i + 1] for i, word in enumerate(words) if word == "-R"]
        assert needs == [
            "select[type==any] rusage[mem=150MB] span[hosts=1]",
            "select[hname!='n1' && hname!='n-2']",
        ]
        given = " ".join(words)
        assert all(part in given for part in ("-M 150MB", "-G team", " -r -wa URG -wt 2 ", "-W 1:30"))


def test_what_is_submitted_first() -> None:
    """Only a job with a policy has the parts for it."""
    lsf = LsfScheduler("s")
    script = lsf.submit_dryrun(app(), {"time": "1"}).request
    assert 'attempt=$(cat "$job/attempt"' in script.materialize()
    assert "-wa" not in script.materialize()  # no whole minute is left before
    assert "torchx_judged()" in script.replicas() and "decide()" in script.replicas()
    plain = lsf.submit_dryrun(AppDef("a", app().roles), {}).request
    assert "attempt" not in plain.materialize()
    assert "torchx_judged()" not in plain.replicas() and "python=''" in plain.replicas()


@pytest.mark.parametrize(
    ("job", "cfg", "said"),
    [
        (app(retry_policy=RetryPolicy.ROLE), {}, "starts the whole job again"),
        (app("oom:2:mem*2"), {"memory": "none"}, "cannot keep `oom:2:mem\\*2`"),
    ],
)
def test_what_is_refused(job: AppDef, cfg: dict[str, str], said: str) -> None:
    """Policies that LSF cannot apply are rejected before the submission."""
    with pytest.raises(SpecError, match=said):
        LsfScheduler("s").submit_dryrun(job, cfg)
