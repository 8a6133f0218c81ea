"""Looking into all replicas of a job at once: which are asked, what is said of those that did not answer, and the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import BackendError, NotFoundError
from torchx.schedulers.kit.inside.run import Ran
from torchx.schedulers.kit.stacks import Frame, Group, RankStack, Stacks
from torchx.schedulers.kit.stacks.look import look, tell
from torchx.schedulers.kit.stacks.page import page
from torchx.schedulers.kit.stacks.probe import NO_SPY
from torchx.specs.api import AppState, AppStatus, ReplicaStatus, RoleStatus

READ = [["__getitem__", "/app/dataset.py", 31, "read()"], ["<module>", "/app/train.py", 120]]
DOING = "is in dataset.py:31"


def probed(rank: int | None, **more: Any) -> bytes:
    """What the probe prints of one rank."""
    row = {"pid": 7, "rank": rank, "world_size": 0, "host": "own", "busy": 0.0, "state": "S", "by": "x", "why": ""}
    return json.dumps({**row, "looks": [READ], "workers": [], **more}).encode()


class Job:
    """Replicas of the role `w`, and what the probe says in each: output, or an error."""

    def __init__(self, *answers: Ran | Exception | bytes) -> None:
        self.answers = answers
        self.asked: list[tuple[str, int]] = []

    def __call__(self, words: Sequence[str], role: str, k: int) -> Ran:
        assert words[:2] == ["sh", "-c"]
        self.asked.append((role, k))
        answer = self.answers[k]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Ran) else Ran(0, answer, b"unread")

    @property
    def there(self) -> list[tuple[str, int]]:
        return [("w", k) for k in range(len(self.answers))]


def status(*states: AppState) -> AppStatus:
    replicas = [ReplicaStatus(k, state, "w", f"n{k}") for k, state in enumerate(states)]
    return AppStatus(AppState.RUNNING, roles=[RoleStatus("w", replicas)])


R, S, F, C, P = AppState.RUNNING, AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED, AppState.PENDING


@pytest.mark.parametrize(
    ("states", "wanted", "asked"),
    [
        (None, None, [0, 1, 2]),
        ((R, R, R), None, [0, 1, 2]),
        ((R, S, P), None, [0, 2]),
        ((F, R, C), None, [1]),
        ((S, S, S), None, [0]),
        ((R, R, S), [("w", 2)], [2]),
        ((R, R, R), [("w", 2), ("w", 0)], [0, 2]),
        (None, [("w", 1)], [1]),
    ],
)
def test_who_is_asked(
    states: Sequence[AppState] | None, wanted: Sequence[tuple[str, int]] | None, asked: list[int]
) -> None:
    """Those that are wanted, else all that have not ended; if all have, the first one says so."""
    job = Job(*(probed(k, world_size=3) for k in range(3)))
    found = look(job, status(*states) if states else None, job.there, wanted)
    assert sorted(k for _, k in job.asked) == asked
    assert [rank.rank for rank in found.ranks] == asked  # the others are not reported as missing
    assert {rank.doing for rank in found.ranks} == {DOING}


def test_a_rank_without_a_process_is_missing_only_if_all_were_asked() -> None:
    """It may be in a replica that nobody has looked into."""
    job = Job(probed(0, world_size=2))
    assert look(job, None, job.there, None).sentence.endswith("rank 1 of w has no process")
    job = Job(probed(0, world_size=2), probed(1, world_size=2))
    assert "has no process" not in look(job, None, job.there, [("w", 0)]).sentence


@pytest.mark.parametrize(
    ("hosts", "known", "said"),
    [
        (None, False, ["own", "own"]),
        ({("w", 0): "a", ("w", 1): "b"}, False, ["a", "b"]),
        ({("w", 0): "a"}, False, ["a", "own"]),
        (None, True, ["n0", "n1"]),
        ({("w", 0): "a"}, True, ["n0", "n1"]),
    ],
    ids=["own", "given", "one given", "status", "status first"],
)
def test_the_name_of_a_host(hosts: dict[tuple[str, int], str] | None, known: bool, said: list[str]) -> None:
    """By the status of the job, else as given, else what it calls itself."""
    job = Job(*map(probed, range(2)))
    found = look(job, status(R, R) if known else None, job.there, None, hosts=hosts)
    assert [rank.host for rank in found.ranks] == said


GONE, LOST = NotFoundError("it has ended"), BackendError("connection lost")


@pytest.mark.parametrize(
    ("answers", "ranks", "unread"),
    [
        ([probed(0), GONE, probed(2)], [0, 2], {1: "it has ended"}),
        ([GONE, probed(1), LOST], [1], {0: "it has ended", 2: "connection lost"}),
        ([probed(0), Ran(127, probed(1), b"a\nno python there\n")], [0], {1: "no python there"}),
        ([probed(0), Ran(3, b"", b"")], [0], {1: "the probe ended with exit code 3"}),
        ([Ran(1, b"", b"x"), Ran(0, probed(1), b"")], [1], {0: "x"}),
        ([Ran(1, b"", b"x"), GONE], [], {0: "x", 1: "it has ended"}),
        ([b"", probed(1)], [1], {0: "no process of the user runs there"}),
    ],
)
def test_a_replica_that_does_not_answer(
    answers: list[Ran | Exception | bytes], ranks: list[int], unread: dict[int, str]
) -> None:
    """The others are shown, and the reason is."""
    job = Job(*answers)
    found = look(job, None, job.there, None)
    assert [rank.rank for rank in found.ranks] == ranks
    assert {k: why for (_, k), why in found.unread.items()} == unread


@pytest.mark.parametrize("answers", [[GONE], [GONE, LOST]])
def test_if_nobody_answers_the_first_error_is_raised(answers: list[Exception]) -> None:
    """There is nothing else to show."""
    job = Job(*answers)
    with pytest.raises(NotFoundError, match="it has ended"):
        look(job, None, job.there, None)


def test_a_mistake_of_ours_is_no_answer() -> None:
    """It is raised as it is."""
    job = Job(probed(0), ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        look(job, None, job.there, None)


def test_a_job_without_replicas() -> None:
    """Nothing is asked, and nothing is found."""
    assert look(Job(), None, [], None).groups == []


@pytest.fixture
def spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine's py-spy."""
    path = tmp_path / "py-spy"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o775)
    monkeypatch.setenv("PATH", str(tmp_path))
    return path


