"""Where the reader of a container's log is: after restarts, silences, broken connections, and lines of the same time."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster, Response, refusal
from torchx.errors import BackendError, NotFoundError, TransientError
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes.pods import kept_logs
from torchx.schedulers.kubernetes.pods.container_logs import ContainerLog
from torchx.schedulers.kubernetes.pods.kept_logs import KeptLog
from torchx.settings import torchx_home

POD = {"metadata": {"namespace": "n", "name": "p"}}
SECOND = 10**9
START = 1767225600 * SECOND  # 2026-01-01T00:00:00Z


def line(second: float, text: str) -> bytes:
    whole, fraction = divmod(round(second * SECOND), SECOND)
    return f"2026-01-01T00:00:{whole:02}.{fraction:09}Z {text}\n".encode()


class Logs:
    """A container's log; each answer of the server is a text, or an error, and is written down with its query."""

    def __init__(self, *answers: bytes | Response | Exception, prefix: str = "", **query: Any) -> None:
        self.answers = list(answers)
        cluster = Cluster()
        cluster.away = self._answer
        self.cluster = cluster
        api = KubeApi(cluster, sleep=lambda _: None)
        self.log = ContainerLog(api, POD, "main", LogQuery(**query), prefix=prefix)

    def _answer(self, method: str, path: str) -> Any:
        assert path == "/api/v1/namespaces/n/pods/p/log"
        answer = self.answers.pop(0) if self.answers else b""
        return Response(200, answer) if isinstance(answer, bytes) else answer

    def read(self, restarts: int = 0, state: str = "running", *, follow: bool = False) -> list[str]:
        status = {"restartCount": restarts, "state": {state: {}} if state else None}
        return [text.decode() for _, text in self.log.lines(status, follow=follow)]

    @property
    def asked(self) -> list[tuple[str, str, str]]:
        """Of each call: whether it followed, whether it was about the previous run, and since when."""
        return [
            (q.get("follow", ""), q.get("previous", ""), q.get("sinceTime", "")[11:]) for _, _, q in self.cluster.calls
        ]


def broken(*texts: bytes) -> Response:
    """An answer that breaks off after these lines."""
    whole = b"".join(texts)
    return Response(200, whole + b"x", cut=len(whole))


