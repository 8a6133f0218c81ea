"""No verb that shows output of a job prints a secret that this shell has, whatever the reference to the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchx.runner import get_runner
from torchx.runner.show.tables import run_row
from torchx.runs import default_registry
from torchx.settings import torchx_home
from torchx.specs import AppState
from torchx.util.redaction import forget, redact

from .conftest import Call, runs

CANARIES = {"FOO_X": "c4n4ry-of-a-reference", "HF_TOKEN": "c4n4ry-of-the-environment"}
FILE = "c4n4ry-of-a-file"
PROGRAM = """
import os, sys
text = " ".join(os.environ[name] for name in ("LICENCE", "WANDB_API_KEY", "HF_TOKEN"))
print("said", text, flush=True)
raise ValueError("not a licence: " + text)
"""
RUN = ("run", "--secret", "LICENCE=env:FOO_X", "--secret", "WANDB_API_KEY=file:key")
VERBS = (
    ["log"],
    ["log", "--json"],
    ["log", "-f"],
    ["status"],
    ["status", "--json"],
    ["status", "-w"],
    ["describe"],
    ["describe", "--json"],
    ["why"],
    ["why", "--json"],
    ["wait"],
    ["watch"],
    ["rerun", "--dryrun"],
    ["diff", "@last"],
    ["diff", "--json", "@last"],
)


@pytest.fixture
def failed(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The handle of a job that has printed its secrets, and failed with them in its message."""
    forget()
    (project / "train.py").write_text(PROGRAM)
    (project / "key").write_text(FILE)
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    outcome = torchx(*RUN, "--log", "train.py")
    assert "said ******** ******** ********" in outcome.err
    assert "c4n4ry" not in outcome.out + outcome.err
    yield outcome.out.strip()
    forget()


def references(handle: str) -> list[str]:
    app_id = handle.rpartition("/")[2]
    return [handle, app_id, app_id[:-3], "@last"]


@pytest.mark.parametrize("away", [False, True], ids=["here", "from another folder"])
def test_this_shell(torchx: Call, failed: str, away: bool) -> None:
    """Values of references, of files, and credentials of the environment are masked, each time anew."""
    if away:
        os.chdir("/")
    for verb in VERBS:
        for reference in references(failed):
            forget()
            outcome = torchx(*verb, reference)
            assert "c4n4ry" not in outcome.out + outcome.err, (verb, reference)
    for words in (["list"], ["list", "--json"], ["list", "--state", "FAILED"]):
        forget()
        outcome = torchx(*words)
        assert "c4n4ry" not in outcome.out + outcome.err, words


def test_a_process_that_reads_no_record(torchx: Call, failed: str) -> None:
    """`torchx log HANDLE`, alone in its process, prints what `torchx log @last` does."""
    found = [
        subprocess.run([sys.executable, "-m", "torchx", "log", job], check=True, capture_output=True, text=True).stdout
        for job in (failed, "@last")
    ]
    assert found[0] == found[1]
    assert "said ******** ******** ********" in found[0]


def test_another_shell(torchx: Call, failed: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variables their values are unknown, and shown; those of files are masked. What that shell has put on
    record is masked where the values are known."""
    forget()
    for name in CANARIES:
        monkeypatch.delenv(name)
    for verb in (["log"], ["status"], ["why"]):
        for reference in references(failed):
            forget()
            outcome = torchx(*verb, reference).out
            assert (FILE in outcome, [value in outcome for value in CANARIES.values()]) == (False, [True, True]), verb
    default_registry().saw(failed, AppState.FAILED, msg=f"not a licence: {CANARIES['FOO_X']}")
    assert CANARIES["FOO_X"] in torchx("list", "--json").out
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    for words in (["list", "--json"], ["watch", failed]):
        forget()
        monkeypatch.setattr("torchx.runner.watching.listing._learned", set())  # that of a process of its own
        assert CANARIES["FOO_X"] not in torchx(*words).out


def test_data_of_the_page_and_the_screen(torchx: Call, failed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Runner masks what it reads, before `torchx ui` and `torchx top` show it."""
    for refresh in (True, False):
        monkeypatch.setattr("torchx.runner.watching.listing._learned", set())
        forget()
        with get_runner() as runner:
            rows = [run_row(run) for run in runner.runs(refresh=refresh)]
            assert [value for value in (CANARIES["FOO_X"], FILE) if value in redact(json.dumps(rows))] == []


def test_a_task_of_a_sweep(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secrets of a task are those of its sweep."""
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    (project / "key").write_text(FILE)
    torchx(
        "sweep",
        *RUN[1:],
        "--grid",
        "x=1,2",
        "utils.sh",
        'echo "said $LICENCE $WANDB_API_KEY $HF_TOKEN {x}" >&2; exit 3',
    )
    torchx("wait", "@last")
    (sweep,) = (run["handle"] for run in runs(torchx))
    for words in (["log", f"{sweep}/0"], ["status", f"{sweep}/0"], ["status", sweep], ["status", "--json", sweep]):
        forget()
        outcome = torchx(*words)
        assert outcome.code == 0, outcome.err
        assert "c4n4ry" not in outcome.out + outcome.err, words
    assert "said" in torchx("log", f"{sweep}/0").out


def test_short_words_are_kept(torchx: Call, failed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password such as `torchx` is masked in logs, but not where it would destroy handles and keys of documents."""
    monkeypatch.setenv("DB_PASSWORD", "torchx")
    forget()
    assert json.loads(torchx("status", failed, "--json").out)["handle"] == failed


def test_nothing_is_on_record(failed: str) -> None:
    """Only the job's own logs hold the values."""
    found = subprocess.run(["grep", "-rl", "c4n4ry", torchx_home()], check=False, capture_output=True, text=True)
    assert {os.path.basename(path) for path in found.stdout.splitlines()} <= {
        "stdout.log",
        "stderr.log",
        "combined.log",
    }


def test_arguments_of_language_models_run_again(torchx: Call, project: Path) -> None:
    """They are on record and shown; ambiguous ones are shown as masks, run again, and are exported."""
    (project / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    plain = ["--eos_token", "<|im_end|>", "--pad_token_id", "0", "--add_eos_token", "True"]
    assert torchx("run", "--wait", "train.py", *plain, "--my_token", "hunter2").code == 0
    for verb in (["describe"], ["describe", "--json"], ["rerun", "--dryrun"]):
        shown = torchx(*verb, "@last").out
        assert "<|im_end|>" in shown and "hunter2" not in shown, verb
    assert torchx("rerun", "--wait", "@last").code == 0
    assert torchx("log", "--no-prefix", "@last").out.strip() == str([*plain, "--my_token", "hunter2"])
    assert torchx("export", "@last", "-o", "out").code == 0
    assert "--my_token hunter2" in (project / "out" / "job.sh").read_text()
