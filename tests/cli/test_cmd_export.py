"""`torchx export` and `torchx run --export`: what they print, and what they refuse."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from .conftest import Call, runs


@pytest.fixture
def code(project: Path) -> Path:
    """A program in the current directory."""
    (project / "train.py").write_text("import sys; print('one', *sys.argv[1:])\n")
    return project


def test_a_run_on_record(torchx: Call, code: Path, tmp_path: Path) -> None:
    """Prints the path of `run.sh`, which repeats the run."""
    torchx("run", "--wait", "train.py", "a b")
    outcome = torchx("export", "@last", "-o", "../out")
    assert outcome.out == f"{tmp_path}/out/run.sh\n"
    subprocess.run([outcome.out.strip()], check=True, cwd="/", capture_output=True)
    (log,) = (tmp_path / "out" / "logs").rglob("stdout.log")
    assert log.read_text() == "one a b\n"


def test_before_it_is_run(torchx: Call, code: Path, tmp_path: Path) -> None:
    """`run --export` neither launches nor records anything."""
    out = tmp_path / "out"
    outcome = torchx(
        "run", "-s", "slurm", "-cfg", "partition=gpu", "--secret", "HF_TOKEN", "--export", str(out), "train.py"
    )
    assert outcome.code == 0, outcome.err
    assert "before running it, export: HF_TOKEN" in outcome.err
    script = (out / "job.sh").read_text()
    assert "--partition=gpu" in script
    assert "scontrol" not in script, "what is the same for each job is in a file of its own"
    assert len(script.splitlines()) < 45
    assert (out / "code" / "train.py").exists()
    assert runs(torchx) == []


def test_another_format(torchx: Call, code: Path, tmp_path: Path) -> None:
    """A local run can be exported for a cluster, with options of that cluster."""
    torchx("run", "--wait", "train.py")
    outcome = torchx(
        "export", "@last", "--format", "bsub", "-cfg", "lsf_queue=gpu", "-o", str(tmp_path / "out"), "--json"
    )
    document = json.loads(outcome.out)
    assert (document["scheduler"], document["secrets"]) == ("lsf", [])
    assert document["folder"] == str(tmp_path / "out")
    assert "submit.sh" in document["files"]
    assert "bsub -J" in (tmp_path / "out" / "submit.sh").read_text()
    assert "-q gpu" in (tmp_path / "out" / "submit.sh").read_text()


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        (["@last", "-o", "out", "--format", "sbach"], 2, "did you mean `sbatch`?"),
        (["@last", "-o", "."], 2, "is not empty"),
        (["@last"], 2, "-o"),
        (["@nobody", "-o", "out"], 3, "@nobody"),
    ],
)
def test_what_is_refused(torchx: Call, code: Path, words: list[str], exit_code: int, message: str) -> None:
    """Each error has a hint that works."""
    torchx("run", "--wait", "train.py")
    outcome = torchx("export", *words)
    assert outcome.code == exit_code
    assert message in outcome.err


def test_masked_values_become_references(torchx: Call, code: Path, tmp_path: Path) -> None:
    """`run.sh` reads masked variables from its environment; a masked argument is asked for."""
    component = code / "comp.py"
    component.write_text(
        "import torchx.specs as specs\n"
        "def job(token: str) -> specs.AppDef:\n"
        '    """A job.\n\n    Args:\n        token: a secret\n    """\n'
        '    return specs.AppDef("job", [specs.Role("r", image="", entrypoint="sh", args=["-c", "echo $HF_TOKEN"],'
        ' env={"HF_TOKEN": token})])\n'
    )
    torchx("run", "--wait", "comp.py:job", "--token", "abcdef")
    outcome = torchx("export", "@last", "-o", str(tmp_path / "out"))
    assert outcome.code == 0, outcome.err
    script = str(tmp_path / "out" / "run.sh")
    assert subprocess.run(["env", "-u", "HF_TOKEN", script], capture_output=True, check=False).returncode == 2
    subprocess.run(["env", "HF_TOKEN=xyz", script], capture_output=True, check=True)
    (log,) = (tmp_path / "out" / "logs").rglob("stdout.log")
    assert log.read_text() == "xyz\n"
    torchx("run", "--wait", "train.py", "--api-key", "abcdef")
    assert "`--api-key` is not on record" in torchx("export", "@last", "-o", str(tmp_path / "other")).err
