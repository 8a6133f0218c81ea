"""The parts that backends share: names, states, replicas, causes, log queries."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.errors import ConfigError
from torchx.schedulers.api import Stream
from torchx.schedulers.kit.causes import failure_of
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.names import DNS_LABEL, FILE_NAME
from torchx.schedulers.kit.replicas import replicas
from torchx.schedulers.kit.verdict import fold
from torchx.specs.api import AppDef, AppState, BindMount, Role

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
    assert found[1].role.env == {"HOST": "R0"}
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


TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\nValueError: bad lr\n'
)


def _failure(tmp_path, stderr: str, error: str | None = None, code: int | None = 1):
    (tmp_path / "stderr").write_text(stderr)
    if error is not None:
        (tmp_path / "error").write_text(error)
    return failure_of(str(tmp_path / "error"), str(tmp_path / "stderr"), exit_code=code, ended=7.0)


def test_the_last_traceback_of_stderr_is_the_cause(tmp_path) -> None:
    """Its last line is the message, and it is shown without what came before or after."""
    failure = _failure(tmp_path, "warning: x\n" + TRACEBACK + "srun: done\n")
    assert failure.summary() == "exit code 1: ValueError: bad lr"
    assert failure.traceback == TRACEBACK.rstrip("\n")
    assert failure.timestamp == 7.0


REPORT = """\
E1121 failed (exitcode: 1) local_rank: 1 (pid: 11381) of binary: python
Traceback (most recent call last):
  File "torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_09:24:31
  host      : localhost
  rank      : 3 (local_rank: 1)
  exitcode  : 1 (pid: 11381)
============================================================
"""


def _worker(prefix: str, error: str) -> list[str]:
    return [f"{prefix}{line}\n" for line in TRACEBACK.replace("ValueError: bad lr", error).splitlines()]


@pytest.mark.parametrize(
    "prefixes",
    [("[1]:[rank3]: ", "[0]:[rank2]: "), ("[trainer1]:", "[trainer0]:"), ("", "")],
    ids=["ranks", "tee", "plain"],
)
def test_the_worker_that_torchrun_calls_the_root_cause(tmp_path, prefixes) -> None:
    """Its traceback counts: not that of a worker that lost its peer, nor torchrun's own. Prefixes are taken off."""
    cause, effect = prefixes
    stderr = "".join(_worker(cause, "ValueError: bad lr") + _worker(effect, "RuntimeError: Connection closed"))
    failure = _failure(tmp_path, stderr + REPORT)
    assert failure.message == "ValueError: bad lr"
    assert failure.traceback == TRACEBACK.rstrip("\n")


def test_tracebacks_of_workers_that_are_mixed_line_by_line(tmp_path) -> None:
    """Only lines of the one worker are taken."""
    pairs = zip(
        _worker("[0]:[rank2]: ", "RuntimeError: Connection closed"),
        _worker("[1]:[rank3]: ", "ValueError: bad lr"),
        strict=True,
    )
    failure = _failure(tmp_path, "".join(a + b for a, b in pairs) + REPORT)
    assert failure.message == "ValueError: bad lr"
    assert failure.traceback == TRACEBACK.rstrip("\n")


def test_without_traceback_the_last_line_counts(tmp_path) -> None:
    """Programs in other languages explain themselves in their last line."""
    assert _failure(tmp_path, "one\ntwo: not found\n\n", code=127).summary() == "exit code 127: two: not found"
    assert _failure(tmp_path, "").summary() == "exit code 1"


def test_the_error_file_wins_when_it_says_more(tmp_path) -> None:
    """torchelastic's file with a traceback is the cause; one without yields to the traceback in stderr."""
    full = '{"message": {"message": "RuntimeError: x", "extraInfo": {"py_callstack": "T", "timestamp": "5"}}}'
    assert _failure(tmp_path, TRACEBACK, full).message == "RuntimeError: x"
    bare = '{"message": {"message": "worker failed"}}'
    assert _failure(tmp_path, TRACEBACK, bare).message == "ValueError: bad lr"
    assert _failure(tmp_path, "", bare).message == "worker failed"


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_garbage_in_the_files_is_survived(tmp_path_factory, stderr: bytes, error: bytes) -> None:
    """Whatever a dying program leaves behind, its failure can be told."""
    folder = tmp_path_factory.getbasetemp() / "garbage"
    folder.mkdir(exist_ok=True)
    (folder / "stderr").write_bytes(stderr)
    (folder / "error").write_bytes(error)
    failure_of(str(folder / "error"), str(folder / "stderr"), exit_code=1).to_structured_msg()
