"""Reading failures at the limits: as much as is kept and no more, the first line and the last, none at all."""

from __future__ import annotations

from typing import Any

import pytest

from torchx.schedulers.kit.failures.classes import classify, is_aftermath
from torchx.schedulers.kit.failures.reader import Evidence, read_failure, signal_name
from torchx.schedulers.kit.failures.torchrun import Report, Worker, read_report, streams
from torchx.schedulers.kit.failures.tracebacks import HEADER, Link, bounded, find_traces, read_exception
from torchx.specs import AppState
from torchx.specs.failures import Failure

F, R, S, C, P = AppState.FAILED, AppState.RUNNING, AppState.SUCCEEDED, AppState.CANCELLED, AppState.PENDING


def _read(stderr: str = "", *, code: int | None = 1, **evidence: Any) -> Failure:
    return read_failure(Evidence(stderr=stderr, **evidence), exit_code=code, ended=5.0)


def _trace(*rest: str, file: str = "a.py", code: str = "x()") -> list[str]:
    return [HEADER, f'  File "{file}", line 1, in f', f"    {code}", *rest]


# -- codes and signals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "exit_code", "signal"),
    [
        (1, 1, ""),
        (128, 128, ""),
        (129, None, "SIGHUP"),
        (137, None, "SIGKILL"),
        (255, 255, ""),
        (-9, None, "SIGKILL"),
        (0, 0, ""),
        (None, None, ""),
    ],
)
def test_exit_codes_of_signals(code: int | None, exit_code: int | None, signal: str) -> None:
    """Above 128 and below 0, where there is such a signal; 128 itself is an exit code."""
    found = _read(code=code)
    assert (found.exit_code, found.signal, found.timestamp) == (exit_code, signal, 5.0)


def test_numbers_of_signals() -> None:
    """Those without a name have their number; there are 64."""
    assert [signal_name(n) for n in (0, 1, 31, 64, 65, 128)] == ["", "SIGHUP", "SIGSYS", "SIGRTMAX", "", ""]
    assert signal_name(128 + 63) == "" and signal_name(63) == "signal 63"


# -- how much is kept ------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "kept"), [(10, 10), (11, 10)])
def test_texts_are_bounded(length: int, kept: int) -> None:
    """Exactly so many characters stay; of one more the end is marked."""
    text = bounded("x" * length, 10)
    assert len(text) == kept and text.endswith(" ...") is (length > 10)


@pytest.mark.parametrize(("lines", "context"), [(41, 40), (42, 40), (5, 4)])
def test_the_last_words_have_a_context(lines: int, context: int) -> None:
    """Forty lines before the last; each as far as it is worth reading."""
    found = _read("\n".join(f"line {i}" for i in range(lines)))
    assert found.message == f"line {lines - 1}"
    assert found.traceback.splitlines() == [f"line {i}" for i in range(lines - 1)][-context:]
    long = _read("x" * 501 + "\n" + "y" * 2001)
    assert (len(long.traceback), len(long.message)) == (500, 2000)
    assert len(_read("y" * 2000).message) == 2000 and not _read("y" * 2000).message.endswith("...")


# -- whose words count -----------------------------------------------------------------------------


def test_stdout_counts_where_stderr_is_silent() -> None:
    """And only there; noise is silence."""
    assert _read("", stdout="out\n").message == "out"
    assert _read("make: *** [x] Error 1\n\n", stdout="out\n").message == "out"
    assert _read("err\n", stdout="out\n").message == "err"
    assert _read("", stdout="").message == ""


