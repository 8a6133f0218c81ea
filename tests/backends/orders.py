"""What roles in order must do on every backend: inherit :class:`OrderContract`, and say where the jobs run."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tests.backends.shell import ROOT
from torchx.errors import NotSupportedError
from torchx.runner import Runner, get_runner
from torchx.specs import AppDef, AppState, AppStatus, Ready, RetryPolicy, Role, is_terminal
from torchx.specs.failures import parse_failure
from torchx.specs.states import is_cancelling
from torchx.util.records import replace

PATIENCE_S = 240.0

STAYS = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
"""Runs until it is ended."""

BREAKS = "trap 'exit 9' TERM; while :; do sleep 0.1; done"
"""Fails when it is ended."""

DEFIES = "trap '' TERM; while :; do sleep 0.1; done"
"""Has to be killed."""

PROGRAM = ROOT / "examples/serve_and_run"

UP = "echo it is up"
"""The line of output by which roles with ``ready=UP`` are ready."""

_S, _F, _C = "SUCCEEDED", "FAILED", "CANCELLED"
_numbers = itertools.count()


class Case(NamedTuple):
    """A job and what becomes of it.

    Attributes:
        roles: name, script of ``sh``, and the role's fields; ``ready=UP``: the line above within 5 minutes. In a
            script, ``FIRST`` is true once in a job.
        state: of the job; several words: one of them.
        replicas: their states, in order; empty: any.
        says: regular expression for the beginning of the message.
        kind: class of the cause.
        cancel: when the job is cancelled: a regular expression for its message, or ``ROLE STATE``.
        again: how often it was restarted.
    """

    roles: list[tuple[str, str, dict[str, Any]]]
    state: str
    replicas: str = ""
    says: str = ""
    kind: str = ""
    cancel: str = ""
    again: int = 0


def _server(script: str = f"{UP}; {STAYS}", **fields: Any) -> tuple[str, str, dict[str, Any]]:
    return "server", script, {"ready": UP, **fields}


def _trainer(script: str, **fields: Any) -> tuple[str, str, dict[str, Any]]:
    return "trainer", script, {"after": ["server"], **fields}


_RETRIES = {"max_retries": 1, "retry_policy": RetryPolicy.ROLE}

ORDER_CASES: dict[str, Case] = {
    "driver-ends-0": Case(
        [_server(f"sleep 2; {UP}; {STAYS}", num_replicas=2), _trainer("echo trained", ends_job=True)],
        _S,
        f"{_C} {_C} {_S}",
    ),
    "driver-ends-3": Case(
        [_server(), _trainer("echo no data; exit 3", ends_job=True)],
        _F,
        f"{_C} {_F}",
        r"trainer/0( on \S+)?: exit code 3: no data",
        "error",
    ),
    "trainer-fails": Case(
        [_server(), _trainer("exit 4", ready=UP), ("driver", STAYS, {"after": ["trainer"], "ends_job": True})],
        _F,
        f"{_C} {_F} {_C}",
        r"trainer/0( on \S+)?: exit code 4",
        "error",
    ),
    "server-fails-before-ready": Case(
        [_server("echo bad port; exit 5"), _trainer(STAYS)],
        _F,
        f"{_F} {_C}",
        r"server/0( on \S+)?: exit code 5: bad port",
        "error",
    ),
    "server-ends-0-before-ready": Case(
        [_server("echo nothing to do"), _trainer(STAYS)],
        _F,
        f"{_S} {_C}",
        "role server ended before it was ready: log `it is up`; its last words: nothing to do",
        "timeout",
    ),
    "server-fails-after-ready": Case(
        [_server(f"{UP}; sleep 3; exit 6"), _trainer(STAYS)],
        _F,
        f"{_F} {_C}",
        r"server/0( on \S+)?: exit code 6",
        "error",
    ),
    "server-ends-0-after-ready": Case([_server(f"{UP}; sleep 3"), _trainer("sleep 4")], _S, f"{_S} {_S}"),
    "server-fails-at-the-end": Case([_server(f"{UP}; {BREAKS}"), _trainer("true", ends_job=True)], _S, f"{_C} {_S}"),
    "server-has-to-be-killed": Case([_server(f"{UP}; {DEFIES}"), _trainer("true", ends_job=True)], _S, f"{_C} {_S}"),
    "never-ready": Case(
        [
            _server(f"echo loading; {STAYS}", ready=Ready(log="it is up", within="4s")),
            _trainer("echo must not run", ends_job=True),
        ],
        _F,
        f"{_C} {_C}",
        "role server was not ready within 4s: log `it is up`.*; its last words: loading",
        "timeout",
    ),
    "one-of-two-is-enough": Case(
        [
            _server(
                f"[ ${{replica_id}} = 0 ] || {UP}; {STAYS}", num_replicas=2, ready=Ready(log="it is up", at_least=1)
            ),
            _trainer("true", ends_job=True),
        ],
        _S,
        f"{_C} {_C} {_S}",
    ),
    "started-is-ready": Case([_server(STAYS, ready=None), _trainer("true", ends_job=True)], _S, f"{_C} {_S}"),
    "ends-before-others-start": Case(
        [_server(STAYS), _trainer("echo must not run"), ("driver", "true", {"ends_job": True})], _S, f"{_C} {_C} {_S}"
    ),
    "server-restarts-before-ready": Case(
        [_server(f"FIRST && exit 7; {UP}; {STAYS}", **_RETRIES), _trainer("true", ends_job=True)],
        _S,
        f"{_C} {_S}",
        again=1,
    ),
    "a-restart-has-its-own-time": Case(
        [
            _server(
                f"FIRST && sleep 7 && exit 7; sleep 7; {UP}; {STAYS}",
                **_RETRIES,
                ready=Ready(log="it is up", within="12s"),
            ),
            _trainer("true", ends_job=True),
        ],
        _S,
        f"{_C} {_S}",
        again=1,
    ),
    "server-restarts-after-ready": Case(
        [_server(f"{UP}; FIRST && sleep 3 && exit 7; {STAYS}", **_RETRIES), _trainer("sleep 8", ends_job=True)],
        _S,
        f"{_C} {_S}",
        again=1,
    ),
    "server-restarts-the-trainer": Case(
        [
            _server(f"{UP}; FIRST && sleep 4 && exit 7; {STAYS}", **_RETRIES, restarts_after=True),
            _trainer(f"SECOND || {{ {STAYS}; }}", ends_job=True),
        ],
        _S,
        f"{_C} {_S}",
        again=1,
    ),
    "cancel-while-waiting": Case(
        [_server(STAYS), _trainer("echo must not run", ends_job=True)],
        _C,
        f"{_C} {_C}",
        cancel=r"(trainer/0: )?waits for server to be ready \(0 of 1\)",
    ),
    "cancel-while-running": Case(
        [_server(), _trainer(STAYS, ends_job=True)], _C, f"{_C} {_C}", cancel="trainer RUNNING"
    ),
    "cancel-while-ending": Case(
        [_server(f"{UP}; {DEFIES}"), _trainer("true", ends_job=True)], f"{_S} {_C}", cancel="trainer SUCCEEDED"
    ),
}


class OrderGround(NamedTuple):
    """Where the jobs run.

    Attributes:
        role: a role that runs ``sh -c SCRIPT``, by name and script.
        first: returns, for a new job, two conditions of ``sh``: the first is true when it is asked first, and the
            second from the second time on; None: such cases are skipped.
        file: roles are ready when this file is there, since the backend does not see their output.
        refused: cases that the backend refuses.
        example: arguments of `examples/components/serve_and_run.py`, and the workspace with its program, if that has
            to be brought; None: it cannot run here.
        left: what still runs of a job; empty: nothing.
    """

    runner: Runner
    scheduler: str
    role: Callable[[str, str], Role]
    left: Callable[[str], object]
    cfg: Mapping[str, Any] = {}
    example: tuple[list[str], str | None] | None = None
    first: Callable[[], tuple[str, str]] | None = None
    file: str = ""
    refused: tuple[str, ...] = ()

    def submit(self, case: Case) -> str:
        roles = []
        first, second = self.first() if self.first else ("FIRST", "SECOND")
        for name, script, fields in case.roles:
            if self.first is None and "FIRST" in script:
                pytest.skip("nothing of an attempt is left for the next one")
            up = f"{UP}; touch {self.file}" if self.file else UP
            role = self.role(name, script.replace("FIRST", first).replace("SECOND", second).replace(UP, up))
            for field, value in fields.items():
                setattr(role, field, Ready(log="it is up") if field == "ready" and value == UP else value)
            if self.file and role.ready:
                role.ready = replace(role.ready, log="", file=self.file)
            roles.append(role)
        return self.runner.run(AppDef(f"order-{next(_numbers)}", roles), self.scheduler, cfg=dict(self.cfg))

    def until(self, handle: str, wanted: Callable[[AppStatus], object]) -> AppStatus:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            status = self.runner.status(handle)
            assert status is not None
            if wanted(status):
                return status
            assert time.monotonic() < deadline, status
            time.sleep(0.1)

    def listed(self, handle: str) -> AppState | None:
        """The job's state in `list`, which may lag."""
        return {app.app_handle: app.state for app in self.runner.list(self.scheduler)}.get(handle)

    def ended(self, handle: str) -> AppStatus:
        return self.until(handle, lambda status: is_terminal(status.state))