@pytest.mark.parametrize(
    ("said", "brought"), [(b"py-spy failed: no", []), (NO_SPY.encode(), ["w/0"]), (NO_SPY.encode() + b", and", ["w/0"])]
)
def test_py_spy_is_brought_where_it_is_missing(spy: Path, said: bytes, brought: list[str]) -> None:
    """A copy that only we may write, and then the replica is asked again."""
    came: list[str] = []

    class Replica(Job):
        def __call__(self, words: Sequence[str], role: str, k: int) -> Ran:
            super().__call__(words, role, k)
            assert repr(str(spy)) in words[-1] and repr("/tmp/torchx-py-spy") in words[-1]
            return Ran(0, probed(0) if came else probed(0, looks=[], why=said.decode()), b"")

    def bring(source: str, target: str, role: str, k: int) -> None:
        assert (Path(source).stat().st_mode & 0o777, Path(source).read_text()) == (0o755, "#!/bin/sh\n")
        assert target == "/tmp/torchx-py-spy"
        came.append(f"{role}/{k}")

    job = Replica(b"")
    (rank,) = look(job, None, job.there, None, bring).ranks
    assert (came, rank.doing) == (brought, DOING if brought else "cannot be read")
    came.clear()
    job = Replica(b"")
    assert look(job, None, job.there, None).ranks[0].doing == "cannot be read"  # nobody can bring it
    assert len(job.asked) == 1
    spy.unlink()
    other = Job(probed(0, looks=[], why=said.decode()))
    assert look(other, None, other.there, None, bring).ranks[0].why == said.decode()
    assert (came, len(other.asked)) == ([], 1)


# -- the page --------------------------------------------------------------------------------------


def stack(rank: int | None, k: int = 0, *, host: str = "", pid: int = 9, **more: Any) -> RankStack:
    return RankStack(role="w", replica=k, rank=rank, host=host, pid=pid, doing=more.pop("doing", DOING), **more)


