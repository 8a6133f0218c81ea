"""A local job with a retry policy: real processes fail, and the policy says what becomes of the job."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import SpecError
from torchx.runner import get_runner
from torchx.specs.api import AppDef, AppState, AppStatus, RetryPolicy, Role
from torchx.specs.wishes.retries import RETRY

COUNT = """
import os, sys, time
here = os.environ["HERE"] + "/" + os.environ["ME"]
n = len(os.listdir(here)); open(f"{here}/{n}", "w").close()
"""


def _run(tmp_path: Path, policy: str, code: str, *, replicas: int = 1, **role: Any) -> AppStatus:
    """The end of a job whose replicas count their starts in `n`, and then run `code`."""
    for k in range(replicas):
        (tmp_path / str(k)).mkdir()
    trainer = Role(
        "w",
        "",
        entrypoint=sys.executable,
        args=["-c", COUNT + code],
        env={"HERE": str(tmp_path), "ME": "${replica_id}"},
        num_replicas=replicas,
        **role,
    )
    with get_runner() as runner:
        status = runner.wait(runner.run(AppDef("job", [trainer], metadata={RETRY: policy}), "local_cwd"))
    assert status is not None
    return status


def _starts(tmp_path: Path, k: int = 0) -> int:
    return len(os.listdir(tmp_path / str(k)))


def test_a_lost_peer_is_started_again(tmp_path) -> None:
    """A collective that lost its peer is of class `network`: both replicas start again, and the job succeeds."""
    code = """
if n < 2 and os.environ["ME"] == "0":
    class DistNetworkError(Exception): pass
    DistNetworkError.__module__ = "torch.distributed"
    raise DistNetworkError("The client socket has timed out after 60000ms while trying to connect to (n1, 29500).")
while len(os.listdir(os.environ["HERE"] + "/0")) < 3: time.sleep(0.01)
"""
    status = _run(tmp_path, "network:3", code, replicas=2)
    assert status.state is AppState.SUCCEEDED
    assert [(a.kind, a.again, a.why) for a in status.attempts] == [
        ("network", True, "network: retry 1 of 3"),
        ("network", True, "network: retry 2 of 3"),
    ]
    assert _starts(tmp_path) == 3


def test_a_bug_is_not_retried(tmp_path) -> None:
    """`error:0`: one attempt, and the page says why there is no other."""
    status = _run(tmp_path, "standard", "raise ValueError('bad batch')")
    assert status.state is AppState.FAILED
    assert (_starts(tmp_path), status.num_restarts) == (1, 0)
    assert "not retried (error: the policy does not retry it)" in str(status)


def test_a_number_is_obeyed(tmp_path) -> None:
    """Three retries are three, though the same line raises the same each time."""
    status = _run(tmp_path, "error:3", "raise ValueError(f'bad batch {n}')")
    assert (status.state, _starts(tmp_path)) == (AppState.FAILED, 4)
    assert status.attempts[-1].why == "error: all 3 retries are used"


def test_the_same_bug_twice_ends_it(tmp_path) -> None:
    """With `differs`: the second time the same line raises the same, that was it."""
    status = _run(tmp_path, "error:9:differs", "raise ValueError(f'bad batch {n}')")
    assert (status.state, _starts(tmp_path)) == (AppState.FAILED, 2)
    assert status.attempts[-1].why == "error: the same failure twice in a row"
    assert status.num_restarts == 1


def test_modules_in_the_current_directory_are_not_ours(tmp_path, monkeypatch) -> None:
    """A `json.py` beside the user's program does not keep the job from being started again."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "json.py").write_text("raise SystemExit(1)\n")
    monkeypatch.chdir(work)
    status = _run(tmp_path, "error:1", "sys.exit(0 if n else 3)")
    assert (status.state, _starts(tmp_path)) == (AppState.SUCCEEDED, 2)


def test_each_attempt_is_judged_by_its_own_words(tmp_path) -> None:
    """What an earlier attempt wrote is not taken for the cause of one that ends in silence."""
    code = "sys.exit(3) if n else (_ for _ in ()).throw(ValueError('first'))"
    status = _run(tmp_path, "error:1", code)
    assert [a.cause for a in status.attempts] == ["w/0: exit code 1: ValueError: first", "w/0: exit code 3"]
    assert "first" not in status.msg


def test_one_replica_alone(tmp_path) -> None:
    """With the policy REPLICA only the one that failed is started again, while the others run."""
    code = """
if n < 2 and os.environ["ME"] == "1": sys.exit(n + 1)
while len(os.listdir(os.environ["HERE"] + "/1")) < 3: time.sleep(0.01)
"""
    status = _run(tmp_path, "error:2", code, replicas=2, retry_policy=RetryPolicy.REPLICA)
    assert status.state is AppState.SUCCEEDED
    assert (_starts(tmp_path, 0), _starts(tmp_path, 1)) == (1, 3)


def test_progress_is_seen(tmp_path) -> None:
    """Who marks progress gets the budget back; the mark of an earlier attempt does not count for a later one."""
    code = "if n < 1:\n    from torchx import distributed; distributed.progress()\nos.kill(os.getpid(), 9)"
    status = _run(tmp_path, "unknown:1", code)
    assert [a.progress for a in status.attempts] == [True, False, False]
    assert _starts(tmp_path) == 3


def test_what_cannot_be_kept_is_refused(tmp_path) -> None:
    """One machine, whose memory nobody hands out: said before anything is started."""
    with pytest.raises(SpecError, match="`local_cwd` cannot keep `oom:2:mem"):
        _run(tmp_path, "oom:2:mem*2", "")
    assert not _starts(tmp_path)


def test_attempts_are_in_the_json(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    """`status --json`: each attempt with its class, its reason, and what was changed."""
    from torchx.cli.main import main

    _run(tmp_path, "error:1", "raise KeyError('x')")
    capsys.readouterr()
    main(["status", "@last", "--json"])
    attempts = json.loads(capsys.readouterr().out)["attempts"]
    assert [(a["class"], a["retried"]) for a in attempts] == [("error", True), ("error", False)]
    assert attempts[0]["next"] == {"avoid": [], "memory": 1.0}
