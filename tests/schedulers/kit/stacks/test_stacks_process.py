"""One process as the probe sees it, which processes are ranks, and the line that it prints of each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchx.schedulers.kit.stacks import probe
from torchx.schedulers.kit.stacks.probe import NO_SPY, Process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes that say `up`, and then wait."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str, **env: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def of_this_process(**changed: Any) -> Process:
    """A process that exists, with other attributes."""
    process = Process(os.getpid())
    for name, value in changed.items():
        setattr(process, name, value)
    return process


# -- what the system says ----------------------------------------------------------------------------------


def test_what_is_known_of_a_process(start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """Its name may be anything."""
    odd = tmp_path / "a) R 7 (b"
    odd.symlink_to(os.path.realpath("/bin/sh"))
    first = start(str(odd), "-c", "echo up; read x", "", "b c", A="x=y", B="")
    second = start("sh", "-c", "echo up; read x")
    found = Process(first.pid)
    assert (found.pid, found.parent, found.exe) == (
        first.pid,
        os.getpid(),
        os.path.basename(os.path.realpath("/bin/sh")),
    )
    assert found.argv == [str(odd), "-c", "echo up; read x", "", "b c"]
    assert {name: found.env[name] for name in "AB"} == {"A": "x=y", "B": ""}
    stat = Path(f"/proc/{first.pid}/stat").read_text().rpartition(")")[2].split()
    assert (found.began, found.began <= Process(second.pid).began) == (int(stat[19]), True)
    while found.state() == "R":  # it is about to read
        time.sleep(0)
    assert found.report() == {"pid": first.pid, "state": "S", "by": "", "why": "", "looks": []}
    os.kill(first.pid, signal.SIGSTOP)
    os.waitpid(first.pid, os.WUNTRACED)
    assert found.state() == "T"
    first.kill()
    first.wait()
    assert (found.state(), found.ticks()) == ("", 0)
    with pytest.raises(FileNotFoundError):
        Process(first.pid)


def test_the_time_that_it_has_used() -> None:
    """Of its main thread: `utime` and `stime` of proc_pid_stat(5)."""
    asked: list[str] = []
    process = of_this_process(stat=lambda thread="": asked.append(thread) or [str(2**n) for n in range(50)])
    assert (process.ticks(), asked) == (2**11 + 2**12, [f"/task/{os.getpid()}"])


@pytest.mark.parametrize(
    ("argv", "is_agent"),
    [
        (["/venv/bin/torchrun", "train.py"], True),
        (["python", "/venv/bin/torchrun"], True),
        (["python", "-u", "-m", "torch.distributed.run"], True),
        (["python", "-m", "torch.distributed.launch"], True),
        (["python", "-u", "-X", "dev", "torchrun"], False),
        (["python", "train.py"], False),
        ([], False),
    ],
)
def test_an_agent_is_known_by_its_first_words(argv: list[str], is_agent: bool) -> None:
    """Later ones are those of the program."""
    assert of_this_process(argv=argv).is_agent() is is_agent


@pytest.mark.parametrize(
    ("exe", "is_python"), [("python3.11", True), ("pypy3", True), ("sh", False), ("mypython", False)]
)
def test_python_is_known_by_its_program(exe: str, is_python: bool) -> None:
    """Whatever the process calls itself."""
    assert of_this_process(exe=exe).is_python() is is_python


# -- one look ----------------------------------------------------------------------------------------------

FRAME = ["f", "/app/a.py", 1]


@pytest.mark.parametrize(
    ("state", "no_spy", "spy", "ask", "called", "looks"),
    [
        ("S", "", [FRAME], [], ["spy"], 1),
        ("S", "", [], [FRAME], ["spy", "ask"], 1),
        ("S", "", [], [], ["spy", "ask"], 0),
        ("S", "no", [FRAME], [FRAME], ["ask"], 1),
        ("R", "no", [FRAME], [], ["ask"], 0),
        ("T", "", [], [FRAME], ["spy"], 0),
        ("T", "", [FRAME], [], ["spy"], 1),
        ("t", "no", [], [FRAME], [], 0),
        ("Z", "no", [], [FRAME], [], 0),
        ("", "no", [], [FRAME], [], 0),
    ],
)
def test_one_look(state: str, no_spy: str, spy: list[Any], ask: list[Any], called: list[str], looks: int) -> None:
    """By py-spy unless that has failed, else by a signal, which only a process gets that can answer."""
    calls: list[str] = []
    process = of_this_process(
        state=lambda: state,
        no_spy=no_spy,
        why="before",
        _spy=lambda state: calls.append("spy") or spy,
        _ask=lambda: calls.append("ask") or ask,
    )
    process.look()
    process.look()
    assert (calls, len(process.looks), process.states) == (called * 2, looks * 2, state * 2)
    assert process.why == ("" if looks else "before")


def test_a_look_at_another_program() -> None:
    """It cannot be read, and says which it is; the text of a line is that of the user's file."""
    process = of_this_process(exe="bash", states="S")
    process.look()
    assert (process.why, process.looks) == ("it runs `bash`, not Python", [])


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a.py", ["x = 1"]),
        ("site-packages/lib/a.py", []),
        ("lib/python3.11/a.py", []),
        ("lib64/python3/a.py", []),
        ("gone.py", [""]),
    ],
)
def test_the_text_of_a_line(tmp_path: Path, name: str, shown: list[str]) -> None:
    """Of the user's own code only."""
    for path in ("a.py", "site-packages/lib/a.py", "lib/python3.11/a.py", "lib64/python3/a.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("import os\n\tx = 1  \n")
    frame = ["f", str(tmp_path / name), 2]
    process = of_this_process(_spy=lambda state: [frame])
    process.look()
    assert process.looks == [[[*frame, *shown]]]


def test_the_text_of_a_long_line(tmp_path: Path) -> None:
    """Its beginning."""
    (tmp_path / "a.py").write_text("x" * 300)
    assert probe._source(str(tmp_path / "a.py"), 1) == ["x" * 200]
    assert probe._source("<string>", 1) == []


# -- py-spy ------------------------------------------------------------------------------------------------


def threads(*rows: tuple[str, int, str]) -> str:
    return json.dumps(
        [
            {"thread_name": n, "os_thread_id": i, "frames": [{"name": f, "filename": "a.py", "line": 7}]}
            for n, i, f in rows
        ]
    )


def spy(folder: Path, script: str) -> Path:
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("said", "function"),
    [
        (threads(("other", 1, "wrong"), ("x", -1, "mine")), "mine"),
        (threads(("other", 1, "wrong"), ("MainThread", 2, "mod.Class.mine")), "mine"),
        (threads(("first", 1, "mine"), ("second", 2, "wrong")), "mine"),
        ("[]", None),
    ],
    ids=["by number", "by name", "the first", "none"],
)
def test_the_main_thread_is_read(
    said: str, function: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its number or its name; py-spy is told which process it is to read."""
    said = said.replace("-1", str(os.getpid()))
    spy(tmp_path, f"echo \"$@\" > '{tmp_path}/words'; cat << END\n{said}\nEND")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for state, more in (("S", ""), ("T", " --nonblocking"), ("t", " --nonblocking")):
        process = of_this_process()
        assert process._spy(state) == ([[function, "a.py", 7]] if function else [])
        assert (process.by, process.no_spy) == ("py-spy", "")
        assert (tmp_path / "words").read_text() == f"dump --json --pid {os.getpid()}{more}\n"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "echo 'Error: first' >&2; echo ' Permission denied ' >&2; echo 'note: run with RUST_BACKTRACE=1' >&2; echo >&2; exit 1",
            "Permission denied",
        ),
        ("printf '\\377' >&2; exit 1", "\ufffd"),
        ("echo '{'", "Expecting property name enclosed in double quotes: line 2 column 1 (char 2)"),
        ("echo ' ' >&2; exit 1", "no reason given"),
    ],
)
def test_py_spy_that_fails(script: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last words are the reason, and it is not asked again."""
    spy(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    process = of_this_process()
    assert (process._spy("S"), process.by) == ([], "")
    assert process.why == process.no_spy == f"py-spy failed: {why}"


@pytest.mark.parametrize("where", ["path", "beside the program", "beside the probe", "brought", "nowhere"])
def test_where_py_spy_may_be(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PATH, beside the Python of the process or of the probe, or where it was brought."""
    spy(tmp_path, f"/bin/cat << END\n{threads(('MainThread', 1, 'f'))}\nEND")
    monkeypatch.setenv("PATH", str(tmp_path) if where == "path" else "/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", f"{tmp_path}/python" if where == "beside the probe" else "/nowhere/python")
    monkeypatch.setattr(probe, "BROUGHT", (str(tmp_path / "py-spy"),) if where == "brought" else ())
    process = of_this_process(argv=[f"{tmp_path}/python" if where == "beside the program" else "python", "x"])
    found = process._spy("S")
    assert (found, process.no_spy, process.why) == (
        ([], NO_SPY, NO_SPY) if where == "nowhere" else ([["f", "a.py", 7]], "", "")
    )


@pytest.mark.parametrize(
    ("mode", "taken"),
    [(0o755, True), (0o700, True), (0o500, True), (0o775, False), (0o757, False), (0o777, False), (0o644, False)],
)
def test_a_py_spy_that_was_brought(mode: int, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if no other user could have written it, and it can be executed; the first such one."""
    paths = [tmp_path / name for name in ("gone", "mine", "next")]
    for path in paths[1:]:
        path.write_text("")
        path.chmod(0o755)
    paths[1].chmod(mode)
    monkeypatch.setattr(probe, "BROUGHT", tuple(map(str, paths)))
    assert probe._brought() == str(paths[1 if taken else 2])
    monkeypatch.setattr(probe, "BROUGHT", ())
    assert probe._brought() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(("owner", "taken"), [(0, True), (1, False), (65534, False)])
def test_a_py_spy_of_somebody_else(owner: int, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's is taken, too."""
    path = tmp_path / "py-spy"
    path.write_text("")
    path.chmod(0o755)
    os.chown(path, owner, owner)
    monkeypatch.setattr(probe, "BROUGHT", (str(path),))
    assert (probe._brought() is not None) is taken


# -- a signal, and its answer ------------------------------------------------------------------------------


def test_an_answer_is_complete_when_it_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was in the file before is not part of it."""
    path = tmp_path / "answer"
    path.write_text("old old old old old")
    now = [0.0]
    left = ["a", "b", "c\n"]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if left:
            with path.open("a") as file:
                file.write(left.pop(0))

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    process = of_this_process()
    assert process._answer(str(path), lambda: path.open("a").close()) == "abc\n"
    assert now[0] < 0.5
    assert process._answer(str(path), lambda: None) == ""
    assert 1.5 < now[0] < 3.5


def test_what_a_process_offers() -> None:
    """By the names of its open files: signals, and descriptors of pipes."""
    files = [
        os.memfd_create(name)
        for name in ("torchx-stacks-47", "torchx-calls-9", "torchx-stacks-x", "torchx-other-3", "else")
    ]
    try:
        process = of_this_process()
        # another test may have made this process offer its own, for as long as it lives
        here = {f"/proc/{os.getpid()}/fd/{fd}" for fd in files}
        found = {kind: [one for one in process._offers(kind) if one[1] in here] for kind in ("stacks", "calls", "else")}
        assert found["stacks"] == [(47, f"/proc/{os.getpid()}/fd/{files[0]}")]
        assert found["calls"] == [(9, f"/proc/{os.getpid()}/fd/{files[1]}")]
        assert found["else"] == []
    finally:
        for fd in files:
            os.close(fd)


ANSWER = """\
Thread 0x1 (most recent call first):
  File "/app/other.py", line 1 in other

Current thread 0x2 (most recent call first):
  File "/app/a b.py", line 7 in Class.step
  File "/app/train.py", line 9 in <module>
Thread 0x3 (most recent call first):
  File "/app/other.py", line 1 in other
"""
STACK = 'Stack (most recent call first):\n  File "a.py", line 3 in f\n'


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        (ANSWER, [["step", "/app/a b.py", 7], ["<module>", "/app/train.py", 9]]),
        (STACK, [["f", "a.py", 3]]),
        (ANSWER.replace("Current thread", "Thread"), [["other", "/app/other.py", 1]]),
        ("nonsense", []),
    ],
)
def test_the_answer_to_a_signal(text: str, frames: list[Any]) -> None:
    """The current thread is the main one."""
    handled = signal.SIGUSR1
    before = signal.signal(handled, lambda *_: None)
    try:
        process = of_this_process(
            _offers=lambda kind: [(int(handled), "p")], _answer=lambda path, ask: text, no_spy=NO_SPY
        )
        assert (process._ask(), process.by, process.why) == (frames, "faulthandler", "")
    finally:
        signal.signal(handled, before)


@pytest.mark.parametrize(
    ("number", "handled", "offers", "why"),
    [
        (10, False, True, "it no longer handles signal 10"),
        (10, True, True, "it does not answer signal 10"),
        (10, True, False, f"{NO_SPY}, and the program does not import torchx.distributed"),
        (12, True, True, "it does not answer signal 12"),
        (12, False, True, "it no longer handles signal 12"),
    ],
)
def test_no_answer_to_a_signal(number: int, handled: bool, offers: bool, why: str) -> None:
    """A process that does not handle it any more does not get it: it would die."""
    asked: list[str] = []
    before = signal.signal(number, (lambda *_: None) if handled else signal.SIG_DFL)
    try:
        process = of_this_process(
            _offers=lambda kind: [(number, "p")] if offers else [],
            _answer=lambda path, ask: asked.append(path) or "",
            no_spy=NO_SPY,
        )
        assert (process._ask(), process.why, process.by) == ([], why, "")
        assert asked == ["p"] * ("does not answer" in why)
    finally:
        signal.signal(number, before)


def test_a_process_that_may_not_be_read() -> None:
    """The error of the system is the reason."""

    def refuse(kind: str) -> list[Any]:
        raise PermissionError(13, "Permission denied")

    process = of_this_process(_offers=refuse)
    assert (process._ask(), process.why) == ([], "it cannot be read: Permission denied")


@pytest.mark.parametrize(
    ("state", "answer", "calls"),
    [
        ("S", '{"gloo:0": [1]}', {"gloo:0": [1]}),
        ("S", "", {}),
        ("S", "{", {}),
        ("T", '{"gloo:0": [1]}', {}),
        ("Z", '{"gloo:0": [1]}', {}),
        ("", '{"gloo:0": [1]}', {}),
    ],
)
def test_the_calls_of_a_process(state: str, answer: str, calls: dict[str, Any]) -> None:
    """Asked through the pipe that it offers; without waiting if nobody reads that."""
    reader, writer = os.pipe()
    try:

        def ask(path: str, ask: Callable[[], object]) -> str:
            ask()
            return answer

        process = of_this_process(
            state=lambda: state, _offers=lambda kind: [(writer, "p")] * (kind == "calls"), _answer=ask
        )
        process.tell()
        process.tell()
        assert process.calls == [calls, calls]
        os.set_blocking(reader, False)
        if state == "S":
            assert os.read(reader, 9) == b"??"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_pipe_is_opened_without_waiting() -> None:
    """A FIFO that nobody reads is an error."""
    fd = probe._at_once("/dev/null", os.O_WRONLY)
    try:
        assert not os.get_blocking(fd) and os.write(fd, b"x") == 1
    finally:
        os.close(fd)


# -- who is a rank -----------------------------------------------------------------------------------------


class Listed:
    """A process in a table of processes."""

    def __init__(
        self, pid: int, parent: int, rank: str = "", argv: str = "python train.py", exe: str = "python", **more: Any
    ) -> None:
        self.pid, self.parent, self.began = pid, parent, more.pop("began", pid)
        self.env = {"TORCHX_JOB_ID": "j", **({"RANK": rank} if rank else {}), **more}
        self.argv, self.exe = argv.split(), exe

    is_agent, is_python = Process.is_agent, Process.is_python


SHELL = {"argv": "sh -c x", "exe": "dash"}


@pytest.mark.parametrize(
    ("table", "ranks"),
    [
        ([Listed(10, 1)], [10]),
        ([Listed(10, 1), Listed(11, 10)], [10]),
        ([Listed(10, 1, **SHELL), Listed(11, 10), Listed(12, 10)], [11]),
        ([Listed(10, 1, **SHELL), Listed(11, 10, **SHELL)], [10]),
        ([Listed(10, 1, **SHELL), Listed(11, 10, **SHELL), Listed(12, 11), Listed(13, 10, began=99)], [13]),
        ([Listed(10, 1, **SHELL), Listed(11, 10, began=99), Listed(12, 10)], [12]),
        # ranks
        ([Listed(10, 1, "0"), Listed(11, 1, "1")], [10, 11]),
        ([Listed(10, 1, "0"), Listed(11, 10, "0"), Listed(12, 11, "0")], [10]),
        ([Listed(10, 1, "0"), Listed(11, 10, "1")], [10, 11]),
        ([Listed(10, 1, argv="torchrun t.py"), Listed(11, 10, "0"), Listed(12, 10, "1")], [11, 12]),
        ([Listed(10, 1, "9", argv="torchrun t.py"), Listed(11, 10, "9"), Listed(12, 10, "1")], [11, 12]),
        ([Listed(10, 1, "0", **SHELL), Listed(11, 10, "0")], [11]),
        ([Listed(10, 1, "0", began=99), Listed(11, 1, "0")], [11]),
        ([Listed(10, 1, "x"), Listed(11, 10, "x")], [10]),
        ([Listed(10, 1), Listed(11, 10, "0")], [11]),
        # those of others, the probe and its parents
        ([Listed(10, 1, "0"), Listed(11, 1, "1", TORCHX_JOB_ID="else")], [10]),
        ([Listed(10, 1, "0"), Listed(12, 1, "3"), Listed(13, 12, "4"), Listed(99, 13, "5")], [10]),
        ([], []),
    ],
)
def test_who_is_a_rank(table: list[Any], ranks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first Python process below what was started with its number; without one, the main process of the replica."""
    by_pid = {str(process.pid): process for process in table}

    def process(pid: int) -> Any:
        if str(pid) not in by_pid:
            raise FileNotFoundError
        return by_pid[str(pid)]

    for name in probe.MARKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHX_JOB_ID", "j")
    monkeypatch.setattr(probe, "Process", process)
    monkeypatch.setattr(os, "getpid", lambda: 99)
    monkeypatch.setattr(os, "listdir", lambda path: ["self", "7", *by_pid])
    found, tops = probe.find()
    monkeypatch.undo()
    assert [top.pid for top in tops] == ranks
    kept = {p.pid for p in table if p.env["TORCHX_JOB_ID"] == "j"} - ({12, 13, 99} if "99" in by_pid else set())
    assert found.keys() == kept


# -- what is printed ---------------------------------------------------------------------------------------


class Seen:
    """A process whose looks, states and calls are given."""

    def __init__(
        self, pid: int = 7, *looks: Any, states: str = "S", ticks: tuple[int, int] = (0, 0), **more: Any
    ) -> None:
        self.pid, self.parent, self.began = pid, more.pop("parent", 1), pid
        self.env = {"RANK": "3", "WORLD_SIZE": "8", **more.pop("env", {})}
        self.argv = more.pop("argv", ["python"])
        self.exe = more.pop("exe", "python")
        self.looks: list[Any] = []
        self.states = ""
        self.calls: list[Any] = []
        self.looked = 0
        self._looks, self._states, self._ticks = list(looks), states, list(ticks)
        self._calls = list(more.pop("calls", ({}, {})))

    is_agent, is_python = Process.is_agent, Process.is_python

    def look(self) -> None:
        self.looked += 1
        self.states += self._states
        if self._looks:
            self.looks.append(self._looks[min(len(self.looks), len(self._looks) - 1)])

    def tell(self) -> None:
        self.calls.append(self._calls[len(self.calls)])

    def ticks(self) -> int:
        return self._ticks.pop(0)

    def report(self) -> dict[str, Any]:
        return {"pid": self.pid, "looks": self.looks}


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, Any]]]:
    """The rows that the probe prints of these ranks; its whole look takes four seconds."""

    def printed(*ranks: Seen, others: tuple[Seen, ...] = ()) -> list[dict[str, Any]]:
        times = iter([100.0, 104.0])
        monkeypatch.setattr(time, "monotonic", lambda: next(times))
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        monkeypatch.setattr(probe, "Process", Seen)
        monkeypatch.setattr(probe, "find", lambda: ({p.pid: p for p in (*ranks, *others)}, list(ranks)))
        probe.main()
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return printed


Printed = Callable[..., list[dict[str, Any]]]
A, B = [["f", "a.py", 1]], [["g", "a.py", 2]]


def test_a_row(printed: Printed) -> None:
    """One for each rank, with its host and its numbers; none without ranks."""
    (row, other) = printed(Seen(7, A), Seen(8, B, env={"RANK": "", "WORLD_SIZE": "x"}, argv=["torchrun"]))
    assert row == {
        **{"host": os.uname().nodename, "busy": 0.0, "is_agent": False, "calls": {}, "rank": 3, "world_size": 8},
        **{"pid": 7, "looks": [A] * 8, "workers": []},
    }
    assert (other["pid"], other["rank"], other["world_size"], other["is_agent"]) == (8, None, None, True)
    assert printed() == []


@pytest.mark.parametrize(("looks", "count"), [([A], 8), ([A] * 7 + [B], 24), ([A, B], 24), ([], 8)])
def test_who_moves_is_looked_at_longer(printed: Printed, looks: list[Any], count: int) -> None:
    """To see where it mostly is."""
    rank, other = Seen(7, *looks), Seen(8, A)
    printed(rank, other)
    assert (rank.looked, other.looked) == (count, count)


@pytest.mark.parametrize(
    ("ticks", "states", "busy"),
    [((100, 100), "S", 0.0), ((100, 300), "S", 0.5), ((100, 301), "S", 0.5), ((0, 2), "S", 0.01), ((0, 0), "R", 1.0), ((0, 0), "D", 1.0), ((0, 0), "RS", 0.5), ((0, 300), "RS", 0.75), ((0, 0), "", 0.0)],
)  # fmt: skip
def test_how_busy_a_rank_is(
    printed: Printed, ticks: tuple[int, int], states: str, busy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time that it used, or wanted."""
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    (row,) = printed(Seen(7, A, ticks=ticks, states=states))
    assert row["busy"] == busy


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"g": [1]}, {"g": [1]}, {"g": [1]}),
        ({"g": [1]}, {"g": [2]}, {}),
        ({"g": [1], "h": [1]}, {"g": [1], "h": [2]}, {"g": [1]}),
        ({}, {"g": [1]}, {"g": [1]}),
        ({"g": [1]}, {}, {"g": [1]}),
        ({}, {}, {}),
    ],
)
def test_calls_that_did_not_change(printed: Printed, before: Any, after: Any, said: Any) -> None:
    """A rank that goes on waits in none; a response that is missing says nothing."""
    (row,) = printed(Seen(7, A, calls=(before, after)))
    assert row["calls"] == said


LOADS = [["next", "/x/torch/utils/data/dataloader.py", 1], ["f", "a.py", 1]]


@pytest.mark.parametrize(
    ("looks", "workers"),
    [([LOADS], [20, 21, 22, 23]), ([A, LOADS], [20, 21, 22, 23]), ([LOADS, A], []), ([A], []), ([], [])],
)
def test_the_workers_of_a_rank(printed: Printed, looks: list[Any], workers: list[int]) -> None:
    """If it waits for its data in the end: its first four children that run Python, each looked at once."""
    children = [Seen(pid, A, parent=7) for pid in range(20, 25)]
    shell, stranger = Seen(19, A, parent=7, exe="sh"), Seen(30, A, parent=8)
    (row,) = printed(Seen(7, *looks), others=(*children, shell, stranger))
    assert [worker["pid"] for worker in row["workers"]] == workers
    assert [child.looked for child in children] == [int(child.pid in workers) for child in children]


def test_the_probe_takes_a_few_seconds() -> None:
    """It looks eight times, irregularly; it does not wait for long where nobody answers."""
    assert (len(probe._PAUSES_S), sum(probe._PAUSES_S) < 2, max(probe._PAUSES_S) < 0.5) == (8, True, True)
    assert len(set(probe._PAUSES_S)) == 8
    assert (probe._ANSWER_S, probe._SPY_S) == (2.0, 20.0)


def test_all_are_looked_at_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each pause, and the next one follows when all have been looked at."""
    seen: list[str] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: seen.append(f"pause {seconds}"))

    class Slow(Seen):
        def look(self) -> None:
            seen.append("look")

    both: list[Any] = [Slow(1), Slow(2)]
    probe.look_at(both, (0.1, 0.2))
    assert seen == ["pause 0.1", "look", "look", "pause 0.2", "look", "look"]
