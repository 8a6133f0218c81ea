"""Batch scripts of users: their requests, and lines that other schedulers cannot honour."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.schedulers.slurm.test_slurm_foreign import SHOWN, queued
from torchx.components import utils
from torchx.errors import NotSupportedError, SpecError
from torchx.runner import Runner
from torchx.schedulers.slurm.scripts.lines import directives
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, Secret
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.scripts import SBATCH
from torchx.specs.wishes.timeouts import TIMEOUT
from torchx.testing.commands import FakeCommandRunner

BODY = "module purge\nsource ~/env/bin/activate\npython train.py $@\n"

# Lines as tutorials and sites have them -> cpu, gpu, MiB, seconds; written for this test from the manual of sbatch.
PORTABLE: list[tuple[str, tuple[int, int, int, int]]] = [
    ("-J bert|-p gpu|--gres=gpu:1|-t 24:00:00|--mem=32G|-c 8|-o %x-%j.out", (8, 1, 32768, 86400)),
    (
        "--job-name=train|--nodes=1|--ntasks=1|--cpus-per-task=4|--mem-per-cpu=4G|--time=2-00:00:00",
        (4, 0, 16384, 172800),
    ),
    (
        "--partition=a100|--gpus=2|--cpus-per-task=16|--mem=128GB|--time=12:00:00|--account=proj-1",
        (16, 2, 131072, 43200),
    ),
    ("-N1|-n1|-c2|-t30|-o slurm.out|-e slurm.err", (2, 0, 2048, 1800)),
    ("-N 1 -n 1 -c 2 -t 1:30", (2, 0, 2048, 90)),
    ("--gpus-per-node=a100:4|--mem=400000M|--time=3-12|--qos=high", (1, 4, 400000, 302400)),
    ("--gres=gpu:v100:2|--mem=64g|--time=UNLIMITED", (1, 2, 65536, 0)),
    ('--job-name="my run"|--output="logs/%x_%A.log"|--time=01:00:00', (1, 0, 1024, 3600)),
    ("--gpus-per-task=1|--ntasks=1|--cpus-per-task=6|--mem-per-gpu=40G", (6, 1, 40960, 0)),
    ("--time=0-00:10|--mem=500", (1, 0, 500, 600)),
    ("--ntasks-per-node=1|--nodes=1-1|--cpus-per-task=32|--mem=512G", (32, 0, 524288, 0)),
    ("--tasks=1|--tasks-per-node=1|--nodes=1|--time=5", (1, 0, 1024, 300)),
    ("-J a#b|--comment='#1' # a comment with 'quotes'|-c 2", (2, 0, 2048, 0)),
    ("--requeue|--open-mode=append|--export=ALL|-c 1", (1, 0, 1024, 0)),
    ("-A abc123|-p short,long|--qos normal|-t 4:00:00|--comment nightly", (1, 0, 1024, 14400)),
    ("--gres gpu|-c 4", (4, 1, 4096, 0)),
    ("--no-requeue|--wckey=w|--acctg-freq=30|--mem 2048K", (1, 0, 2, 0)),
    ("-o /dev/null|-e /dev/null|-J 'a b'|--mem=10G # a comment", (1, 0, 10240, 0)),
    ("--cpus-per-task 12 --gres=gpu:rtx_2080ti:4 --mem=62000", (12, 4, 62000, 0)),
    ("-Gh100:8|--time=7-0|--mem=2T", (1, 8, 2097152, 604800)),
    ("--parsable|--quiet|--verbose|-t 5", (1, 0, 1024, 300)),
    ("-c=3|-t=15", (3, 0, 3072, 900)),
    ("--cpus-per-t=3|--parti=x", (3, 0, 3072, 0)),
    ("", (1, 0, 1024, 0)),
    ("--mem=1000MB|--cpus-per-task=1", (1, 0, 1000, 0)),
    ("-J x|-J y|-t 10|-t 20", (1, 0, 1024, 1200)),
]

# -> which line is named, and what of it.
SLURMS_OWN: list[tuple[str, int, str]] = [
    ("--nodes=4|--ntasks-per-node=8|--gres=gpu:8", 2, "--nodes=4"),
    ("-J a|-N 2", 3, "-N 2"),
    ("--ntasks=16|--time=1:00:00", 2, "--ntasks=16"),
    ("-n 8", 2, "-n 8"),
    ("--array=0-9", 2, "--array=0-9"),
    ("-J x|-a 1-100%10", 3, "-a 1-100%10"),
    ("--dependency=afterok:123", 2, "--dependency=afterok:123"),
    ("-d singleton", 2, "-d singleton"),
    ("--mail-type=END,FAIL|--mail-user=me@example.org", 2, "--mail-type=END,FAIL"),
    ("--constraint=a100", 2, "--constraint=a100"),
    ('-C "[rack1|rack2]"'.replace("|", "&"), 2, "-C [rack1&rack2]"),
    ("--nodelist=node[01-04]", 2, "--nodelist=node[01-04]"),
    ("-x node07", 2, "-x node07"),
    ("--exclusive", 2, "--exclusive"),
    ("--signal=B:USR1@120", 2, "--signal=B:USR1@120"),
    ("--begin=now+1hour", 2, "--begin=now+1hour"),
    ("--chdir=/scratch/me", 2, "--chdir=/scratch/me"),
    ("-D /scratch/me", 2, "-D /scratch/me"),
    ("--export=NONE", 2, "--export=NONE"),
    ("-c 4|--mem=0", 3, "--mem=0"),
    ("--mem-per-gpu=0G", 2, "--mem-per-gpu=0G"),
    ("--licenses=matlab:1", 2, "--licenses=matlab:1"),
    ("--reservation=course", 2, "--reservation=course"),
    ("--gres=gpu:1,nvme:100", 2, "--gres=gpu:1,nvme:100"),
    ("--hint=nomultithread", 2, "--hint=nomultithread"),
    ("--distribution=block:cyclic|-t 10", 2, "--distribution=block:cyclic"),
    ("--mem=lots", 2, "--mem=lots"),
    ("-n1|hetjob|-n1", 3, "hetjob"),
    (
        "--container-image=nvcr.io#nvidia/pytorch:24.05-py3|--container-mounts=/data:/data",
        2,
        "--container-image=nvcr.io#nvidia/pytorch:24.05-py3",
    ),
    ("-t 5|--container-mounts /data:/data", 3, "--container-mounts /data:/data"),
    ("--container-writable|-t 5", 2, "--container-writable"),
    ("--cluster=other", 2, "--cluster=other"),
    ("--mem-per-cpu=2.5G", 2, "--mem-per-cpu=2.5G"),
    ("--mem=0.5T", 2, "--mem=0.5T"),
    ("-Z 1", 2, "-Z 1"),
    ("--switches=1@2:00", 2, "--switches=1@2:00"),
]


def script(lines: str, body: str = BODY) -> str:
    """A script with these options, one per line."""
    return "#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in lines.split("|") if line) + "\n" + body


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes `train.sbatch` into the current directory."""
    monkeypatch.chdir(tmp_path)

    def made(text: str) -> str:
        (tmp_path / "train.sbatch").write_text(text)
        return "train.sbatch"

    return made


