"""States, statuses, and their text form."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.errors import EXIT_JOB_FAILED, TorchXError
from torchx.runner.watching.answers import status_of
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.verdict import on_answer
from torchx.specs import (
    NONE,
    AppState,
    AppStatus,
    AppStatusError,
    ReplicaState,
    ReplicaStatus,
    RoleStatus,
    is_started,
    is_terminal,
)
from torchx.specs.failures import Failure, parse_failure
from torchx.specs.wishes.retries import Attempt, seconds_of_attempts


def role(name: str, states: list[AppState], errors: dict[int, str] | None = None) -> RoleStatus:
    errors = errors or {}
    return RoleStatus(name, [ReplicaStatus(i, s, name, f"host{i}", errors.get(i, NONE)) for i, s in enumerate(states)])


def boom(message: str, timestamp: int, code: int = 1) -> str:
    return Failure(message, code, traceback="Traceback\n  line\nboom", timestamp=timestamp).to_structured_msg()


def test_the_states() -> None:
    """Names and numbers are public; str is the name and repr has both."""
    assert [(s.name, s.value) for s in AppState] == [
        ("UNSUBMITTED", 0), ("SUBMITTED", 1), ("PENDING", 2), ("RUNNING", 3),
        ("SUCCEEDED", 4), ("FAILED", 5), ("CANCELLED", 6), ("UNKNOWN", 7),
    ]  # fmt: skip
    assert ReplicaState is AppState
    for s in AppState:
        assert (str(s), f"{s}", f"{s!s:>12}".strip(), repr(s)) == (s.name, s.name, s.name, f"{s.name} ({s.value})")
        assert AppState(int(s)) is AppState[str(s)] is s


def test_terminal_and_started() -> None:
    """Three states are terminal; RUNNING and the terminal states are started."""
    assert [s for s in AppState if is_terminal(s)] == [AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED]
    assert [s for s in AppState if is_started(s)] == [
        AppState.RUNNING, AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED,
    ]  # fmt: skip


@pytest.mark.parametrize("state", list(AppState), ids=str)
def test_raise_for_status(state: AppState) -> None:
    """All states except SUCCEEDED raise, with the status and the exit code of a failed job."""
    status = AppStatus(state, msg="why")
    assert status.is_terminal() is is_terminal(state)
    if state is AppState.SUCCEEDED:
        status.raise_for_status()
        return
    with pytest.raises(AppStatusError, match=f"{state}: why") as e:
        status.raise_for_status()
    assert e.value.status is status
    assert isinstance(e.value, TorchXError)
    assert e.value.exit_code == EXIT_JOB_FAILED
    assert str(AppStatusError(status, "job", "x")).startswith("job x: ")


def test_to_json() -> None:
    """The result has the documented schema and is filtered by role; replica states are numbers."""
    status = AppStatus(
        AppState.FAILED, 2, "m", "e", "http://ui", [role("a", [AppState.FAILED]), role("b", [AppState.RUNNING])]
    )
    assert json.loads(json.dumps(status.to_json(filter_roles=["b"]))) == {
        "state": "FAILED",
        "num_restarts": 2,
        "msg": "m",
        "structured_error_msg": "e",
        "url": "http://ui",
        "roles": [
            {
                "role": "b",
                "replicas": [
                    {
                        "id": 0,
                        "state": 3,
                        "role": "b",
                        "hostname": "host0",
                        "structured_error_msg": NONE,
                        "hostaddr": "host0",
                    }
                ],
            }
        ],
    }
    assert [r["role"] for r in status.to_json()["roles"]] == ["a", "b"]
    assert status.to_json(filter_roles=[])["roles"] == []


def judged(status: AppStatus) -> AppStatus:
    """Return the status with its verdict, as the Runner does."""
    answer = DescribeAppResponse(
        "a",
        status.state,
        msg=status.msg or NONE,
        structured_error_msg=status.structured_error_msg,
        roles_statuses=status.roles,
    )
    return status_of(on_answer(answer), near=False)


def test_page_of_a_small_job() -> None:
    """The page has state, message, restarts, link and every replica."""
    status = AppStatus(
        AppState.RUNNING, 1, "two\nlines", ui_url="http://ui", roles=[role("t", [AppState.RUNNING, AppState.PENDING])]
    )
    assert status.format().splitlines() == [
        "state:    RUNNING",
        "message:  two",
        "          lines",
        "restarts: 1",
        "ui:       http://ui",
        "roles:",
        "  t: 1 RUNNING, 1 PENDING",
        "    [0] RUNNING   host0",
        "    [1] PENDING   host1",
    ]
    assert str(status) == status.format()


def test_page_folds_many_replicas_and_shows_those_that_failed() -> None:
    """A thousand replicas are shown as counts and the few that failed."""
    states = [AppState.RUNNING] * 1000
    for i in (7, 500, 999):
        states[i] = AppState.FAILED
    page = AppStatus(AppState.RUNNING, roles=[role("t", states, {500: boom("E: x", 5)})]).format()
    assert "  t: 997 RUNNING, 3 FAILED\n" in page
    assert re.findall(r"\[(\d+)\]", page.partition("roles:")[2]) == ["7", "500", "999"]
    assert len(page.splitlines()) < 15


def test_page_of_many_failures_is_cut() -> None:
    """Of hundreds of failed replicas the page shows ten and the number of others."""
    page = AppStatus(AppState.FAILED, roles=[role("t", [AppState.RUNNING, *[AppState.FAILED] * 500])]).format()
    assert "... and 490 more" in page
    assert len(page.splitlines()) < 20


def test_cause_comes_first_and_is_the_first_in_time() -> None:
    """The cause is the oldest error, with replica, exit code, message and the end of the traceback."""
    roles = [
        role(
            "a",
            [AppState.FAILED, AppState.FAILED],
            {0: boom("RuntimeError: nccl", 20), 1: boom("ValueError: x", 10, 3)},
        ),
    ]
    status = judged(AppStatus(AppState.FAILED, roles=roles))
    failure = parse_failure(status.structured_error_msg)
    assert failure is not None
    assert (failure.replica, failure.exit_code) == (1, 3)
    lines = status.format().splitlines()
    assert lines[:3] == [
        "state:    FAILED",
        "cause:    a/1 on host1: exit code 3: ValueError: x",
        "            | Traceback",
    ]
    assert lines.index("roles:") > 4


def test_cause_of_a_job_that_says_it_itself() -> None:
    """The error of the app takes precedence over those of replicas; the replica with that error is named."""
    roles = [role("a", [AppState.FAILED, AppState.FAILED], {0: boom("E: 0", 1), 1: boom("E: 1", 2)})]
    own = Failure("E: 1", 1, timestamp=2, role="a", replica=1, host="host1", kind="error").to_structured_msg()
    status = AppStatus(AppState.FAILED, msg="a/1 on host1: exit code 1: E: 1", structured_error_msg=own, roles=roles)
    assert "cause:    a/1 on host1: exit code 1: E: 1" in status.format()
    assert "cause:    exit code 1: E: 1" in AppStatus(AppState.FAILED, structured_error_msg=boom("E: 1", 2)).format()


def test_a_failure_without_words_says_where_to_look() -> None:
    """A replica that failed without an error is named too."""
    status = judged(AppStatus(AppState.FAILED, roles=[role("a", [AppState.SUCCEEDED, AppState.FAILED])]))
    assert "cause:    a/1 on host1: it did not say why: see its log" in status.format()


def test_a_long_traceback_is_cut_above() -> None:
    """A long traceback is cut to its last lines."""
    msg = Failure("E", traceback="\n".join(f"line {i}" for i in range(100))).to_structured_msg()
    page = AppStatus(AppState.FAILED, structured_error_msg=msg).format()
    assert "... 92 lines above" in page
    assert page.endswith("| line 99")


def test_filter_roles_on_the_page() -> None:
    """The page shows only the given roles."""
    status = AppStatus(AppState.RUNNING, roles=[role("a", [AppState.RUNNING]), role("b", [AppState.RUNNING])])
    page = status.format(filter_roles=["b"])
    assert "  b: 1 RUNNING" in page
    assert "  a: " not in page


def test_colour_only_when_asked() -> None:
    """The plain page equals the coloured one without escape sequences."""
    status = AppStatus(AppState.FAILED, roles=[role("t", list(AppState))])
    assert "\033" not in status.format()
    colored = status.format(color=True)
    assert "\033[31mFAILED\033[0m" in colored
    assert re.sub(r"\033\[[0-9;]*m", "", colored) == status.format()


def test_host_is_shown_once() -> None:
    """Name and address are both shown if they differ."""
    replicas = [
        ReplicaStatus(0, AppState.RUNNING, "t", "n", hostaddr="10.0.0.1"),
        ReplicaStatus(1, AppState.RUNNING, "t", "10.0.0.2", hostaddr="10.0.0.2"),
        ReplicaStatus(2, AppState.RUNNING, "t", ""),
    ]
    page = AppStatus(AppState.RUNNING, roles=[RoleStatus("t", replicas)]).format()
    assert page.splitlines()[-3:] == ["    [0] RUNNING   n (10.0.0.1)", "    [1] RUNNING   10.0.0.2", "    [2] RUNNING"]


@given(
    st.builds(
        Failure,
        message=st.text(),
        exit_code=st.none() | st.integers(-255, 255),
        signal=st.sampled_from(["", "SIGKILL"]),
        traceback=st.text(),
        timestamp=st.integers(0, 2**40).map(float),
    ).filter(lambda f: f.summary() or f.traceback)
)
def test_a_failure_round_trips(failure: Failure) -> None:
    """A Failure survives the round trip through its JSON."""
    assert parse_failure(failure.to_structured_msg()) == failure


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["message", "extraInfo", "errorCode", "timestamp", "x"]), inner)
    ),
)


@given(st.one_of(st.text(), _json.map(json.dumps)))
def test_any_error_text_can_be_shown(text: str) -> None:
    """Any structured_error_msg can be rendered."""
    roles = [role("t", [AppState.FAILED], {0: text})]
    assert AppStatus(AppState.FAILED, structured_error_msg=text, roles=roles).format().startswith("state:    FAILED")


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ('{"message": {"message": "RuntimeError: a\\nb", "extraInfo": {"py_callstack": "T"}}}', "RuntimeError: a b"),
        ('{"message": {"message": "x", "errorCode": 137}}', "exit code 137: x"),
        ('{"message": "plain", "timestamp": "5"}', "plain"),
        ('{"message": {"message": ""}, "signal": "SIGKILL"}', "killed by SIGKILL (often: out of memory)"),
        ("not JSON", "not JSON"),
        ("[1]", "[1]"),
        ("{}", "{}"),
    ],
)
def test_error_files_of_torchelastic(text: str, summary: str) -> None:
    """Both formats of torchelastic and other texts are parsed."""
    failure = parse_failure(text)
    assert failure is not None
    assert failure.summary() == summary


@pytest.mark.parametrize("text", ["", NONE, None, "  "])
def test_no_error_is_none(text: str | None) -> None:
    """An empty text returns None."""
    assert parse_failure(text) is None


def test_a_last_line_that_is_the_cause_is_said_once() -> None:
    """Lines of stderr that only repeat the message are omitted."""
    error = Failure("sh: nosuch: not found", exit_code=127, traceback="sh: nosuch: not found\n").to_structured_msg()
    failed = ReplicaStatus(0, AppState.FAILED, "r", "", structured_error_msg=error)
    page = judged(AppStatus(AppState.FAILED, roles=[RoleStatus("r", [failed])])).format()
    assert page.count("nosuch") == 1


def test_a_message_that_is_the_cause_is_said_once() -> None:
    """If the backend's message contains the failure, the page shows it once."""
    roles = [role("a", [AppState.FAILED], {0: boom("E: 0", 1)})]
    page = judged(AppStatus(AppState.FAILED, msg="a/0 failed first: exit code 1: E: 0", roles=roles)).format()
    assert page.count("E: 0") == 1
    assert "cause:    a/0 on host0: exit code 1: E: 0" in page