@pytest.mark.parametrize(
    ("code", "said", "message"), [(1, "bye", "bye"), (None, "bye", ""), (None, "cannot open x", "cannot open x")]
)
def test_the_last_line_of_a_killed_program(code: int | None, said: str, message: str) -> None:
    """Only where it speaks of an error; of one that ended by itself always."""
    assert _read(f"start\n{said}\n", code=code).message == message


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (["terminate called after throwing an instance of 'std::x'", "  what():  boom", "z"], "std::x: boom"),
        (["terminate called after throwing an instance of 'std::x'", "a", "b", "  what():  boom"], "std::x: boom"),
        (
            ["terminate called after throwing an instance of 'std::x'", "a", "b", "c", "  what():  boom"],
            "terminate called after throwing an instance of 'std::x'",
        ),
        (["thread 'main' panicked at a.rs:1:2:", "boom"], "thread 'main' panicked at a.rs:1:2: boom"),
        (["thread 'main' panicked at a.rs:1:2:"], "thread 'main' panicked at a.rs:1:2:"),
        (["first", "panic: boom", "last"], "panic: boom"),
    ],
)
def test_words_of_other_languages(said: list[str], message: str) -> None:
    """The line with which such a program ends, and what belongs to it."""
    assert _read("\n".join(said), code=134).message == message


def test_a_signal_long_after_an_exception() -> None:
    """A traceback counts when up to forty lines follow it; after more it had been dealt with."""
    lines = [*_trace("ValueError: x")]
    assert _read("\n".join([*lines, *["[INFO] y"] * 60]), code=-11).message == "ValueError: x"  # noise
    assert _read("\n".join([*lines, "12:00:00 z", *["y"] * 39]), code=-11).message == "ValueError: x"
    assert _read("\n".join([*lines, "12:00:00 z", *["y"] * 40]), code=-11).message == ""
    assert _read("\n".join([*lines, "12:00:00 z", *["y"] * 40]), code=1).message == "ValueError: x"
    assert _read("\n".join([*lines, "Fatal Python error: Segmentation fault"]), code=-11).message.startswith("Fatal")


def test_who_only_reports_a_child() -> None:
    """The exception of the child, written before, is the cause; alone, the report is."""
    wrapper = _trace("subprocess.CalledProcessError: Command 'x' failed")
    assert _read("\n".join([*_trace("ValueError: x"), *wrapper])).message == "ValueError: x"
    assert _read("\n".join(wrapper)).message.startswith("subprocess.CalledProcessError")
    ignored = ["Exception ignored in: <x>", *_trace("KeyError: 1")]
    assert _read("\n".join([*_trace("ValueError: x"), *ignored])).message == "ValueError: x"
    assert _read("\n".join(ignored)).message == "KeyError: 1"


def test_the_error_file_and_stderr() -> None:
    """The file counts unless it says less, or only that a peer was lost; its time goes before that of the end."""
    lost = '{"message": {"message": "RuntimeError: Connection closed by peer [n1]:4", "extraInfo": {"timestamp": "3"}}}'
    plain = '{"message": {"message": "KeyError: 1", "extraInfo": {}}}'
    assert _read("boom", error_file=plain).message == "KeyError: 1"
    assert _read("boom", error_file=plain).timestamp == 5.0
    assert _read("\n".join(_trace("ValueError: x")), error_file=plain).message == "ValueError: x"
    assert _read("boom", error_file=lost).message == "boom"
    assert _read("", error_file=lost).timestamp == 3


# -- tracebacks ------------------------------------------------------------------------------------


def test_where_a_traceback_is() -> None:
    """From its header to the line behind its last; several, one after the other; none."""
    lines = ["a", *_trace("ValueError: x"), "12:00:00 b", *_trace("KeyError: y"), "12:00:00 c"]
    found = find_traces(lines)
    assert [(t.start, t.end, t.message, t.ignored) for t in found] == [
        (1, 5, "ValueError: x", False),
        (6, 10, "KeyError: y", False),
    ]
    assert found[0].links == (Link("ValueError", "x", "a.py", "x()"),)
    assert find_traces([]) == find_traces(["a"]) == []
    (cut,) = find_traces(_trace())
    assert (cut.end, cut.links) == (3, (Link("", "", "a.py", "x()"),))