def test_there_are_fifty() -> None:
    """There are that many, all different."""
    assert len({lines for lines, *_ in (*PORTABLE, *SLURMS_OWN)}) >= 50


@pytest.mark.parametrize(("lines", "asked"), PORTABLE, ids=[lines or "none" for lines, _ in PORTABLE])
def test_portable(write: Any, lines: str, asked: tuple[int, int, int, int]) -> None:
    """Its lines become a resource and a time limit, and bash runs it with its arguments."""
    app = utils.sbatch(write(script(lines)), "--lr", "1")
    (role,) = app.roles
    assert (role.resource.cpu, role.resource.gpu, role.resource.memMB, Wishes.of(app).timeout_s) == asked
    assert (role.entrypoint, role.args) == ("bash", ["train.sbatch", "--lr", "1"])
    assert SBATCH not in app.metadata


@pytest.mark.parametrize(("lines", "line", "text"), SLURMS_OWN, ids=[s[0] for s in SLURMS_OWN])
def test_only_on_slurm(write: Any, lines: str, line: int, text: str) -> None:
    """`sbatch` and torchx on Slurm accept it; elsewhere the error names the line."""
    app = utils.sbatch(write(script(lines)))
    assert app.metadata[SBATCH].startswith(f"train.sbatch:{line}: `{text}` ")
    with Runner("test") as runner:
        with pytest.raises(NotSupportedError, match=f"cannot run on `local_cwd`: train.sbatch:{line}: "):
            runner.dryrun(app, "local_cwd")
        assert script(lines) in str(runner.dryrun(app, "slurm").request)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (script("-c"), "train.sbatch:2: `-c` has no value"),
        (script("--job-name=my run"), "train.sbatch:2: `run` is not an option"),
        (script('--job-name="x'), "train.sbatch:2: .* cannot be read"),
        ("echo hi\n", "train.sbatch:1: this is not a batch script"),
        ("", "train.sbatch:1: this is not a batch script"),
        ("\ufeff" + script("-c 2"), "train.sbatch:1: .* begins with a byte order mark"),
        (script("-c 2", "cd data\r\necho hi\r\n"), "train.sbatch:4: .* DOS line breaks"),
        ("#!/bin/bash\n\0echo\n", "train.sbatch:2: .* NUL character"),
        ("#!/bin/bash\r#SBATCH -n 2\recho\r", "train.sbatch:1: .* old Macs"),
    ],
    ids=["no value", "unquoted", "quote", "no shebang", "empty", "bom", "dos", "nul", "mac"],
)
def test_what_sbatch_refuses(write: Any, text: str, error: str) -> None:
    """The error names the line before the submission."""
    with pytest.raises(SpecError, match=error):
        utils.sbatch(write(text))