def heads(*ranks: RankStack) -> list[str]:
    return [line for line in page(Stacks([Group(DOING, ranks)])) if line and not line.startswith("    ")][1:]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([stack(0)], ["w/0 rank 0  pid 9"]),
        ([stack(None)], ["w/0  pid 9"]),
        ([stack(0), stack(1)], ["w/0 ranks 0, 1"]),
        ([stack(0), stack(1), stack(2), stack(4)], ["w/0 ranks 0-2, 4"]),
        ([stack(0, 0, host="a"), stack(1, 1, host="a")], ["w/0 rank 0  pid 9", "w/1 rank 1  pid 9"]),
        ([stack(0, 0, host="a"), stack(1, 1, host="b")], ["w/0 rank 0 (node a)  pid 9", "w/1 rank 1 (node b)  pid 9"]),
        ([stack(0, 0, host="a"), stack(1, 1)], ["w/0 rank 0  pid 9", "w/1 rank 1  pid 9"]),
        (
            [stack(0, 0, host="a"), stack(1, 1, host="b"), stack(2, 2)],
            ["w/0 rank 0 (node a)  pid 9", "w/1 rank 1 (node b)  pid 9", "w/2 rank 2  pid 9"],
        ),
        ([stack(3, -1, pid=0)], ["w rank 3"]),
        ([stack(k, k) for k in range(12)], [f"w/{k} rank {k}  pid 9" for k in range(12)]),
        ([stack(k, k) for k in range(13)], [*(f"w/{k} rank {k}  pid 9" for k in range(12)), "... in 1 more replicas"]),
    ],
)
def test_the_heads_of_a_group(ranks: list[RankStack], said: list[str]) -> None:
    """One for each replica; its node, if there are several, and its pid, if it has one rank."""
    assert heads(*ranks) == said


def test_pids_are_dimmed() -> None:
    """By the caller, who knows the terminal."""
    lines = list(page(Stacks([Group(DOING, [stack(0)])]), lambda text: f"<{text}>"))
    assert lines[2] == "w/0 rank 0<  pid 9>"


@pytest.mark.parametrize("count", [0, 1, 8, 9, 11])
def test_the_frames_of_a_group(count: int) -> None:
    """Those of its first rank, in columns, and how many are left out."""
    frames = [Frame(f"f{i}", "/app/model.py", i, "" if i else "x = y") for i in range(count)]
    lines = list(page(Stacks([Group("is there", [stack(0, frames=frames), stack(1)])])))[3:]
    shown = [f"      model.py:{i}  f{i}{' ' * 15 + '  x = y' if not i else ''}".rstrip() for i in range(min(count, 8))]
    if count:
        shown[0] = f"      model.py:0  {'f0':16}  x = y"
    rest = [f"      ... {count - 8} more"] if count > 8 else []
    assert lines == ["    are there", *shown, *rest]


def test_the_page_ends_with_the_suspects_and_those_that_were_not_read() -> None:
    """Control characters of a program do not reach the terminal."""
    found = Stacks(
        [Group("waits", [stack(0), stack(1)]), Group("is \x1b[31m", [stack(2)], suspect=True)], {("v", 3): "\x1b!"}
    )
    lines = list(page(found))
    assert [line for line in lines[1:] if line] == [
        *("w/0 rank 2  pid 9", "    is ?[31m", "w/0 ranks 0, 1", "    wait", "v/3", "    ?!"),
    ]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("busy", [False, True])
def test_what_a_watchdog_is_told(busy: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The page, after a line that says that the job only computes; or why there is none."""
    from torchx.supervisor.watchdog import BUSY

    found = Stacks([Group(DOING, [stack(0, busy=busy)])])
    tell(lambda: found)
    lines = list(page(found))
    assert lines[0] == f"w/0 rank 0 {DOING}"
    assert capsys.readouterr().out == "\n".join([BUSY] * busy + lines)

    def fails() -> Stacks:
        raise GONE

    tell(fails)
    assert capsys.readouterr().out == "it could not be inspected: it has ended"
