"""`torchx log`: which replicas, which lines, in which form."""

from __future__ import annotations

import io
import queue
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchx.cli.argparse_util import Parser
from torchx.cli.cmd_log import CmdLog, find_role_replicas, get_logs, print_log_lines, validate
from torchx.cli.log_targets import parse_target
from torchx.errors import HandleError
from torchx.runner import get_runner
from torchx.specs import AppDef, AppState, MalformedAppHandleException, Role

from .conftest import Call

HANDLE = "paper://torchx/job"


@pytest.fixture
def job(paper: Any) -> Any:
    """An ended job of three trainers and a reader, each with two lines."""
    paper.JOBS["job"] = AppDef("job", [Role("trainer", "img", num_replicas=3), Role("reader", "img")])
    paper.STATES["job"] = AppState.SUCCEEDED
    for role, k in find_role_replicas(paper.JOBS["job"]):
        paper.OUTPUT["job", role, k] = [f"first of {role} {k}\n", f"second of {role} {k}\n"]
    return paper


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("", ["trainer/0", "trainer/1", "trainer/2", "reader/0"]),
        ("/", ["trainer/0", "trainer/1", "trainer/2", "reader/0"]),
        ("/trainer", ["trainer/0", "trainer/1", "trainer/2"]),
        ("/trainer/0,2", ["trainer/0", "trainer/2"]),
        ("/trainer/1-2", ["trainer/1", "trainer/2"]),
        ("/trainer/2,0-1,1", ["trainer/0", "trainer/1", "trainer/2"]),
        ("/reader/0", ["reader/0"]),
    ],
)
@pytest.mark.parametrize("follow", [False, True], ids=["what there is", "follow"])
def test_selection(torchx: Call, job: Any, target: str, shown: list[str], follow: bool) -> None:
    """Selects all roles, a role, or replicas by number and range, each once. Lines are prefixed with the replica."""
    outcome = torchx("log", HANDLE + target, *(["-f"] if follow else []))
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    names = [line.split()[0] for line in lines]
    assert sorted(set(names)) == sorted(shown)
    for name in shown:
        role, _, k = name.partition("/")
        mine = [line for line in lines if line.startswith(name + " ")]
        assert mine == [f"{name} first of {role} {k}", f"{name} second of {role} {k}"]
    if not follow:
        assert list(dict.fromkeys(names)) == shown


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (["--tail", "1"], ["second of reader 0"]),
        (["--tail", "1", "-f"], ["second of reader 0"]),
        (["--tail", "0"], []),
        (["--tail=9"], ["first of reader 0", "second of reader 0"]),
        (["--tail", "9" * 19], ["first of reader 0", "second of reader 0"]),
        (["--tail", "9" * 19, "-f"], ["first of reader 0", "second of reader 0"]),
        (["--regex", "^sec"], ["second of reader 0"]),
        (["--regex", "nothing"], []),
        ([], ["first of reader 0", "second of reader 0"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("-") else None,
)
def test_which_lines(torchx: Call, job: Any, options: list[str], lines: list[str]) -> None:
    """`--tail N` prints the last lines, `--regex` the matching ones; `--no-prefix` omits the prefix."""
    assert torchx("log", "--no-prefix", f"{HANDLE}/reader", *options).out.splitlines() == lines


@pytest.mark.parametrize(
    "argv",
    [["--tail", HANDLE], ["-t", HANDLE], [HANDLE, "--tail"], ["-f", HANDLE], ["--tail", HANDLE, "--streams", "stdout"]],
    ids=" ".join,
)
def test_tail_without_a_number_follows(torchx: Call, job: Any, argv: list[str]) -> None:
    """`--tail` alone means `--follow`, and does not take the job for its number."""
    assert len(torchx("log", *argv).out.splitlines()) == 8


def test_options_reach_the_scheduler(torchx: Call, job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times, stream and follow are passed to the scheduler."""
    seen: dict[str, Any] = {}

    def log_iter(self: object, app_id: str, role_name: str, k: int = 0, *args: Any, **kwargs: Any) -> list[str]:
        names = ("regex", "since", "until", "should_tail")
        seen.update(dict(zip(names, args, strict=False)), **kwargs)
        return []

    monkeypatch.setattr(job.Paper, "log_iter", log_iter)
    since, until = "2026-11-21T08:00:00Z", "2026-11-21T09:00:00+00:00"
    torchx("log", "-f", "--since", since, "--until", until, "--streams", "stderr", f"{HANDLE}/reader")
    assert seen["since"].timestamp() == 1795248000.0
    assert seen["until"].timestamp() == 1795251600.0
    assert seen["should_tail"] is True
    assert seen["streams"].value == "stderr"


def test_a_job_without_output_is_quiet(torchx: Call, job: Any) -> None:
    """No output is not an error."""
    job.OUTPUT.clear()
    assert torchx("log", HANDLE) == (0, "", "")


def test_get_logs(job: Any) -> None:
    """The public function copies the same lines to a file."""
    file = io.StringIO()
    with get_runner() as runner:
        get_logs(file, f"{HANDLE}/trainer/1", regex=None, should_tail=True, runner=runner)
    assert file.getvalue() == "trainer/1 first of trainer 1\ntrainer/1 second of trainer 1\n"
    file = io.StringIO()
    get_logs(file, f"{HANDLE}/reader", "second")
    assert file.getvalue() == "reader/0 second of reader 0\n"


def test_print_log_lines(job: Any) -> None:
    """Copies the lines of one replica to a file; an error goes into the queue."""
    file, errors = io.StringIO(), queue.Queue[Exception]()
    with get_runner() as runner:
        print_log_lines(file, runner, HANDLE, "reader", 0, "", False, errors, None)
        assert file.getvalue() == "reader/0 first of reader 0\nreader/0 second of reader 0\n"
        assert errors.empty()
        print_log_lines(file, runner, HANDLE, "reader", 7, "", False, errors, None)
    assert "7" in str(errors.get_nowait())


@pytest.mark.parametrize(
    "identifier", [HANDLE, HANDLE + "/a", HANDLE + "/a/0,1", "x:///app", "@last", "@last/r/0", "app"]
)
def test_validate_accepts(identifier: str) -> None:
    """Handles, short references, roles, replicas and an empty session are valid."""
    validate(identifier)


@pytest.mark.parametrize(
    "identifier", ["", "x://", "x://s", "x://s/", "://s/a", "x:/s/a", "x://s/a/r/-1", "x://s/a/r/1,,2"]
)
def test_validate_refuses(identifier: str) -> None:
    """Malformed identifiers raise the one error that programs catch."""
    with pytest.raises(HandleError):
        validate(identifier)


def test_a_job_as_its_own_system_calls_it() -> None:
    """A native job id is rejected as by all verbs, with a hint that names the handle."""
    with pytest.raises(MalformedAppHandleException) as e:
        parse_target("slurm://4711")
    assert "`slurm://foreign/4711`" in e.value.hint


def test_no_range_takes_all_memory() -> None:
    """A huge range is rejected without being expanded."""
    with pytest.raises(HandleError, match="not a range"):
        parse_target("x://s/a/r/0-999999999999")


def test_colors_are_stable(job: Any, monkeypatch: pytest.MonkeyPatch, torchx: Call) -> None:
    """A replica has the same colour, whichever others are shown."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    whole = torchx("log", HANDLE).out.splitlines()
    alone = torchx("log", f"{HANDLE}/trainer/2").out.splitlines()
    assert alone == [line for line in whole if "trainer/2" in line]
    assert len({line.partition("\033[0m")[0].partition("t")[0] for line in whole}) > 1


def test_real_output_to_the_byte(torchx: Call, project: Path) -> None:
    """The output of a local job is complete, including an unterminated last line."""
    script = "import sys; sys.stdout.write(''.join(f'line {i}\\n' for i in range(20000)) + 'end')"
    assert torchx("run", "--wait", "utils.python", "-c", script).code == 0
    expected = "".join(f"line {i}\n" for i in range(20000)) + "end"
    assert torchx("log", "--no-prefix", "--streams", "stdout", "@last").out == expected


def test_follow_ends_with_the_job(torchx: Call, project: Path) -> None:
    """`log -f` of a running job prints everything and returns when the job has ended."""
    torchx("run", "utils.sh", "--num_replicas", "2", "--", "for i in 1 2 3; do echo line $i; sleep 0.1; done")
    lines = torchx("log", "-f", "@last").out.splitlines()
    assert sorted(lines) == [f"sh/{k} line {i}" for k in (0, 1) for i in (1, 2, 3)]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--tail", "2"], ["line 4", "line 5"]),
        (["--tail", "2", "-f"], ["line 4", "line 5"]),
        (["--tail", "1", "--regex", "[23]"], ["line 3"]),
        (["--tail", "1", "--regex", "[23]", "-f"], ["line 3"]),
        (["--tail", "0", "-f"], []),
        (["--regex", "[23]", "-f", "--streams", "stdout"], ["line 2", "line 3"]),
        (["--tail", "9", "--regex", "never"], []),
    ],
    ids=" ".join,
)
def test_which_lines_of_a_real_log(
    torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], shown: list[str]
) -> None:
    """Options can be combined, and start no threads."""
    import threading

    torchx("run", "--wait", "utils.sh", "for i in 1 2 3 4 5; do echo line $i; done")
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread is started"))
    assert torchx("log", "--no-prefix", *options, "@last").out.splitlines() == shown


def test_head_ends_us_quietly(torchx: Call, project: Path) -> None:
    """`torchx log | head -1` prints one line and no error."""
    torchx("run", "--wait", "utils.python", "-c", "print('x\\n' * 300000)")
    command = f"{sys.executable} -m torchx log @last | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout.partition(" ")[2], done.stderr) == ("x\n", "")


def test_an_empty_expression_is_none() -> None:
    """It selects all lines; they are shown live as without `--regex`."""
    parser = Parser()
    CmdLog().add_arguments(parser)
    assert parser.parse_args(["@last", "--regex", ""]).regex is None