@pytest.mark.parametrize(
    ("again", "started", "spans"),
    [
        pytest.param(True, 300.0, [100.0, 50.0, 120.0], id="the last piece succeeded, after a time in a queue"),
        pytest.param(True, 210.0, [100.0, 50.0], id="the next piece has not started"),
        pytest.param(True, None, [100.0, 50.0, 170.0], id="its start is not known, as that of a container"),
        pytest.param(False, 211.0, [100.0, 50.0], id="no piece follows"),
    ],
)
def test_time_of_attempts(again: bool, started: float | None, spans: list[float]) -> None:
    """Those that have ended are on record; the one that runs, or was the last, counts too."""
    attempts = [Attempt(started=10.0, ended=110.0, again=True, total=600.0, used=100.0)]
    attempts.append(Attempt(started=200.0, ended=250.0, again=again, total=600.0, used=150.0))
    roles = [
        RoleStatus(
            "r", [ReplicaStatus(k, AppState.SUCCEEDED, "r", "", started_at=started and started + k) for k in range(2)]
        )
    ]
    assert seconds_of_attempts(attempts, roles, 420.0) == spans
    page = AppStatus(AppState.SUCCEEDED, roles=roles, attempts=attempts, ended_at=420.0).format()
    assert f" of 10 min used by {len(spans)} pieces\n" in page