def test_the_innermost_frame() -> None:
    """Its file and its own source line, not that of the one above, nor the carets below it."""
    lines = [
        HEADER,
        '  File "a.py", line 1, in f',
        "    outer()",
        "    ~~~~~^^",
        '  File "b.py", line 2, in g',
        "    raise inner()",
        "    ^^^^",
        "ValueError: x",
    ]
    assert find_traces(lines)[0].links == (Link("ValueError", "x", "b.py", "raise inner()"),)
    without = [HEADER, '  File "a.py", line 1, in f', "    outer()", '  File "b.py", line 2, in g', "ValueError: x"]
    assert find_traces(without)[0].links[0].code == ""


@pytest.mark.parametrize(("more", "whole"), [(28, True), (29, True), (30, False)])
def test_how_long_a_message_may_be(more: int, whole: bool) -> None:
    """Thirty lines at the margin; beyond that what follows is another program's, and only the first line counts."""
    (trace,) = find_traces([*_trace("ValueError: x"), *[f"line {i}" for i in range(more)]])
    assert trace.links[0].text.count("\n") == (more if whole else 0)
    (indented,) = find_traces([*_trace("ValueError: x"), *[f"  line {i}" for i in range(50)]])
    assert indented.links[0].text.count("\n") == 50


def test_where_a_message_ends() -> None:
    """At a blank line unless it goes on indented, at what another program writes, at the end."""

    def text(*rest: str) -> str:
        return find_traces([*_trace("ValueError: x"), *rest])[0].links[0].text

    assert text("", "other") == "x"
    assert text("", "  more") == "x\n\n  more"
    assert text("") == "x"
    assert text("2026-01-02 03:04:05 log") == "x"
    assert text("more", "srun: error: y") == "x\nmore"


def test_a_chain() -> None:
    """The original first; what it turned into after it, where that says something else."""
    mark = "During handling of the above exception, another exception occurred:"
    lines = [*_trace("ValueError: x"), "", mark, "", *_trace("KeyError: 'y'", file="b.py")]
    (trace,) = find_traces(lines)
    assert [str(link) for link in trace.links] == ["ValueError: x", "KeyError: 'y'"]
    assert trace.message == "ValueError: x\n-> KeyError: 'y'" and trace.end == len(lines)
    (same,) = find_traces([*_trace("ValueError: x"), "", mark, "", *_trace("RuntimeError: x")])
    assert same.message == "ValueError: x"
    (broken,) = find_traces([*_trace("ValueError: x"), "", mark, "", "no header"])
    assert broken.message == "ValueError: x" and broken.end == 4
    (bare,) = find_traces([*_trace("_queue.Empty"), "", mark, "", *_trace("TimeoutError: y")])
    assert bare.message == "TimeoutError: y"
    (assertion,) = find_traces([*_trace("AssertionError"), "", mark, "", *_trace("TimeoutError: y")])
    assert assertion.message == "AssertionError\n-> TimeoutError: y"


def test_a_syntax_error_of_the_script_itself() -> None:
    """It has no header; six lines are enough to see it."""
    lines = ['  File "a.py", line 3', "    x = (", "        ^", "SyntaxError: '(' was never closed"]
    (trace,) = find_traces(["before", *lines, "after"])
    assert (trace.start, trace.end, trace.message) == (1, 5, "SyntaxError: '(' was never closed")
    assert trace.links[0].file == "a.py"
    assert find_traces(lines[:-1]) == [] and find_traces([lines[0], "ValueError: x"]) == []
    padded = [lines[0], *["    x"] * 4, lines[-1]]
    assert len(find_traces(padded)) == 1
    assert find_traces([lines[0], *["    x"] * 5, lines[-1]]) == []


def test_exceptions_by_their_names() -> None:
    """What ends as exceptions do; a word and a colon is none."""
    assert read_exception("a.b.MyError: x\ny") == Link("a.b.MyError", "x\ny")
    assert read_exception("KeyboardInterrupt") == Link("KeyboardInterrupt")
    assert [read_exception(text) for text in ("", "error: x", "Warn: x", "ValueError x")] == [None] * 4


# -- torchrun --------------------------------------------------------------------------------------

