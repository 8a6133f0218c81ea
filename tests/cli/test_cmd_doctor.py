"""`torchx doctor` and `torchx run --check`: pages, documents, exit codes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Call, runs, spawn
from .test_json import check


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm that accepts no job: the file in which its calls are written down."""
    programs = tmp_path / "slurm"
    programs.mkdir()
    script = f'echo "${{0##*/}}" "$@" >> {programs}/calls\necho "${{0##*/}}: error: Invalid account" >&2\nexit 1\n'
    for name in ("sbatch", "squeue", "sinfo"):
        (programs / name).write_text(f"#!/bin/sh\n{script}")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    return programs / "calls"


def test_this_machine(torchx: Call, project: Path) -> None:
    """A line per finding, and a summary; exit code 1 if a finding is bad."""
    done = torchx("doctor")
    assert done.code == 0
    head, *lines, end = done.out.splitlines()
    assert head == "this machine"
    assert re.match(r"\d good, 0 bad(, \d todo)?(, \d unknown)?$", end)
    assert any(line.startswith("  good disk ") for line in lines)
    assert "\033" not in done.out
    (project / ".torchxconfig").write_text("[local_cwd]\nlogdir = x\n")
    done = torchx("doctor")
    assert done.code == 1
    assert "did you mean `log_dir`?" in done.out


def test_the_documents(torchx: Call, project: Path) -> None:
    """Both verbs print documents of the same schema."""
    machine = check("doctor", torchx("doctor", "--json").out)
    assert {row["scheduler"] for row in machine["findings"]} == {None}
    bad = torchx("run", "--check", "--json", "gone.py")
    document = check("doctor", bad.out)
    assert (bad.code, document["bad"]) == (1, 1)
    (row,) = [row for row in document["findings"] if row["verdict"] == "bad"]
    assert (row["scheduler"], "`gone.py` does not exist" in row["said"]) == ("local_cwd", True)


def test_a_check_submits_nothing(torchx: Call, project: Path, tmp_path: Path, slurm: Path) -> None:
    """`--check` submits neither a good nor a bad job, and removes the folder that it made for the code."""
    (project / "train.py").write_text("print(1)\n")
    assert torchx("run", "--check", "train.py").code == 0
    job_dir = tmp_path / "job"
    torchx("run", "--check", "-s", "slurm", "-cfg", f"job_dir={job_dir}", "train.py")
    assert not job_dir.exists()
    assert runs(torchx) == []
    assert all("--test-only" in call for call in slurm.read_text().splitlines() if call.startswith("sbatch"))


