"""Jobs inside the pods of a session, on a real node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.backends.kubernetes.jobs import Jobs
from torchx.components.utils import session
from torchx.schedulers.kit.inside.run import run
from torchx.specs import AppDef, AppState


@pytest.fixture
def within(jobs: Jobs) -> str:
    """The id of a session whose pod runs."""
    app_id = jobs.run(session(image=jobs.image, memMB=128))
    jobs.until(app_id, lambda job: job.state is AppState.RUNNING)
    return app_id


def test_ten_tries(jobs: Jobs, within: str, tmp_path: Path) -> None:
    """Each with the code of then, its log, end and cause; one is entered and cancelled; the pod goes on."""
    codes = tmp_path / "code"
    codes.mkdir()
    found = []
    for k in range(10):
        (codes / "train.py").write_text(f"print({k}); exit({k} == 7)\n")
        app = AppDef("try", [jobs.role("python3 train.py; code=$?; sleep 1; exit $code", "r")])
        found.append(jobs.scheduler.submit(app, {"in": within}, workspace=f"file://{codes}"))
    jobs.close()  # nobody is connected
    jobs.use("kubernetes")
    ends = [jobs.until(app_id) for app_id in found]
    assert [end.state is AppState.SUCCEEDED for end in ends] == [k != 7 for k in range(10)]
    assert "exit code 1: 7" in ends[7].msg
    assert [jobs.log(app_id, "r") for app_id in found] == [[str(k)] for k in range(10)]
    (pod,) = jobs.pods(within)
    assert (pod["status"]["phase"], jobs.pods(found[0])) == ("Running", [])
    role = jobs.role("trap 'echo saving; exit 0' TERM; echo up; while :; do sleep 0.1; done", "r")
    forever = jobs.run(role, cfg={"in": within})
    scheduler: Any = jobs.scheduler
    with scheduler.enter(forever, "r", 0, ["sh", "-c", "echo $TORCHX_ROLE_NAME"]) as inside:
        assert run(inside).stdout.decode() == "r\n"
    lines = jobs.scheduler.log_iter(forever, "r", 0, should_tail=True)
    assert next(iter(lines)) == "up\n"
    jobs.scheduler.cancel(forever)
    assert [*lines] == ["saving\n"]
    assert jobs.until(forever).state is AppState.CANCELLED


def test_its_session_ends(jobs: Jobs, within: str, eventually: Callable[..., object]) -> None:
    """Nothing of the job is left in the cluster; a Runner has it on record."""
    app_id = jobs.run("sleep 1000", cfg={"in": within})
    jobs.until(app_id, lambda job: job.state is AppState.RUNNING)
    jobs.scheduler.cancel(within)
    eventually(lambda: jobs.pods(within) == [])
    assert jobs.scheduler.describe(app_id) is None