BOX = [
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "============================================================",
    "train.py FAILED",
    "------------------------------------------------------------",
    "Failures:",
    "[1]:",
    "  time      : 2026-01-01_00:00:01",
    "  host      : n2",
    "  rank      : 3 (local_rank: 1)",
    "  exitcode  : -9 (pid: 12)",
    "  error_file: <N/A>",
    "  traceback : Signal 9 (SIGKILL) received by PID 12",
    "------------------------------------------------------------",
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2026-01-01_00:00:00",
    "  host      : n1",
    "  rank      : 2 (local_rank: 0)",
    "  exitcode  : 1 (pid: 11)",
    "  error_file: /tmp/error.json",
    "  traceback : Traceback (most recent call last):",
    '    File "a.py", line 1, in f',
    "  ValueError: x",
    "============================================================",
]


def test_the_box() -> None:
    """The root cause first; what was recorded only where there is a file; the last box counts."""
    report = read_report(["before", *BOX, "after"])
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: x'
    assert report == Report(1, (Worker(2, 0, 1, "n1", trace), Worker(3, 1, -9, "n2", "")))
    twice = read_report([*BOX, *BOX[:5], *BOX[13:]])
    assert twice is not None and (twice.start, len(twice.workers)) == (len(BOX), 1)
    assert read_report([]) is None and read_report(["a"]) is None
    assert read_report(BOX[:5]) is None
    assert read_report([line for line in BOX if "rank" not in line]) is None
    assert read_report([line for line in BOX if "exitcode" not in line]) is None
    assert read_report(BOX[:-1]) == read_report(BOX)  # cut off behind the last worker


def test_whose_line_it_is() -> None:
    """By the local rank that torchrun puts before it, by the rank that torch does; without a report only by the latter."""
    report = Report(0, (Worker(6, 2, 1, "", ""),))
    lines = ["[trainer2]:a", "[2]: b", "[3]:c", "[rank7]: d", "[default2]: [rank6]: e", "f", "[x]: g"]
    assert streams(lines, report) == {6: ["a", " b", "e"], 3: ["c"], 7: ["d"], None: ["f", "[x]: g"]}
    assert streams(lines, None) == {
        None: ["[trainer2]:a", "[2]: b", "[3]:c", "[default2]: [rank6]: e", "f", "[x]: g"],
        7: ["d"],
    }


# -- classes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "said", "kind"),
    [
        (Failure("", None), "", "lost"),
        (Failure("", None), "nobody knows", "unknown"),
        (Failure("", 1), "", "error"),
        (Failure("bye", None), "", "error"),
        (Failure("", None, "SIGTERM"), "", "cancelled"),
        (Failure("", None, "SIGKILL"), "", "unknown"),
        (Failure("", None, "SIGSEGV"), "", "error"),
        (Failure("ValueError: x", 1), "slurmstepd: error: *** JOB 1 CANCELLED ***", "error"),
        (Failure("", None, "SIGKILL"), "slurmstepd: error: *** JOB 1 CANCELLED ***", "cancelled"),
        (Failure("", 1, kind="quota", evidence="e"), "", "quota"),
        (Failure("", None), "AlgorithmError: OOMKilled", "error"),
    ],
)
def test_classes(failure: Failure, said: str, kind: str) -> None:
    """What the system said goes before what the program left; a class that is known already stays."""
    assert classify(failure, said)[0] == kind


def _raised(message: str, *, file: str, code: str) -> Failure:
    return Failure(message, 1, traceback="\n".join(_trace(message, file=file, code=code)))


@pytest.mark.parametrize(
    ("file", "code", "kind"),
    [
        ("train.py", "dist.all_reduce(t)", "network"),
        ("train.py", "raise RuntimeError(x)", "error"),
        ("train.py", "assert ok", "error"),
        ("/v/site-packages/torch/distributed/c10d.py", "raise RuntimeError(x)", "network"),
        ("/v/site-packages/other/x.py", "raise RuntimeError(x)", "error"),
        ("/v/dist-packages/torch/x.py", "raise RuntimeError(x)", "network"),
        ("/usr/lib/python3.11/x.py", "call()", "network"),
    ],
)
def test_who_has_raised_it(file: str, code: str, kind: str) -> None:
    """What a line of the user's raised is the user's, whatever it says; what torch raised is what it says."""
    assert classify(_raised("RuntimeError: Connection closed by peer [n1]:4", file=file, code=code))[0] == kind