def test_the_lines_have_their_times() -> None:
    """In nanoseconds, and a prefix; a long line is joined from its records."""
    record = "x" * (1 << 14)
    rest = b"2026-01-01T00:00:01.000000001Z " + b"y" * 9
    logs = Logs(line(1.25, "a") + line(2, record)[:-1] + rest + b"\n", prefix="w/0 ")
    found = list(logs.log.lines({"state": {"running": {}}}, follow=False))
    assert found == [
        (START + 5 * SECOND // 4, b"w/0 a\n"),
        (START + 2 * SECOND, b"w/0 " + record.encode() + b"y" * 9 + b"\n"),
    ]


@pytest.mark.parametrize(("state", "asks"), [("", False), ("waiting", False), ("running", True), ("terminated", True)])
def test_a_container_that_has_not_begun(state: str, asks: bool) -> None:
    """It has no log; one that has ended is read once."""
    logs = Logs(line(1, "a"), line(1, "a"))
    assert logs.read(state=state) == (["a\n"] if asks else [])
    logs.read(state=state)
    assert len(logs.asked) == {"": 0, "waiting": 0, "running": 2, "terminated": 1}[state]
    assert logs.log.found is asks


def test_only_new_lines_are_read() -> None:
    """Since the second of the last one; of several lines at the same time, those that come later."""
    logs = Logs(
        line(1, "a") + line(1.5, "b") + line(1.5, "c"),
        line(1, "a") + line(1.5, "b") + line(1.5, "c") + line(1.5, "d") + line(3, "e"),
        line(1.5, "d") + line(3, "e") + line(3, "f"),
    )
    assert [logs.read(), logs.read(), logs.read()] == [["a\n", "b\n", "c\n"], ["d\n", "e\n"], ["f\n"]]
    assert [since for _, _, since in logs.asked] == ["", "00:00:01Z", "00:00:03Z"]


@pytest.mark.parametrize(
    ("query", "lines", "since"),
    [
        ({}, ["a\n", "b\n", "c\n"], ""),
        ({"since": START / SECOND + 2}, ["b\n", "c\n"], "00:00:02Z"),
        ({"since": START / SECOND + 2.5}, ["c\n"], "00:00:02Z"),
        ({"until": START / SECOND + 2}, ["a\n"], ""),
        ({"until": START / SECOND + 3}, ["a\n", "b\n"], ""),
        ({"since": START / SECOND + 2, "until": START / SECOND + 3}, ["b\n"], "00:00:02Z"),
    ],
)
def test_a_time_range(query: dict[str, Any], lines: list[str], since: str) -> None:
    """From its first moment up to its last, which is not in it."""
    logs = Logs(line(1, "a") + line(2, "b") + line(3, "c"), **query)
    assert (logs.read(), logs.asked[0][2]) == (lines, since)


@pytest.mark.parametrize(("previous", "said"), [(False, ["gone\n"]), (True, [])])
def test_a_message_of_the_node(previous: bool, said: list[str]) -> None:
    """It has no time; it is shown if nothing else was read, and not as a line of a previous run."""
    message = b"gone \n"
    assert list(Logs(message).log.read_all(previous=previous)) == [(0, text.encode()) for text in said]
    logs = Logs(line(1, "a"), message)
    assert [logs.read(), logs.read()] == [["a\n"], []]


def test_a_connection_that_breaks_off() -> None:
    """It is resumed as long as it makes progress; three times in vain are an error."""
    logs = Logs(
        broken(line(1, "a")), broken(line(1, "a")), broken(line(1, "a"), line(2, "b")), line(2, "b") + line(3, "c")
    )
    assert logs.read() == ["a\n", "b\n", "c\n"]
    logs = Logs(broken(line(1, "a")), *[broken(line(1, "a"))] * 3)
    with pytest.raises(TransientError, match="the log of `main` breaks off repeatedly at the same line"):
        logs.read()
    assert len(logs.asked) == 4
    logs = Logs(*[broken()] * 3)
    with pytest.raises(TransientError):
        logs.read()


@pytest.mark.parametrize(
    ("previous", "status", "raises"),
    [
        (False, 404, False),
        (True, 404, False),
        (False, 400, True),
        (True, 400, False),
        (True, 503, True),
        (False, 503, True),
    ],
)
def test_a_log_that_cannot_be_had(previous: bool, status: int, raises: bool) -> None:
    """That of a deleted pod is over; that of a previous run may be gone. Any other error is one."""
    logs = Logs(*[refusal(status, "X", "no")] * 9)
    if raises:
        with pytest.raises(BackendError):
            list(logs.log.read_all(previous=previous))
    else:
        assert list(logs.log.read_all(previous=previous)) == []


def test_a_stream_without_lines_is_asked_for_less_often() -> None:
    """Up to every eighth time, until there is a line again."""
    logs = Logs()
    asked = [len(logs.asked) for _ in range(34) if logs.read(follow=True) == []]
    times = [i for i, (before, after) in enumerate(itertools.pairwise(asked)) if after > before]
    assert times == [1, 5, 13, 21, 29]
    logs = Logs(b"", line(1, "a"), line(1, "a") + line(2, "b"), b"", b"")
    assert [logs.read(follow=True) for _ in range(4)] == [[], [], ["a\n"], ["b\n"]]
    assert {follow for follow, _, _ in logs.asked} == {"true"}
    logs = Logs(b"", line(1, "a"))
    assert [logs.read(follow=True), logs.read(state="terminated", follow=True)] == [[], ["a\n"]]


def test_runs_before_this_one() -> None:
    """Once after each restart; its last lines come late if lines of this run were read before."""
    logs = Logs(b"", line(10, "c"))
    assert logs.read(restarts=1) == ["c\n"]
    assert [previous for _, previous, _ in logs.asked] == ["true", ""]
    assert logs.read(restarts=1) == []
    assert [previous for _, previous, _ in logs.asked] == ["true", "", ""]


# -- kept on this machine ------------------------------------------------------------------------------------


def kept(k: int = 0) -> KeptLog:
    return KeptLog("kubernetes", "n:app", "w", k)


LINES = [(0, f"{i}\n".encode()) for i in range(203)]


def test_the_last_lines_that_were_followed() -> None:
    """Two hundred, in a file of their owner alone; also if the reader stops."""
    assert list(kept().keep(iter(LINES))) == LINES
    (path,) = Path(torchx_home("kubernetes", "logs")).iterdir()
    assert (path.stat().st_mode & 0o777, path.read_bytes()) == (0o600, b"".join(text for _, text in LINES[3:]))
    assert list(kept().lines(LogQuery())) == LINES[3:]
    reader = kept(1).keep(iter(LINES))
    assert next(reader) == LINES[0]
    reader.close()  # type: ignore[attr-defined]  # a generator
    assert list(kept(1).lines(LogQuery())) == LINES[:1]
    assert list(kept(2).keep(iter([]))) == []
    with pytest.raises(NotFoundError, match="their logs with them"):
        list(kept(2).lines(LogQuery()))


@pytest.mark.parametrize(("days", "stays"), [(13.9, True), (14.1, False)])
@pytest.mark.parametrize("name", ["x.log", "x.txt"])
def test_old_lines_are_forgotten(days: float, stays: bool, name: str, tmp_path: Path) -> None:
    """After two weeks; a link is judged by its own age, and nothing else is touched."""
    folder = Path(torchx_home("kubernetes", "logs"))
    folder.mkdir(parents=True)
    (folder / name).write_text("old")
    (tmp_path / "young").write_text("")
    (folder / "link.log").symlink_to(tmp_path / "young")
    then = time.time() - days * 86400
    os.utime(folder / name, (then, then))
    os.utime(folder / "link.log", (then, then), follow_symlinks=False)
    list(kept().keep(iter(LINES)))
    assert ((folder / name).exists(), (folder / "link.log").is_symlink()) == (stays or name == "x.txt", stays)
    assert kept_logs._DAYS == 14


def test_an_archive_is_begun_before_the_log_has_ended() -> None:
    """With the lines so far, read from the source only as they are passed on."""
    taken: list[int] = []

    def source() -> Any:
        for i, text in enumerate((b"a", b"b\n", b"c\n")):
            taken.append(i)
            yield START + i * SECOND, text

    reader = kept().archive(source())
    assert (next(reader), taken) == ((START, b"a"), [0])
    assert list(reader) == [(START + SECOND, b"b\n"), (START + 2 * SECOND, b"c\n")]
    assert list(kept().lines(LogQuery())) == [(START, b"ab\n"), (START + 2 * SECOND, b"c\n")]
    (path,) = Path(torchx_home("kubernetes", "archive")).rglob("*.gz*")
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_archive_that_is_damaged(caplog: pytest.LogCaptureFixture) -> None:
    """What can be read is shown, with a warning; the end of a followed log does not take its place."""
    list(kept().archive(iter([(START, b"a\n"), (START, os.urandom(9000).hex().encode() + b"\n")])))
    list(kept().keep(iter(LINES)))
    (path,) = Path(torchx_home("kubernetes", "archive")).rglob("*.gz")
    path.write_bytes(path.read_bytes()[:5000])
    assert [text for _, text in kept().lines(LogQuery())][:1] in ([b"a\n"], [])
    assert "cannot be read completely" in caplog.text
    kept_logs.forget("kubernetes", "n:app")
    assert list(kept().lines(LogQuery())) == LINES[3:]
