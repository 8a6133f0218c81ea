"""The table of signatures: each row matches its example, and public kinds of failures are told apart."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.tables import rows
from torchx.schedulers.kit.failures import reader, signatures
from torchx.schedulers.kit.failures.classes import CLASSES, is_aftermath
from torchx.schedulers.kit.failures.reader import Evidence, read_failure
from torchx.schedulers.kit.failures.row import EXCEPTION, LAUNCHER, LINE, PLACES, SYSTEM, WITHIN, Row
from torchx.schedulers.kit.failures.rows import ROWS
from torchx.specs import configured

with open(os.path.join(os.path.dirname(__file__), "kinds.jsonl"), encoding="utf-8") as _file:
    KINDS = [json.loads(line) for line in _file]
TRANSIENT = {"preempted", "node", "timeout", "network"}


@rows("row", ROWS)
def test_a_row_matches_its_example(row: Row) -> None:
    """And no row above takes it for another class."""
    assert row.where in PLACES
    assert row.kind in ("", *CLASSES)
    assert row.of
    assert row.link == "" or row.link.startswith("https://")
    assert row.search(row.example)
    if row.where == LINE:
        assert row.search(reader._plain(row.example)), "the message has no time and place of glog"
    found = signatures.first(row.where, row.example)
    if row.where not in (LAUNCHER, WITHIN) and row.kind:
        assert found is not None
        assert not found.kind or (found.kind, found.aftermath) == (row.kind, row.aftermath), found


def test_every_class_is_in_the_table() -> None:
    """A class without a row could never be told."""
    assert {row.kind for row in ROWS} == {"", *CLASSES}
    assert len({(row.kind, row.where, row.text, row.pattern) for row in ROWS}) == len(ROWS)


@rows("kind", KINDS, ids=lambda kind: kind["name"])
def test_public_kinds(kind: dict[str, Any]) -> None:
    """Texts after public threads: the class, whether another failure is the cause, and what is said."""
    found = read_failure(Evidence(stderr=kind["stderr"]), exit_code=kind["exit_code"], signal=kind.get("signal", ""))
    assert found.kind == kind["want"]
    assert is_aftermath(found) == kind.get("aftermath", is_aftermath(found))
    if kind.get("says", "").startswith("exit code 3"):
        assert found.summary() == "exit code 3"
    else:
        assert kind.get("says", "") in found.summary()


@rows("row", [row for row in ROWS if row.kind in TRANSIENT and row.where == EXCEPTION])
def test_a_users_own_exception_is_never_transient(row: Row) -> None:
    """Whatever words of a library are in it."""
    name, _, text = row.example.partition(": ")
    for raised in (f"ValueError: {row.example}", f"{name}: {text}"):
        stderr = (
            'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
            f"    raise Mine(words)\n{raised}\n"
        )
        assert read_failure(Evidence(stderr=stderr), exit_code=1).kind == "error"


def test_the_systems_words_beat_an_exception_and_an_exception_beats_a_line() -> None:
    """Precedence of the places: system, exception, line."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nKeyError: 1\n'
    line = "ssh: connect to host n2 port 22: No route to host\n"
    system = "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-29T10:00:00 DUE TO TIME LIMIT ***\n"
    assert read_failure(Evidence(stderr=line), exit_code=1).kind == "node"
    assert read_failure(Evidence(stderr=line + trace), exit_code=1).kind == "error"
    assert read_failure(Evidence(stderr=line + trace + system), exit_code=1).kind == "timeout"


def test_a_cause_beats_an_aftermath_that_stands_above() -> None:
    """Of two lines, that of the cause is told."""
    stderr = (
        "[E1129 10:00:41.113 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(1)\n"
        "CUDA error: uncorrectable ECC error encountered\n"
    )
    found = read_failure(Evidence(stderr=stderr), exit_code=None, signal="SIGABRT")
    assert (found.kind, is_aftermath(found)) == ("node", False)


def test_a_line_far_above_the_end_does_not_count() -> None:
    """The program went on after it."""
    stderr = "ssh: connect to host n2 port 22: No route to host\n" + "step\n" * 20 + "no data in /data\n"
    assert read_failure(Evidence(stderr=stderr), exit_code=1).summary() == "exit code 1: no data in /data"