MISTAKES: dict[str, tuple[list[str], str, str]] = {
    "script": (["trian.py"], "`trian.py` does not exist", "did you mean `train.py`?"),
    "its folder": (["-s", "slurm", "deep.py"], "neither in", "`--script src/deep.py`"),
    "program": (["utils.binary", "--entrypoint", "no-such-program"], "not in PATH", "install it"),
    "torchrun": (["-j", "1x2", "train.py"], "`torchrun` is not in PATH", "pip install torch"),
    "option": (["-s", "slurm", "-cfg", "replicas_per_node=0", "train.py"], "`replicas_per_node` is `0`, not 1 or more", ""),
    "no registry": (["-s", "kubernetes", "-cfg", "code=registry", "--image", "a", "train.py"], "there is no `image_repo`", "image_repo="),
    "kind": (["-s", "kubernetes", "-cfg", "kind=jobb", "--image", "a", "train.py"], "kind `jobb` is not one of", ""),
    "mounts": (["-s", "slurm", "dist.ddp", "--script", "train.py", "--mounts", "type=bind,src=/a,dst=/b"], "mounts", "container"),
    "retry": (["-s", "kubernetes_mcad", "--retry", "standard", "train.py"], "not by the cause of a failure", "`--max_retries`"),
    "time limit": (["-s", "lsf", "-cfg", "time=soon", "train.py"], "`time` is `soon`", "1:30"),
}  # fmt: skip


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(torchx: Call, project: Path, case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each mistake is a bad finding with a fix; `run` rejects the job before it asks the scheduler."""
    if case == "torchrun":
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        monkeypatch.setattr("torchx.schedulers.local.path.sys.executable", "/usr/bin/python3")
    (project / "src").mkdir()
    (project / "train.py").write_text("print(1)\n")
    (project / "src/deep.py").write_text("print(1)\n")
    words, said, fix = MISTAKES[case]
    found = check("doctor", torchx("run", "--check", "--json", *words).out)
    bad = [row for row in found["findings"] if row["verdict"] == "bad" and row["what"] != "sbatch"]
    assert bad, found
    assert said in bad[0]["said"]
    assert fix in (bad[0]["fix"] or "")
    assert torchx("run", *words).code in (2, 4, 5)
    assert runs(torchx) == []


def test_the_way_out(torchx: Call, project: Path, paper: Any, slurm: Path) -> None:
    """`--no-check`, or `no_check = true` in the config file, submits the job without checks."""
    words = ["-s", "slurm", "gone.py"]
    assert "--no-check" in torchx("run", *words).hint()
    assert not slurm.exists()
    assert "gone.py" not in torchx("run", "--no-check", *words).err, "it got as far as Slurm"
    (project / ".torchxconfig").write_text("[cli:run]\nno_check = true\n")
    assert "gone.py" not in torchx("run", *words).err
    assert [call.split()[:2] for call in slurm.read_text().splitlines()] == [["sbatch", "--parsable"]] * 2


def test_a_scheduler_of_somebody_else(torchx: Call, project: Path, paper: Any) -> None:
    """A plugin without checks is supported; `--deep` runs a job there and deletes it."""
    done = torchx("doctor", "-s", "paper")
    assert done.code == 0
    assert "torchx doctor -s paper --deep" in done.out
    done = torchx("doctor", "-s", "paper", "--deep")
    assert done.code == 1
    assert "is not seen from here" in done.out, "its jobs write nothing"
    assert paper.JOBS == {}


def test_deep_here(torchx: Call, project: Path) -> None:
    """`--deep` runs a job, reads its log and deletes it."""
    done = torchx("doctor", "-s", "local_cwd", "--deep")
    assert done.code == 0
    assert "good probe job" in done.out
    assert runs(torchx) == []


def test_deep_runs_the_set_up(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that fail are the finding; a folder's own file is trusted first."""
    (project / ".torchxconfig").write_text("[local_cwd]\nsetup = module load nope\n")
    assert "`torchx configure --trust`" in torchx("doctor", "-s", "local_cwd", "--deep").out
    monkeypatch.setenv("TORCHX_TRUST", "1")
    done = torchx("doctor", "-s", "local_cwd", "--deep")
    assert done.code == 1
    assert "set-up failed: module load nope (exit 127)" in done.out


def test_deep_without_an_end(torchx: Call, project: Path, paper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that stays in the queue is an unknown finding, and is cancelled."""
    from torchx.specs import AppState

    class Pending(dict[str, AppState]):
        def setdefault(self, key: str, default: Any = None) -> Any:
            return super().setdefault(key, AppState.PENDING)

    monkeypatch.setattr(paper, "STATES", Pending())
    done = torchx("doctor", "-s", "paper", "--deep", "--timeout", "1s")
    assert done.code == 0
    assert "after 1 s it is PENDING" in done.out
    assert paper.JOBS == {}
    assert len(paper.CANCELLED) >= 1


SILENT = {
    "slurm": ("sinfo sbatch squeue sacctmgr", "Unable to contact slurm controller (connect failure)"),
    "lsf": ("lsid bjobs bqueues bhosts bsub", "LSF is down. Please wait ..."),
}


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("hangs", [False, True])
def test_a_scheduler_that_does_not_answer(
    torchx: Call, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, hangs: bool
) -> None:
    """Exit code 4, whether its commands fail or hang, and also for one job; `?` is not good news."""
    programs, said = SILENT[name]
    for program in programs.split():
        (tmp_path / program).write_text(f"#!/bin/sh\n{'exec sleep 1000' if hangs else f'echo {said!r} >&2; exit 1'}\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    done = torchx("doctor", "-s", name, "--timeout", "1s")
    assert (done.code, "bad " in done.out) == (4, False), done
    assert ("answer within" in done.out) is hangs
    (project / "train.py").write_text("print(1)\n")
    if name == "slurm":
        done = torchx("run", "--check", "--check-timeout", "1s", "-s", name, "train.py")
        assert done.code == 4, done


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (["--deep"], 2, "-s slurm"),
        (["-s", "slurmm"], 3, "slurm"),
        (["-s", "slurm", "-cfg", "partitoin=x"], 2, "partition"),
    ],
)
def test_wrong_usage(torchx: Call, words: list[str], code: int, hint: str) -> None:
    """Exit code 2 or 3, not 1, because nothing was checked."""
    done = torchx("doctor", *words)
    assert done.code == code
    assert hint in done.hint()


def test_on_a_terminal(project: Path) -> None:
    """Findings are coloured and wrapped; a fix stays on one line for copying."""
    import pexpect

    child = spawn(project, "run", "--check", "a-script-with-a-long-name-that-is-not-there.py")
    child.setwinsize(40, 60)
    child.expect(pexpect.EOF)
    text = child.before if isinstance(child.before, str) else child.before.decode()
    assert "\033[31mbad" in text
    assert "\033[32mgood" in text


def test_what_is_waited_for(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a second a terminal shows the names of the checks that have no answer, and no trace of that at the end."""
    import pexpect

    for program in ("sinfo", "sbatch", "sacctmgr"):
        (tmp_path / program).write_text("#!/bin/sh\nexec sleep 1000\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    child = spawn(project, "doctor", "-s", "slurm", "--timeout", "3s")
    child.setwinsize(40, 100)
    child.expect("waiting for the answers of Slurm, ")
    child.expect("no answer within 3 s|did not answer within 2.7 s")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 4


def test_completion(install_plugin: Callable[..., None]) -> None:
    """Completes the verb, its options, and the names of schedulers."""
    from torchx.cli.cmd_complete import candidates

    assert "doctor" in [word for word, _ in candidates(["doc"])]
    assert "slurm" in [word for word, _ in candidates(["doctor", "-s", "sl"])]
    assert "--deep" in [word for word, _ in candidates(["doctor", "--d"])]
    assert "--check" in [word for word, _ in candidates(["run", "--ch"])]