@contextmanager
def orders_of(session: str, scheduler: str, role: Callable[[str, str], Role], **more: Any) -> Iterator[OrderGround]:
    """Jobs by a Runner of its own; what is left of them at the end is cancelled."""
    with get_runner(session) as runner:
        yield OrderGround(runner, scheduler, role, **more)
        for run in runner.runs():
            runner.cancel(run.handle)
            runner.wait(run.handle)


def once(folder: object) -> tuple[str, str]:
    """:attr:`OrderGround.first` where replicas and attempts share ``folder``."""
    mark = f"{folder}/{next(_numbers)}"
    return f"mkdir {mark} 2>/dev/null", f"{{ test -e {mark}.2 || ! mkdir {mark}.2; }}"


def is_there(cancel: str, status: AppStatus) -> bool:
    """Whether it is time: see :attr:`Case.cancel`."""
    role, _, state = cancel.partition(" ")
    if state in AppState.__members__:
        return any(r.state.name == state for of in status.roles if of.role == role for r in of.replicas)
    return re.match(cancel, status.msg) is not None


class OrderContract:
    """The fixture ``ground`` is the backend's."""

    @pytest.mark.parametrize("name", ORDER_CASES)
    def test_order(self, ground: OrderGround, name: str) -> None:
        """What becomes of the job and its replicas, why, and that nothing of it is left."""
        case = ORDER_CASES[name]
        if name in ground.refused:
            with pytest.raises(NotSupportedError):
                ground.submit(case)
            return
        handle = ground.submit(case)
        if case.cancel:
            seen = ground.until(handle, lambda s: is_terminal(s.state) or is_there(case.cancel, s))
            assert not is_terminal(seen.state) or "ending" in name, seen
            ground.runner.cancel(handle)
        status = ground.until(
            handle, lambda s: is_terminal(s.state) or (not case.cancel and is_cancelling(s.state, s.msg))
        )
        states = " ".join(r.state.name for role in status.roles for r in role.replicas)
        cause = parse_failure(status.structured_error_msg)
        assert status.state.name in case.state.split(), status
        assert states == case.replicas or not case.replicas, status
        says = case.says.replace("log `it is up`", f"file `{ground.file}`") if ground.file else case.says
        assert re.match(says, status.msg), status
        assert (cause.kind if cause else "") == case.kind, status
        assert case.again == max(status.num_restarts, 0) or status.num_restarts < 0
        deadline = time.monotonic() + PATIENCE_S
        while (left := ground.left(handle)) or ground.listed(handle) not in (None, status.state):
            assert time.monotonic() < deadline, (left, ground.listed(handle), status)
            time.sleep(0.1)

    def test_example(self, ground: OrderGround) -> None:
        """Model servers, a trainer that asks them over the network, and a driver that ends the job."""
        if ground.example is None:
            pytest.skip("the example has no way to this backend")
        component, cfg = f"{ROOT}/examples/components/serve_and_run.py:serve_and_run", dict(ground.cfg)
        args, workspace = ground.example
        handle = ground.runner.run_component(component, args, ground.scheduler, cfg=cfg, workspace=workspace)
        status = ground.ended(handle)
        assert status.state is AppState.SUCCEEDED, status
        states = {role.role: " ".join(r.state.name for r in role.replicas) for role in status.roles}
        assert states == {"server": f"{_C} {_C}", "trainer": _C, "driver": _S}
        said = [line for role in ("trainer", "driver") for line in ground.runner.log_lines(handle, role, 0)]
        assert said[0].strip() == "learned y = 2.00 x + 1.00 from 2 servers"
        errors = [line.rpartition(" ")[2].strip() for line in said if line.startswith("error against")]
        assert errors == ["0.0000", "0.0000"], said

    def test_goes_on_without_a_replica(self, ground: OrderGround) -> None:
        """While an elastic role goes on, nobody is told that the others are being ended."""
        driver = "test ${replica_id} != 0 || exit 3; sleep 6"
        handle = ground.submit(
            Case([_server(), ("driver", driver, {"num_replicas": 3, "min_replicas": 2, "ends_job": True})], _S)
        )
        seen = ground.until(handle, lambda s: is_terminal(s.state) or is_there("driver FAILED", s))
        assert (seen.state, "being ended" in seen.msg) == (AppState.RUNNING, False), seen
        assert ground.ended(handle).state is AppState.SUCCEEDED

    def test_waits_until_all_are_ready(self, ground: OrderGround) -> None:
        """The trainer starts when the last server is ready, and is PENDING until then, without output."""
        wait = f"sleep $((2 + 4 * ${{replica_id}})); {UP}; {STAYS}"
        handle = ground.submit(Case([_server(wait, num_replicas=2), _trainer("echo begins", ends_job=True)], _S))
        ground.until(handle, lambda s: "waits for server to be ready (1 of 2)" in s.msg)
        status = ground.ended(handle)
        assert status.state is AppState.SUCCEEDED, status
        servers, (trainer,) = (role.replicas for role in status.roles)
        assert trainer.started_at is None or trainer.started_at >= max(s.started_at or 0 for s in servers) + 4
        assert [line.strip() for line in ground.runner.log_lines(handle, "trainer", 0)] == ["begins"]
