"""The parts that backends share: names, states, replicas, causes, log queries."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.errors import ConfigError
from torchx.schedulers.api import Stream
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.names import DNS_LABEL, FILE_NAME
from torchx.schedulers.kit.replicas import replicas
from torchx.schedulers.kit.tasks import describe_sweep
from torchx.schedulers.kit.verdict import fold
from torchx.specs.api import AppDef, AppState, BindMount, Role
from torchx.specs.tasks import TaskTable

S, F, R, P, C, U = (
    AppState.SUCCEEDED,
    AppState.FAILED,
    AppState.RUNNING,
    AppState.PENDING,
    AppState.CANCELLED,
    AppState.UNKNOWN,
)


@pytest.mark.parametrize("rule", [DNS_LABEL, FILE_NAME], ids=["dns", "file"])
@given(text=st.text(max_size=100), room=st.integers(0, 20))
def test_any_text_becomes_a_name_that_obeys(rule, text: str, room: int) -> None:
    """Whatever a user calls a job, the backend takes the name, and there is room for a suffix."""
    name = rule.make(text, room=room)
    assert rule.obeys(name)
    assert len(name) <= rule.max_length - room
    assert rule.make(name) == name


@pytest.mark.parametrize(
    ("states", "minimum", "folded"),
    [
        ([], None, U),
        ([S, S], None, S),
        ([R, R, S], None, R),
        ([S, P], None, R),
        ([P, P], None, P),
        ([P, AppState.SUBMITTED], None, P),
        ([R, F], None, F),
        ([R, C], None, C),
        ([C, F, S], None, F),
        ([R, U], None, R),
        ([S, U], None, U),
        ([F, R], 1, R),
        ([F, S], 1, S),
        ([F, F], 1, F),
        ([F, S, P], 2, R),
    ],
)
def test_fold(states, minimum, folded) -> None:
    """One rule for every backend."""
    if states == [R, U]:
        assert fold(states, min_replicas=minimum) in (R, U)
    else:
        assert fold(states, min_replicas=minimum) == folded


@given(st.lists(st.sampled_from(list(AppState)), max_size=6), st.none() | st.integers(1, 6))
def test_fold_is_total_and_blind_to_order(states, minimum) -> None:
    """Every combination has a state, whatever the order of replicas; terminal only if that is certain."""
    folded = fold(states, min_replicas=minimum)
    assert folded == fold(list(reversed(states)), min_replicas=minimum)
    if folded == S:
        assert S in states


def test_replicas_have_their_macros_and_their_own_copies() -> None:
    """Macros are replaced in args, env, metadata and mounts; the app is not changed, and no two replicas share."""
    role = Role(
        "w",
        "img",
        args=["${app_id}/${replica_id}", "${img_root}"],
        env={"HOST": "${rank0_env}"},
        metadata={"deep": {"id": "${replica_id}"}},
        mounts=[BindMount("/data/${app_id}", "/data")],
        num_replicas=2,
    )
    app = AppDef("a", [role, Role("x", "img")])
    found = list(replicas(app, "a-1", rank0_env="R0", img_root=lambda r: f"/root/{r.name}"))
    assert [(r.role.name, r.k, r.index) for r in found] == [("w", 0, 0), ("w", 1, 1), ("x", 0, 2)]
    assert found[1].role.args == ["a-1/1", "/root/w"]
    assert found[1].role.env == {"TORCHX_REPLICA_ID": "1", "TORCHX_ROLE_NAME": "w", "HOST": "R0"}
    assert found[1].role.metadata == {"deep": {"id": "1"}}
    mount = found[1].role.mounts[0]
    assert isinstance(mount, BindMount)
    assert mount.src_path == "/data/a-1"
    found[0].role.env["A"] = "b"
    assert "A" not in found[1].role.env and "A" not in role.env
    assert role.args[0] == "${app_id}/${replica_id}"


def test_a_query_in_the_words_of_log_iter() -> None:
    """Times become seconds, names streams, and a bad expression one clear error."""
    since = datetime(2026, 1, 2, tzinfo=timezone.utc)
    query = LogQuery.of(regex="b.", since=since, until=None, should_tail=True, streams=Stream.STDERR)
    assert (query.since, query.until, query.follow, query.stream) == (since.timestamp(), None, True, Stream.STDERR)
    assert list(query.matching(["abc\n", "ab\n", "cbd"])) == ["abc\n", "cbd"]
    with pytest.raises(ConfigError):
        LogQuery.of(regex="[", since=None, until=None, should_tail=False, streams=None)


def test_a_sweep_ends_with_the_last_of_its_tasks() -> None:
    """Its end is theirs; while one runs, and where no time is known, it has none."""
    over, running = [AppState.SUCCEEDED, AppState.FAILED], [AppState.RUNNING, AppState.FAILED]

    def ended_at(states: list[AppState], *ended: float, state: AppState | None = None) -> float | None:
        return describe_sweep("a", TaskTable(states=states, exit_codes=[0, 1], ended=[*ended]), state).ended_at

    assert [ended_at(over, 5.0, 3.0), ended_at(over, 0.0, 0.0), ended_at(running, 0.0, 3.0)] == [5.0, None, None]
    assert ended_at(running, 0.0, 3.0, state=AppState.FAILED) == 3.0