def test_the_line_that_decided_is_shown() -> None:
    """Also where the program said something else."""
    stderr = "loading\nslurmstepd-n1: error: Detected 1 oom_kill event in StepId=1.0.\n"
    said = read_failure(Evidence(stderr=stderr), exit_code=1).summary()
    assert "loading" in said
    assert "oom_kill event" in said
    assert "memory" in said


@pytest.mark.parametrize(
    ("code", "signal"), [(247, "SIGKILL"), (245, "SIGSEGV"), (241, "SIGTERM"), (255, ""), (254, "")]
)
def test_a_silent_launcher_ends_with_256_minus_the_signal(code: int, signal: str) -> None:
    """255 and 254 are what ssh and many programs end with."""
    found = read_failure(Evidence(), exit_code=code)
    assert found.signal == signal
    assert read_failure(Evidence(stderr="no data\n"), exit_code=code).exit_code == code


@pytest.mark.parametrize("where", [SYSTEM, EXCEPTION])
def test_a_row_is_fast(where: str) -> None:
    """A long line takes no row more than a moment: no pattern is of the kind that backtracks for ever."""
    import time

    text = (
        "RuntimeError: " + "NCCL error in: CUDA error: out of memory Task launch for image active [Rank 1] a.b.c " * 50
    )
    for row in signatures.rows(where):
        begun = time.process_time()
        row.search(text)
        assert time.process_time() - begun < 0.2, row


def _forget() -> None:
    signatures._by_place.cache_clear()
    signatures._words.cache_clear()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The section ``[failures]`` of a config file."""
    texts: dict[str, str] = {}
    monkeypatch.setattr(configured, "_failures", lambda: texts)
    _forget()
    yield texts
    _forget()


def test_a_sites_row_comes_first(site: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """In every place; one that is wrong is skipped, with a warning that names it."""
    site.update(
        route="network:aftermath line No route to host",
        words="quota system NODE_FAIL",
        mine="node exception mylab\\.Gone: ",
        no_class="nod line x",
        no_pattern="node line",
        no_regex="node line a(",
        no_place="node wherever x",
    )
    found = read_failure(Evidence(stderr="ssh: connect to host n2 port 22: No route to host\n"), exit_code=255)
    assert (found.kind, is_aftermath(found)) == ("network", True)
    assert read_failure(Evidence(said="NODE_FAIL"), exit_code=1).kind == "quota"
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nmylab.Gone: n3\n'
    assert read_failure(Evidence(stderr=trace), exit_code=1).kind == "node"
    assert [name for name in site if f"`{name}`" in caplog.text] == ["no_class", "no_pattern", "no_regex", "no_place"]


@pytest.mark.parametrize(
    "made", [[Row("node", "line", "frob lost", name="frob")], lambda: iter([Row("node", "line", "frob lost")])]
)
def test_rows_of_a_plugin(site: dict[str, str], made: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list, or a function that returns one; what is no row is skipped."""
    monkeypatch.setattr(signatures, "load_group", lambda _: {"wrong": [3], "none": None, "ours": made})
    assert read_failure(Evidence(stderr="n3: frob lost\n"), exit_code=1).kind == "node"


def test_what_decided_is_explained() -> None:
    """The row that decided, and those that match without effect, each once."""
    stderr = (
        "ssh: connect to host n2 port 22: No route to host\n"
        "NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.\nKilled\n"
    )
    with signatures.explained() as matches:
        found = read_failure(Evidence(stderr=stderr), exit_code=137)
    assert found.kind == "node"
    assert [match.line[:9] for match in matches if match.decided] == ["NVRM: Xid"]
    assert {match.line[:9] for match in matches if not match.decided} >= {"ssh: conn", "Killed"}
    assert len(set(matches)) == len(matches)
    with signatures.explained() as again:
        pass
    assert again == []


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_nothing_of_a_warning_is_the_cause(prefix: str) -> None:
    """Neither its source line, nor what it says in further lines; also of a rank, and in a folder with a space."""
    warned = ("/my code/a.py:5: UserWarning: old", "it will be gone", "  load(3)", "sys:1: ResourceWarning: unclosed")
    stderr = "".join(f"{prefix}{line}\n" for line in warned)
    assert read_failure(Evidence(stderr=stderr), exit_code=3).summary() == "exit code 3"
    assert read_failure(Evidence(stderr=stderr + "no data\n"), exit_code=3).summary() == "exit code 3: no data"