@pytest.mark.parametrize(
    ("file", "kind"), [("/v/torch/distributed/x.py", "network"), ("/v/site-packages/x.py", "error")]
)
def test_what_says_nothing_of_whose_doing_it_is(file: str, kind: str) -> None:
    """A timeout is of the network in torch.distributed, and the program's own elsewhere."""
    assert classify(_raised("TimeoutError: x", file=file, code="wait()"))[0] == kind


def test_the_aftermath() -> None:
    """Who was told to end, who lost a peer; not whose address was taken, nor who failed before that."""
    assert is_aftermath(Failure("", None, "SIGTERM")) and not is_aftermath(Failure("", None, "SIGKILL"))
    assert is_aftermath(Failure("torch.distributed.DistNetworkError: x", 1))
    assert not is_aftermath(Failure("torch.distributed.DistNetworkError: EADDRINUSE", 1))
    mark = "During handling of the above exception, another exception occurred:"
    both = "\n".join([*_trace("ValueError: x"), "", mark, "", *_trace("RuntimeError: Connection closed by peer [a]:1")])
    assert not is_aftermath(Failure("x", 1, traceback=both))


def test_an_exception_group() -> None:
    """The exceptions in it first, each with its frame, then the group itself."""
    lines = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "a.py", line 1, in f',
        "  |     run()",
        "  | ExceptionGroup: several (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "b.py", line 2, in g',
        '    |     raise ValueError("x")',
        "    | ValueError: x",
        "    +---------------- 2 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "c.py", line 3, in h',
        "    |     look()",
        "    |     ~~~~^^",
        "    | KeyError: 'y'",
        "    +------------------------------------",
        "after",
    ]
    (trace,) = find_traces(lines)
    assert [(link.name, link.text, link.file, link.code) for link in trace.links] == [
        ("ValueError", "x", "b.py", 'raise ValueError("x")'),
        ("KeyError", "'y'", "c.py", "look()"),
        ("ExceptionGroup", "several (2 sub-exceptions)", "a.py", "run()"),
    ]
    assert trace.end == 16
    (empty,) = find_traces([lines[0]])
    assert empty.links == (Link(""),)


def test_a_header_at_the_end_of_another_line() -> None:
    """A progress bar without its line end: what stands before the header is a line of its own, and so is the label."""
    glued = ["50%|####  |Traceback (most recent call last):", *_trace("ValueError: x")[1:]]
    assert _read("\n".join(glued)).message == "ValueError: x"
    assert "50%" not in _read("\n".join(glued)).traceback
    labelled = [f"3: {line}" for line in _trace("ValueError: x")]
    assert _read("\n".join(labelled)).message == "ValueError: x"
    assert _read("\n".join(labelled)).traceback.splitlines()[0] == HEADER
    ranked = [
        "[rank3]: busyTraceback (most recent call last):",
        *(f"[rank3]: {line}" for line in _trace("ValueError: x")[1:]),
    ]
    assert (_read("\n".join(ranked)).message, _read("\n".join(ranked)).rank) == ("ValueError: x", 3)


