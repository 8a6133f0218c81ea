"""Programs that a supervisor starts for itself: those that send notices."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.supervisor.forks import GUARDIAN, eventually, forked, request, role, state
from torchx.supervisor import proctree
from torchx.supervisor.layout import AT_END_FILE
from torchx.supervisor.supervise import Supervisor


@pytest.fixture
def job(tmp_path) -> str:
    return str(tmp_path / "job")


def _work(asked: Any):
    def work() -> None:
        supervisor = Supervisor(asked, GUARDIAN)
        supervisor.run()
        supervisor.release()

    return work


def test_the_program_at_the_end_has_the_root_directory(job, tmp_path) -> None:
    """Not that of a replica, where a module of the user may have the name of one of ours."""
    os.makedirs(f"{job}/cwd")
    asked = request(job, role("true"))
    asked["roles"][0]["replicas"][0]["cwd"] = f"{job}/cwd"
    words = ["/bin/sh", "-c", f"pwd >{tmp_path}/pwd", "", ""]
    (tmp_path / "job" / AT_END_FILE).write_bytes("\0".join(words).encode())
    with forked(_work(asked)) as fork:
        fork.end()
    assert (tmp_path / "pwd").read_text() == "/\n"


def test_a_notice_of_a_hang_is_sent_to_its_end(job, tmp_path) -> None:
    """The program that sends it is not ended with the job; daemons of the job are, and the job does not wait for it."""
    code = f'echo begun >>{tmp_path}/said; [ -z "$TORCHX_ALARM" ] || while [ ! -e {tmp_path}/go ]; do /bin/sleep 0.02; done'
    words = ["/bin/sh", "-c", f"{code}; echo done >>{tmp_path}/said", "", ""]
    asked = request(job, role(f"(setsid sleep 60 & echo $! >{tmp_path}/daemon); exec sleep 60"))
    (tmp_path / "job" / AT_END_FILE).write_bytes("\0".join(words).encode())
    asked["watchdog"] = {"seconds": 0.2, "action": "cancel", "program": ["/bin/true"], "files": []}
    with forked(_work(asked)) as fork:
        eventually(lambda: os.path.exists(f"{job}/state") and state(job).state == "FAILED")
        assert proctree.start_ticks(int((tmp_path / "daemon").read_text())) == 0
        (tmp_path / "go").touch()
        fork.end()
    assert sorted((tmp_path / "said").read_text().split()) == ["begun", "begun", "done", "done"]
