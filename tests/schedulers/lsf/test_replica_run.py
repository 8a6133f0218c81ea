"""The course of a replica of LSF: ``torchx_run`` in ``replica.sh``, with a program that runs here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.schedulers.lsf.steps import lines, steps

CLOCK = "torchx_clock() { :; }"
ENDS = 'torchx_failed() { echo "failed $code"; exit "$code"; }; torchx_over() { echo over; }'
RUN = f"{CLOCK}; torchx_rank0() {{ :; }}; {ENDS}"


def exit_of(folder: Path) -> list[str]:
    """The code and whether it was killed, as the file says; the time is checked."""
    ((code, killed, at),) = [line.split() for line in lines(folder / "r" / "0" / "exit")]
    assert int(at) > 1e9
    return [code, killed]


@pytest.mark.parametrize(("program", "code", "out"), [("echo hi", 0, "over"), ("exit 5", 5, "failed 5")])
def test_how_it_ends(program: str, code: int, out: str, tmp_path: Path) -> None:
    """Its end is on record before anything follows from it."""
    looks = 'torchx_over() { echo over; cat "$dir/exit" "$job/ended" >seen; }'
    found = steps(tmp_path, f"{RUN}; {looks}; torchx_program() {{ {program}; }}; torchx_run; echo on and on")
    assert (found.code, found.out, found.err) == (code, [out], "")
    assert exit_of(tmp_path) == [str(code), "0"]
    assert float((tmp_path / "ended").read_text()) > 1e9
    assert (tmp_path / "seen").exists() is (code == 0)
    assert not (tmp_path / "r" / "0" / "pid").exists()


def test_what_the_program_gets(tmp_path: Path) -> None:
    """No input, logs of its own, its folder, and a file for its error; a variable of it changes nothing here."""
    (tmp_path / "here").mkdir()
    program = 'cat; pwd; echo "$TORCHELASTIC_ERROR_FILE" >&2; code=7 dir=x killed=1; return 0'
    found = steps(tmp_path, f"{RUN}; cwd=$job/here; torchx_program() {{ {program}; }}; torchx_run")
    assert (found.code, found.out) == (0, ["over"])
    assert lines(tmp_path / "r" / "0" / "stdout.log") == [f"{tmp_path}/here"]
    assert lines(tmp_path / "r" / "0" / "stderr.log") == [f"{tmp_path}/r/0/error.json"]
    assert exit_of(tmp_path) == ["0", "0"]


def test_its_second_start(tmp_path: Path) -> None:
    """Logs go on; how it ended before is forgotten, also by the count of those that are over."""
    steps(tmp_path, f"{RUN}; torchx_program() {{ echo one; echo err >&2; exit 3; }}; torchx_run")
    (tmp_path / "started").write_text("100")
    (tmp_path / "over" / "0.0").mkdir(parents=True)
    (tmp_path / "over" / "0.1").mkdir(parents=True)
    (tmp_path / "r" / "0" / "error.json").write_text("{}")
    program = 'echo two; ls "$job/r/0" "$job/over" >"$job/seen"; exit 0'
    steps(tmp_path, f"{RUN}; torchx_program() {{ {program}; }}; torchx_run")
    assert not {"exit", "error.json", "0.0"} & set(lines(tmp_path / "seen"))
    assert "0.1" in lines(tmp_path / "seen")
    assert lines(tmp_path / "r" / "0" / "stdout.log") == ["one", "two"]
    assert lines(tmp_path / "r" / "0" / "stderr.log") == ["err"]
    assert (tmp_path / "started").read_text() == "100"
    assert exit_of(tmp_path) == ["0", "0"]


def test_when_the_job_started(tmp_path: Path) -> None:
    """Whichever replica is the first."""
    steps(tmp_path, f"{RUN}; torchx_program() {{ :; }}; torchx_run")
    assert float((tmp_path / "started").read_text()) > 1e9


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """It ends with a code of its own."""
    (tmp_path / "file").touch()
    found = steps(tmp_path, f"{RUN}; folder=file/0; torchx_program() {{ :; }}; torchx_run; echo on")
    assert (found.code, found.out) == (73, [])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("torchx_rank0() { echo 'torchx: no replica 0' >&2; return 1; }", "torchx: no replica 0"),
        ("cwd=/nowhere", "/nowhere"),
    ],
    ids=["no replica 0", "no working directory"],
)
def test_what_keeps_it_from_starting(given: str, why: str, tmp_path: Path) -> None:
    """The reason is in its log, and it has failed."""
    found = steps(tmp_path, f"{RUN}; {given}; torchx_program() {{ echo ran; }}; torchx_run")
    assert (found.code, found.out, found.err) == (1, ["failed 1"], "")
    assert why in (tmp_path / "r" / "0" / "stderr.log").read_text()
    assert not lines(tmp_path / "r" / "0" / "stdout.log")
    assert exit_of(tmp_path) == ["1", "0"]


@pytest.mark.parametrize(
    ("signal", "ends", "code", "noted"),
    [
        ("TERM", "exit 0", 143, ["143", "1"]),
        ("INT", "exit 0", 143, ["143", "1"]),
        ("TERM", "exit 5", 5, ["5", "1"]),
        ("TERM", "exit 10", 10, ["10", "1"]),
        ("USR2", "exit 0", 0, ["0", "2"]),  # the time limit: what exits with 0 has succeeded
        ("USR2", "exit 5", 5, ["5", "2"]),
    ],
)
def test_lsf_ends_it(signal: str, ends: str, code: int, noted: list[str], tmp_path: Path) -> None:
    """The script outlives the signal; a program that exits with 0 when it is killed has not succeeded."""
    program = f"kill -{signal} $$; {ends}"
    found = steps(tmp_path, f"timed=; {RUN}; torchx_program() {{ {program}; }}; torchx_run")
    assert (found.code, found.out) == (code, ["over"] if code == 0 else [f"failed {code}"])
    assert exit_of(tmp_path) == noted


def test_lsf_ends_it_twice(tmp_path: Path) -> None:
    """A signal that comes when its end is being recorded changes nothing."""
    note = 'torchx_note() { for s in INT TERM USR2; do kill -$s $$; done; printf "%s %s 2000000000\\n" $code $killed >$dir/exit; }'
    found = steps(tmp_path, f"{RUN}; {note}; torchx_program() {{ exit 3; }}; torchx_run")
    assert (found.code, found.out) == (3, ["failed 3"])
    assert exit_of(tmp_path) == ["3", "0"]


def test_the_time_limit_is_remembered(tmp_path: Path) -> None:
    """For the policy: it is not the same as a signal from elsewhere."""
    tell = 'torchx_failed() { echo "$killed$timed"; exit 1; }'
    for signal, told in (("USR2", "12"), ("TERM", "1")):
        program = f"kill -{signal} $$; exit 1"
        found = steps(tmp_path, f"timed=; {RUN}; {tell}; torchx_program() {{ {program}; }}; torchx_run")
        assert found.out == [told]


def test_the_clock_ends_before_the_last_look(tmp_path: Path) -> None:
    """No line of it follows; the last look is at whatever the logs hold, although they had that length before."""
    clock = 'torchx_clock() { sizes=x; trap "echo clock >>order; exit" TERM; : >going; while :; do read -rt 0.01 _ <> <(:); done; }'
    tick = 'torchx_tick() { echo "tick $sizes" >>order; }'
    program = "until [ -e going ]; do sleep 0.01; done"
    found = steps(tmp_path, f"{RUN}; {clock}; {tick}; sizes=1; torchx_program() {{ {program}; }}; torchx_run")
    assert found.code == 0
    assert lines(tmp_path / "order") == ["clock", "tick "]


@pytest.mark.parametrize(
    ("given", "out", "pid"),
    [
        ("wish=10m", ["up", "looked", "over"], True),
        ("python=p", ["begin", "current", "over"], True),
        ("", ["over"], False),
    ],
)
def test_what_a_watchdog_and_a_policy_add(given: str, out: list[str], pid: bool, tmp_path: Path) -> None:
    """They hear of its start and end, and which process to end."""
    more = "torchx_up() { echo up; }; torchx_looked() { echo looked; }; torchx_begin() { echo begin; attempt=0; }"
    found = steps(
        tmp_path,
        f"{RUN}; {more}; torchx_current() {{ echo current; }}; torchx_program() {{ echo $BASHPID; }}\n{given}\ntorchx_run",
    )
    assert found.out == out
    assert lines(tmp_path / "r" / "0" / "pid") == (lines(tmp_path / "r" / "0" / "stdout.log") if pid else [])


@pytest.mark.parametrize(
    ("given", "code", "out"),
    [
        ("current=1", 3, []),
        ("current=0", 3, ["failed 3"]),
        ("current=0; ends=0", 0, ["over"]),
        ("current=0; ends=0; : >$dir/due", 143, ["failed 143"]),
        ("current=0; ends=3; : >$dir/due", 3, ["failed 3"]),
        ("current=1; ends=0", 0, []),
        ("current=1; ends=0; : >$dir/due", 0, []),
    ],
)
def test_the_end_of_an_attempt(given: str, code: int, out: list[str], tmp_path: Path) -> None:
    """Of one that another attempt follows nothing is recorded; one that had to end for its time limit has failed."""
    more = "torchx_begin() { attempt=0; }; torchx_current() { return $current; }; ends=3 python=p"
    found = steps(tmp_path, f"{RUN}; {more}; {given}; torchx_program() {{ exit $ends; }}; torchx_run")
    assert (found.code, found.out) == (code, out)
    assert (tmp_path / "r" / "0" / "exit").exists() is ("current=0" in given)


def test_the_attempt_that_it_was_submitted_for(tmp_path: Path) -> None:
    """LSF passes its number."""
    begin = 'torchx_begin() { echo "begin $1"; }; torchx_current() { :; }; python=p'
    found = steps(tmp_path, f"{RUN}; {begin}; torchx_program() {{ :; }}; torchx_run 4")
    assert found.out == ["begin 4", "over"]