@pytest.mark.parametrize(
    ("traces", "workers", "rank", "message"),
    [
        (["ValueError: x"], [1], 0, "ValueError: x"),
        (["ValueError: x"], [1, 1], 0, "ValueError: x"),
        (["ValueError: x", "KeyError: y"], [1, 1], None, "ValueError: x"),
        (["ValueError: x", "KeyError: y"], [1], 0, "ValueError: x"),
        (["ValueError: x", "KeyError: y"], [1, -15], 0, "ValueError: x"),
        (["RuntimeError: Connection closed by peer [n1]:4", "KeyError: y"], [1, 1], None, "KeyError: y"),
    ],
)
def test_a_traceback_of_nobody_knows_whom(
    traces: list[str], workers: list[int], rank: int | None, message: str
) -> None:
    """That of the worker that failed, where it can be no other's; else the rank is not known, and none is named."""
    said = [line for text in traces for line in [*_trace(text), "12:00:00 -"]]
    box = [HEADER, '  File "run.py", line 1, in main', *BOX[:2]]
    for number, code in enumerate(workers):
        head = ["Root Cause (first observed failure):"] if not number else ["Failures:"]
        fields = [
            f"  rank      : {number} (local_rank: {number})",
            f"  exitcode  : {code} (pid: 1)",
            "  error_file: <N/A>",
        ]
        box = [*box, *head, f"[{number}]:", *fields, "-" * 60]
    found = _read("\n".join([*said, *box]))
    assert (found.message, found.rank) == (message, rank)


@pytest.mark.parametrize(("length", "seen"), [(4000, True), (4001, False)])
def test_a_longest_line(length: int, seen: bool) -> None:
    """Four thousand characters of it are read: what stands at their end is seen, and nothing beyond."""
    glued = "y" * (length - len(HEADER)) + HEADER
    found = _read("\n".join([glued, *_trace("ValueError: x")[1:]]))
    assert found.traceback.startswith(HEADER) is seen


def test_hosts_of_workers() -> None:
    """That of the box, unless it only says that it was this machine."""
    for host, told in [("n7", "n7"), ("localhost", ""), ("localhost.localdomain", "")]:
        box = [line.replace(": n1", f": {host}") for line in BOX]
        assert _read("\n".join([HEADER, *box])).host == told


def test_a_chain_in_the_error_file() -> None:
    """Its original exception is the message; the text beside it only where there is no chain."""
    import json

    def filed(*lines: str) -> str:
        text = {"message": "what torchelastic wrote", "extraInfo": {"py_callstack": "\n".join(lines)}}
        return _read("", error_file=json.dumps({"message": text})).message

    mark = "The above exception was the direct cause of the following exception:"
    assert filed(*_trace("ValueError: x")) == "what torchelastic wrote"
    assert filed(*_trace("ValueError: x"), "", mark, "", *_trace("KeyError: y")) == "ValueError: x\n-> KeyError: y"


def test_what_follows_a_syntax_error() -> None:
    """It is read from there on, once."""
    lines = ['  File "a.py", line 3', "    x = (", "SyntaxError: x"]
    found = find_traces([*lines, *lines, *_trace("ValueError: y")])
    assert [(trace.start, trace.end) for trace in found] == [(0, 3), (3, 6), (6, 10)]


def test_a_long_message_of_an_exception() -> None:
    """Two thousand characters of it, with its name."""
    room = 2000 - len("ValueError: ")
    assert find_traces(_trace("ValueError: " + "x" * room))[0].message == "ValueError: " + "x" * room
    cut = find_traces(_trace("ValueError: " + "x" * (room + 1)))[0].message
    assert len(cut) == 2000 and cut.endswith(" ...")


def test_the_traceback_of_a_worker_process() -> None:
    """A process pool brings the original as text: that is the cause, where it can be read, else what was brought."""
    inner = ['"""', *_trace("ValueError: x", file="work.py"), '"""']
    remote = [*_trace("concurrent.futures.process._RemoteTraceback: "), *inner]
    assert find_traces(remote)[0].links[0] == Link("ValueError", "x", "work.py", "x()")
    (bare,) = find_traces(_trace("multiprocessing.pool._RemoteTraceback: gone"))
    assert [str(link) for link in bare.links] == ["multiprocessing.pool._RemoteTraceback: gone"]


def test_what_the_system_said_is_the_evidence() -> None:
    """Its first line, where nobody knows more; the time of the end is only known where it is given."""
    assert classify(Failure("", None), "\nnobody knows\nmore\n") == ("unknown", "nobody knows")
    assert read_failure(Evidence(), exit_code=1).timestamp == 0
