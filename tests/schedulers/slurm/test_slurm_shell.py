"""The user's shell: what torchx was told counts, not the variables of Slurm's commands."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from torchx.errors import CommandError, ParseError, TransientError
from torchx.schedulers.batch import sites
from torchx.schedulers.batch.inherit import RULES, unset
from torchx.schedulers.slurm.options import outranking
from torchx.schedulers.slurm.parse import SEPARATOR
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs.api import AppDef, AppState, Resource, Role

_KEPT = ("SBATCH_ACCOUNT", "SBATCH_QOS", "SLURM_CONF", "SLURM_CLUSTERS")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program for each command of Slurm, which records its environment and its arguments."""
    here = tmp_path / "bin"
    here.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo", "srun"):
        (here / name).write_text(
            f'#!/bin/sh\nenv >"{here}/{name}.env"\necho "$@" >"{here}/{name}.args"\n[ {name} != sbatch ] || echo 7\n'
        )
        (here / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    return here


def seen(folder: Path, program: str) -> set[str]:
    """The names of the variables with the value 1 that a stand-in got."""
    lines = (folder / f"{program}.env").read_text().splitlines()
    return {name for name, _, value in (line.partition("=") for line in lines) if value == "1"}


def job() -> AppDef:
    """A job with a request for memory and a processor."""
    return AppDef("a", [Role("r", image="", entrypoint="true", resource=Resource(cpu=1, gpu=0, memMB=100))])


def test_no_command_gets_what_changes_its_answers(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the table is set; defaults, and what leads to the cluster, stay."""
    for name in (*RULES["slurm"].dropped, *_KEPT):
        monkeypatch.setenv(name, "1")
    scheduler = SlurmScheduler("s")
    scheduler.submit(job(), {})
    scheduler.list()
    for program in ("sbatch", "squeue", "sacct"):
        assert seen(stand_in, program).isdisjoint(RULES["slurm"].dropped)
        assert seen(stand_in, program) >= {*_KEPT}


def test_what_torchx_sets_beats_the_shell(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable is dropped if the job has that option, or one that contradicts it."""
    names = ("TIMELIMIT", "PARTITION", "MEM_PER_CPU", "CONSTRAINT", "GPUS", "ACCOUNT")
    for name in names:
        monkeypatch.setenv(f"SBATCH_{name}", "1")
    SlurmScheduler("s").submit(job(), {"partition": "gpu", "time": "5"})
    assert {name for name in names if f"SBATCH_{name}" in seen(stand_in, "sbatch")} == {"CONSTRAINT", "GPUS", "ACCOUNT"}


def test_the_name_is_on_the_command_line(stand_in: Path) -> None:
    """It finds the job if the answer is lost."""
    scheduler = SlurmScheduler("s")
    info = scheduler.submit_dryrun(job(), {})
    scheduler.schedule(info)
    assert f"--job-name={info.request.name} " in (stand_in / "sbatch.args").read_text()


def test_later_arrays_hide_the_same() -> None:
    """Each option names its variable; some have another name there."""
    assert outranking('#!/bin/sh\n#SBATCH --time=5 --comment="a b"\n', ["--mem=4", "--array=0-3", "x"]) == [
        "SBATCH_COMMENT",
        "SBATCH_MEM_PER_CPU",
        "SBATCH_MEM_PER_GPU",
        "SBATCH_MEM_PER_NODE",
        "SBATCH_TIMELIMIT",
    ]


def test_a_login_node_drops_them_by_name() -> None:
    """Its variables are not known here, so its shell unsets all of them."""
    assert unset("slurm").startswith("unset SACCT_FEDERATION ")
    assert unset("local") == ""


@pytest.mark.parametrize("program", ["sbatch", "squeue"])
def test_a_scheduler_that_hangs(stand_in: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempts count, too; the message names the program."""
    monkeypatch.setattr(sites, "_LEAST_S", 0.1)
    (stand_in / program).write_text("#!/bin/sh\nexec sleep 60\n")
    scheduler, began = SlurmScheduler("s"), time.monotonic()
    site = scheduler._here
    argv = ["env", "-u", "A", "SLURM_TIME_FORMAT=%s", program]
    with pytest.raises(TransientError, match=f"^`{program}` did not answer within"), sites.within(0.3):
        scheduler.run_command(site, argv)
    assert time.monotonic() - began < 10


def test_a_wrapper_that_prints_more(stand_in: Path) -> None:
    """The id is a line of its own, wherever it stands."""
    (stand_in / "sbatch").write_text("#!/bin/sh\necho Welcome\necho '7;tst'\necho Balance left: 1200 GPU hours\n")
    assert SlurmScheduler("s").submit(job(), {}) == "7"


def test_wrappers_of_questions(stand_in: Path) -> None:
    """What they print around the records is no record, and no id."""
    cells = ["7", "RUNNING", "None", "N/A", "N/A", "N/A", "0", "0:0", "n1", "me", "/tmp", "job"]
    row = "".join(f"{cell}{SEPARATOR}" for cell in cells)
    (stand_in / "squeue").write_text(
        f"#!/bin/sh\necho Welcome\ncase \"$*\" in *=%F) echo 7 ;; *) echo '{row}' ;; esac\necho Balance: 12 hours\n"
    )
    scheduler = SlurmScheduler("s")
    found = scheduler.describe("7")
    assert found is not None
    assert found.state is AppState.RUNNING
    assert [listed.app_id for listed in scheduler.list()] == ["7"]
    assert scheduler._slurm(scheduler._here).submitted("job") == "7"
    (stand_in / "squeue").write_text("#!/bin/sh\necho something else\n")
    with pytest.raises(ParseError, match="something else"):
        SlurmScheduler("s").list()


@pytest.mark.parametrize("answer", ["thanks", "7\n1200", ""])
def test_an_answer_without_an_id(answer: str, stand_in: Path) -> None:
    """Or with several numbers: the job is looked for by its name, because it may run."""
    (stand_in / "sbatch").write_text(f"#!/bin/sh\necho '{answer}'\n")
    (stand_in / "squeue").write_text("#!/bin/sh\necho 8\n")
    assert SlurmScheduler("s").submit(job(), {}) == "8"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("sbatch: unrecognized option '--parsable'\nTry \"sbatch --help\" for more information", "'--parsable'; Try"),
        (
            "hi\nsbatch: error: has DOS line breaks\nsbatch: error: instead of UNIX ones\nbye",
            "breaks; sbatch: error: inst",
        ),
    ],
)
def test_what_sbatch_said(stand_in: Path, said: str, shown: str) -> None:
    """All its errors, or the first line and the last one."""
    (stand_in / "said").write_text(said)
    (stand_in / "sbatch").write_text(f"#!/bin/sh\ncat {stand_in}/said >&2\nexit 1\n")
    with pytest.raises(CommandError, match=re.escape(shown)):
        SlurmScheduler("s").submit(job(), {})


def test_accounting_that_is_out_of_reach(stand_in: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once a command, and not asked again at once."""
    (stand_in / "sacct").write_text(
        f"#!/bin/sh\necho x >>{stand_in}/asked\necho 'sacct: error: Connection refused' >&2\nexit 1\n"
    )
    scheduler = SlurmScheduler("s", sleep=lambda _: None)
    for _ in range(3):
        scheduler.list()
        scheduler.describe("7")
    assert [record.getMessage() for record in caplog.records] == [
        "Slurm's accounting cannot be queried: `sacct` failed: sacct: error: Connection refused"
    ]
    assert len((stand_in / "asked").read_text().split()) < 6


@pytest.mark.parametrize(("noted", "limit"), [("9 end 3 over", "0.5"), ("9 retry 1", "5")])
def test_accounting_that_hangs(
    noted: str, limit: str, stand_in: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that has noted its end does not wait for what would be details; another one does, for accounting alone knows."""
    monkeypatch.setattr("torchx.schedulers.slurm.client._DETAILS_S", 0.5)
    scheduler = SlurmScheduler("s")
    folder = scheduler.folders(scheduler._here).of(scheduler.submit(job(), {}))
    assert folder is not None
    Path(folder.file("events")).write_text(f"5 start 0 7\n6 up r/0 n1\n9 down r/0 3\n{noted}\n")
    (stand_in / "sacct").write_text("#!/bin/sh\nexec sleep 60\n")
    with sites.within(0):  # so that the other one takes 5 s here
        found = scheduler.describe("7")
    assert found is not None
    assert found.state is (AppState.FAILED if "over" in noted else AppState.UNKNOWN)
    assert re.findall(r"within (\S+) s", caplog.text) == [limit]


def test_what_a_hanging_command_said(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as Slurm's words about a configuration that is not there."""
    (stand_in / "squeue").write_text("#!/bin/sh\necho 'squeue: error: cannot stat file /x' >&2\nexec sleep 60\n")
    monkeypatch.setattr(sites, "_LEAST_S", 0.5)
    scheduler = SlurmScheduler("s")
    said = re.escape("s: squeue: error: cannot stat file /x")
    with pytest.raises(TransientError, match=f"did not answer within .*{said}"), sites.within(0.3):
        scheduler.run_command(scheduler._here, ["squeue"])