def test_a_step_of_slurm(write: Any) -> None:
    """`srun` in the script is reported, too; similar words are not."""
    app = utils.sbatch(write(script("-t 5", "# srun is not used\necho srun it\nsrun python train.py\n")))
    assert app.metadata[SBATCH].startswith("train.sbatch:6: `srun python train.py` is a Slurm command")
    assert SBATCH not in utils.sbatch(write(script("-t 5", "echo srun it\n"))).metadata


@pytest.mark.parametrize(
    "line",
    [
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "if true; then srun -n1 hostname; fi",
        "cd /data && sbatch next.sh",
        'head="$(scontrol show job 1)"',
        "A=1 srun hostname",
        "for i in 1 2; do /usr/bin/srun hostname; done",
        "nodes=`scontrol show hostnames`",
    ],
)
def test_a_step_anywhere_in_a_line(write: Any, line: str) -> None:
    """Off Slurm its line is named."""
    assert utils.sbatch(write(script("-t 5", f"echo\n{line}\n"))).metadata[SBATCH].startswith("train.sbatch:5: ")


@pytest.mark.parametrize(
    "line",
    ["echo 'then srun x; srun'", 'echo "a; srun b"', "cd x # && srun", "mysrun x", "ls srun.log", "python srun.py"],
)
def test_no_step(write: Any, line: str) -> None:
    """Words in strings, comments and names are no commands."""
    assert SBATCH not in utils.sbatch(write(script("-t 5", f"{line}\n"))).metadata


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("#!/bin/bash", ["bash"]),
        ("#!/bin/bash -l", ["bash", "-l"]),
        ("#!/usr/bin/env python3", ["python3"]),
        ("#!/usr/bin/env -S python3 -u", ["python3", "-u"]),
        ("#! /bin/csh -f", ["/bin/csh", "-f"]),
        ("#!/usr/bin/python3", ["/usr/bin/python3"]),
    ],
)
def test_the_first_line_says_who_runs_it(write: Any, first: str, words: list[str]) -> None:
    """Off Slurm; there sbatch gets its arguments alone."""
    app = utils.sbatch(write(f"{first}\n#SBATCH -t 5\n"), "--lr", "1")
    (role,) = app.roles
    assert [role.entrypoint, *role.args] == [*words, "train.sbatch", "--lr", "1"]
    with Runner("test") as runner:
        assert runner.dryrun(app, "slurm").request.args == ["--lr", "1"]


