"""Roles in order: what may start, which probe succeeds, what is on record."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.forks import GUARDIAN, Gate, forked, request, role, state
from torchx.supervisor.layout import ORDERED
from torchx.supervisor.order import Order
from torchx.supervisor.probes import Probe, to_python
from torchx.supervisor.statefile import JobState, StateWriter, read_state
from torchx.supervisor.supervise import Supervisor

P, R, S, F = ("PENDING", 0.0), ("RUNNING", 0.0), ("SUCCEEDED", 0.0), ("FAILED", 0.0)
UP, DONE = ("RUNNING", 5.0), ("SUCCEEDED", 5.0)
CHAIN = Order(
    ["a", "b", "c"],
    {
        "a": {"probe": "tcp", "at_least": 2, "restarts_after": True},
        "b": {"after": ["a"], "at_least": 1, "restarts_after": True},
        "c": {"after": ["b"], "ends_job": True},
    },
)


@pytest.mark.parametrize(
    ("states", "start", "hopeless", "restart", "decides"),
    [
        ([[R, R], [P], [P]], [0], None, set(), None),
        ([[UP, R], [P], [P]], [0], None, set(), None),
        ([[UP, UP], [P], [P]], [0, 1], None, set(), None),
        ([[UP, DONE], [R], [P]], [0, 1, 2], None, {1}, None),
        ([[UP, UP], [R], [R]], [0, 1, 2], None, {1, 2}, None),
        ([[UP, UP], [S], [R]], [0, 1, 2], None, set(), None),
        ([[UP, S], [P], [P]], [0], 0, set(), None),
        ([[UP, ("FAILED", 5.0)], [P], [P]], [0], 0, set(), None),
        ([[UP, UP], [F], [P]], [0, 1], 1, set(), None),
        ([[UP, UP], [R], [S]], [0, 1, 2], None, {1}, 2),
        ([[S, S], [R], [R]], [0, 2], None, {1, 2}, None),
    ],
)
def test_decisions(
    states: list[list[tuple[str, float]]],
    start: list[int],
    hopeless: int | None,
    restart: set[int],
    decides: int | None,
) -> None:
    assert [k for k in range(3) if CHAIN.may_start(k, states)] == start
    assert (CHAIN.hopeless(states), CHAIN.restarts_with(0, states), CHAIN.decides(states)) == (
        hopeless,
        restart,
        decides,
    )


@pytest.fixture
def probe(tmp_path: Path) -> Callable[..., Probe]:
    def make(kind: str, what: str = "", port: int = 0) -> Probe:
        order: Any = {"probe": kind, "what": what, "ports": [port], "within_s": 9, "at_least": 1}
        return Probe(order, str(tmp_path), 0, 0.0, 0.0, logs=(str(tmp_path / "out"), str(tmp_path / "err")))

    return make


@pytest.fixture
def server() -> Iterator[int]:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(self.path[1:]))
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made.server_port
        made.shutdown()
        thread.join()


@pytest.mark.parametrize(("status", "is_ready"), [(200, True), (302, True), (404, False), (503, False)])
def test_http(probe: Callable[..., Probe], server: int, status: int, is_ready: bool) -> None:
    one = probe("http", f"/{status}", server)
    while not (found := one.look(0.0)) and one.seen == "no answer yet":
        pass
    assert (found, one.seen) == (is_ready, f"status {status}")


def test_ports(probe: Callable[..., Probe], server: int) -> None:
    assert probe("tcp", port=server).look(0.0)
    for kind in ("tcp", "http"):
        refused = probe(kind, "/", 1)
        assert (refused.look(0.0), refused.seen) == (False, "Connection refused")


def test_output_and_files(probe: Callable[..., Probe], tmp_path: Path) -> None:
    """What an earlier attempt wrote does not count, a line without an end does."""
    (tmp_path / "err").write_text("step 1 of 2\n")
    log, file = probe("log", "^step [[:digit:]]+[[:space:]]of"), probe("file", "made")
    assert (log.look(0.0), log.seen) == (False, "no line of its output matches")
    assert (file.look(0.0), file.seen) == (False, "it does not exist")
    (tmp_path / "out").write_text("a step 2 of 2\nstep 2")
    assert not log.look(0.0)
    with (tmp_path / "out").open("a") as f:
        f.write(" of 2")
    (tmp_path / "made").touch()
    assert log.look(0.0)
    assert file.look_at_end(0.0)
    assert not probe("tcp", port=1).look_at_end(0.0)
    assert to_python("[^[:alpha:]]") == "[^a-zA-Z]"


def test_readiness_is_on_record(tmp_path: Path) -> None:
    """In the header, whose lines of replicas older versions can read, with room for a long sentence."""
    job = JobState({ORDERED: "1"}, [("s", 300)])
    writer = StateWriter(str(tmp_path / "state"), job)
    for line in job.replicas:
        line.ready = 1763731200.125
    job.msg = "loading weights " * 15
    writer.header_changed()
    writer.flush()
    writer.close()
    read = read_state(str(tmp_path / "state"))
    assert {line.ready for line in read.replicas} == {1763731200.125}
    assert (read.msg, [*read.facts]) == (job.msg, [ORDERED])


def test_a_job_in_order(tmp_path: Path, gate: Gate) -> None:
    """The trainer starts when the server is ready; its end ends the server, whose failure then is none."""
    job = str(tmp_path / "job")
    server = role(f"{gate.wait}; echo up; trap 'exit 7' TERM; while :; do sleep 0.01; done", name="s")
    asked = request(job, role("echo begins", name="t"), server)
    probe = {"probe": "log", "what": "up", "ports": [], "within_s": 60, "at_least": 1, "late": "late", "ended": "ended"}
    asked["order"] = {"t": {"after": ["s"], "ends_job": True}, "s": probe}
    asked["facts"][ORDERED] = "1"
    with forked(lambda: Supervisor(asked, GUARDIAN).run()) as fork:
        gate.open()
        assert fork.end() == 0
    read = state(job)
    trainer, server = read.replicas
    assert (read.state, trainer.state, server.state, server.exit) == ("SUCCEEDED", "SUCCEEDED", "CANCELLED", 7)
    assert server.started <= server.ready <= trainer.started
    late = request(str(tmp_path / "late"), role("true", name="t"), role("echo no weights; sleep 100", name="s"))
    late["order"] = {"t": {"after": ["s"]}, "s": {**probe, "within_s": 0.3}}
    with forked(lambda: Supervisor(late, GUARDIAN).run()) as fork:
        assert fork.end() == 0
    read = state(str(tmp_path / "late"))
    assert (read.state, read.kind, read.replicas[0].pid) == ("FAILED", "timeout", 0)
    assert read.msg == "late: no line of its output matches; its last words: no weights"