def test_late_lines_are_warned_about(write: Any, caplog: pytest.LogCaptureFixture) -> None:
    """With their numbers; a script within the script is none of them."""
    inner = "cat >next.sh <<'EOF'\n#!/bin/bash\n#SBATCH -n 9\nEOF\n"
    utils.sbatch(write(f"#!/bin/bash\n#SBATCH -t 5\necho\n#SBATCH -c 2\n{inner}#SBATCH -c 3\n"))
    assert "train.sbatch: #SBATCH lines after the first command have no effect: line 4, 9" in caplog.text


def test_lines_behind_the_first_command_do_not_count() -> None:
    """As for sbatch; comments and empty lines are not commands."""
    text = "#!/bin/sh\n# hi\n\n#SBATCH -c 2\n#SBATCHx -c 3\n##SBATCH -c 4\necho\n#SBATCH -c 5\n"
    assert [(d.line, d.value) for d in directives(text)] == [(4, "2")]


def test_here_it_runs(write: Any) -> None:
    """It runs with bash in the current directory."""
    app = utils.sbatch(write(script("-t 5|-J hi", 'echo "$1 in $(basename $PWD)"\n')), "a b")
    with Runner("test") as runner:
        handle = runner.run(app, "local_cwd")
        assert str(runner.wait(handle).state) == "SUCCEEDED"
        assert list(runner.log_lines(handle, "job")) == [f"a b in {os.path.basename(os.getcwd())}\n"]


@pytest.fixture
def slurm(tmp_path: Path) -> tuple[SlurmScheduler, FakeCommandRunner]:
    fake = FakeCommandRunner()
    fake.on("sbatch", stdout="7\n")
    return SlurmScheduler("test", commands=fake, sleep=lambda _: None), fake


@pytest.mark.parametrize(
    ("lines", "marks"),
    [("-t 5", ["--job-name="]), ("-J mine", ["--comment="]), ("-J mine --comment=x", [])],
    ids=["no name", "a name", "both"],
)
def test_byte_by_byte(write: Any, slurm: Any, lines: str, marks: list[str]) -> None:
    """sbatch gets an identical copy; torchx adds only a name, or a comment if the script sets the name."""
    scheduler, fake = slurm
    raw = script(lines).encode() + b"echo \xff\ry\n"
    Path(write("")).write_bytes(raw)
    app = utils.sbatch("train.sbatch", "--lr", "it's")
    assert scheduler.submit(app, {}) == "7"
    (call,) = [call for call in fake.calls if call.argv[0] == "sbatch"]
    assert call.argv[:2] == ["sbatch", "--parsable"]
    path = call.argv[-3]
    assert (os.path.basename(path), call.argv[-2:]) == ("train.sbatch", ["--lr", "it's"])
    assert Path(path).read_bytes() == raw
    assert [word.partition("=")[0] + "=" for word in call.argv[2:-3]] == marks


def test_options_that_are_given_go_before(write: Any, slurm: Any) -> None:
    """Options on the command line have precedence; a time limit of the script itself is not repeated."""
    scheduler, fake = slurm
    app = utils.sbatch(write(script("-t 5|-p slow|-J a --comment=b")))
    scheduler.submit(app, {"partition": "fast", "mail-type": "END"})
    app.metadata[TIMEOUT] = "1h"
    scheduler.submit(app, {})
    words = [call.argv[2:-1] for call in fake.calls if call.argv[0] == "sbatch"]
    assert words == [["--partition=fast", "--mail-type=END"], ["--time=1:00:00"]]


def test_refused_on_slurm(write: Any) -> None:
    """Features that need torchx's own script are rejected."""

    def dryrun(app: AppDef, **cfg: str) -> None:
        with Runner("test") as runner:
            runner.dryrun(app, "slurm", cfg)

    app = utils.sbatch(write(script("-t 5")))
    with pytest.raises(NotSupportedError, match="a job of its own"):
        dryrun(app, **{"in": "7"})
    app.metadata[RETRY] = "standard"
    with pytest.raises(NotSupportedError, match="requeued"):
        dryrun(app)
    app = utils.sbatch(write(script("-t 5")))
    app.roles[0].env["TOKEN"] = Secret("env:TOKEN")
    with pytest.raises(NotSupportedError, match="secrets"):
        dryrun(app)
    with pytest.raises(SpecError, match="no script"):
        utils.sbatch()
    with pytest.raises(SpecError, match="No such file"):
        utils.sbatch("nowhere.sbatch")


def answers(fake: FakeCommandRunner, squeue: str, scontrol: str) -> None:
    """Sets the cluster's answers about the job."""
    fake.on("env", "SLURM_TIME_FORMAT=%s", "squeue", stdout=squeue)
    fake.on("env", "SLURM_TIME_FORMAT=%s", "sacct", stdout="")
    fake.on("scontrol", "show", "job", stdout=scontrol)


def test_what_became_of_it(write: Any, slurm: Any, tmp_path: Path) -> None:
    """Its output is found by its own lines, in the folder from which it was launched.

    Deleting the job keeps it, and removes the folder with the copy of the script.
    """
    scheduler, fake = slurm
    (tmp_path / "own.log").write_text("ValueError: no such frob\n")
    app_id = scheduler.submit(utils.sbatch(write(script("-o own.log"))), {})
    shown = SHOWN.format(
        **{"id": 7, "array": "", "name": "train", "state": "FAILED", "reason": "x", "code": 3, "folder": tmp_path},
        out="own.log",
        err="own.log",
    )
    answers(fake, queued("7", "FAILED", code=3), shown)
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.msg == "job/0 on n1: exit code 3: ValueError: no such frob"
    assert scheduler.log_replicas(app_id) == [("job", 0)]
    assert list(scheduler.log_iter(app_id, "job")) == ["ValueError: no such frob\n"]
    assert scheduler.foreign().find("7").ours is True
    folder = scheduler._folder(app_id)
    assert os.path.isdir(folder.path)
    scheduler.delete(app_id)
    assert not os.path.exists(folder.path)
    assert (tmp_path / "own.log").exists()


def test_an_array_of_its_own(write: Any, slurm: Any, tmp_path: Path) -> None:
    """Its tasks are the replicas; it is cancelled like any other job."""
    scheduler, fake = slurm
    fake.on("scancel")
    app_id = scheduler.submit(utils.sbatch(write(script("-a 1-2 -o %a.log"))), {})
    shown = "".join(
        SHOWN.format(
            **{"id": 6 + k, "array": f"ArrayJobId=7 ArrayTaskId={k} ", "name": "t", "state": "RUNNING", "reason": "x"},
            **{"code": 0, "folder": tmp_path, "out": f"{k}.log", "err": f"{k}.log"},
        )
        for k in (1, 2)
    )
    (tmp_path / "2.log").write_text("two\n")
    answers(fake, queued("7_1", "COMPLETED") + queued("7_2", "RUNNING"), shown)
    assert str(scheduler.describe(app_id).state) == "RUNNING"
    assert scheduler.log_replicas(app_id) == [("task", 1), ("task", 2)]
    assert list(scheduler.log_iter(app_id, "task", 2)) == ["two\n"]
    scheduler.cancel(app_id)
    assert [call.argv for call in fake.calls if call.argv[0] == "scancel"] == [["scancel", "7"]]
