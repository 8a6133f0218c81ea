"""Secrets of batch jobs without a cluster: the file that steps read with a shell, and what the scheduler does not get."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torchx.errors import ConfigError
from torchx.schedulers.batch.base import BatchScheduler
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, Resource, Role, Secret, macros
from torchx.testing.commands import FakeCommandRunner

HOSTILE = 'it\'s $HOME `id` $(id)\n"esac" ;; *) \\ \u00e9 end'
SCHEDULERS = pytest.mark.parametrize(("kind", "submits"), [(SlurmScheduler, "sbatch"), (LsfScheduler, "/bin/bash")])


def app(**env: str) -> AppDef:
    """Two roles, of which the first has two replicas."""
    small = Resource(1, 0, 100)
    return AppDef(
        "job",
        [
            Role("a b", "", entrypoint="e", env=env, num_replicas=2, resource=small),
            Role("c", "", entrypoint="e", env={"K_PASSWORD": "of-c"}, resource=small),
        ],
    )


def submitted(kind: type[BatchScheduler], submits: str, job: AppDef) -> tuple[list[str], Path]:
    """The command that was run, and the job's folder."""
    fake = FakeCommandRunner()
    fake.on("env", stdout="7\n")
    fake.on(submits, stdout="7\n")
    scheduler = kind("s", commands=fake, sleep=lambda _: None)  # type: ignore[call-arg]  # of both backends
    scheduler.submit(job, {})
    argv = next(argv for name in ("env", submits) for argv in fake.argvs(name))
    return argv, Path(argv[-1]).parent


def read_by(folder: Path, role: int, place: str, name: str) -> str:
    """The value of a variable in a replica after its shell has read the file."""
    script = f'role={role} k={place[-1]}; . "{folder}/secrets.sh"; printf %s "${name}"'
    argv = ["sh", "-c", script, f"{folder}/{place}"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@SCHEDULERS
def test_a_shell_reads_the_very_value(kind, submits, monkeypatch):
    """Each replica gets the value of its role, with any characters; only the user can read the file."""
    monkeypatch.setenv("MINE", HOSTILE)
    _, folder = submitted(kind, submits, app(K_PASSWORD=f"of-${{replica_id}}-{HOSTILE}", BY=Secret("env:MINE")))
    place = "a%20b"
    for k in (0, 1):
        assert read_by(folder, 0, f"{place}/{k}", "K_PASSWORD") == f"of-{k}-{HOSTILE}"
        assert read_by(folder, 0, f"{place}/{k}", "BY") == HOSTILE
    assert read_by(folder, 1, "c/0", "K_PASSWORD") == "of-c"
    assert read_by(folder, 1, "c/0", "BY") == ""
    assert (folder / "secrets.sh").stat().st_mode & 0o777 == 0o600
    rest = [path.read_text() for path in folder.iterdir() if path.is_file() and path.name != "secrets.sh"]
    assert rest
    assert not any("`id`" in text or "of-c" in text for text in rest)


@SCHEDULERS
def test_the_scheduler_does_not_see_where_they_come_from(kind, submits, monkeypatch):
    """The command's environment has neither the job's variable nor its source."""
    monkeypatch.setenv("MINE", "sesame-open")
    argv, _ = submitted(kind, submits, app(BY=Secret("env:MINE"), PLAIN="p"))
    end = argv.index(submits)
    assert set(argv[:end]) == {"env", "-u", "BY", "MINE", "K_PASSWORD"}


@SCHEDULERS
def test_without_secrets_there_is_no_file(kind, submits):
    """The command is called unchanged."""
    job = app(PLAIN=macros.app_id)
    del job.roles[1].env["K_PASSWORD"]
    argv, folder = submitted(kind, submits, job)
    assert argv[0] == submits
    assert not (folder / "secrets.sh").exists()


@SCHEDULERS
def test_a_value_that_is_missing_leaves_no_folder(kind, submits):
    """The value is looked up last; on failure the folder is removed."""
    fake = FakeCommandRunner()
    scheduler = kind("s", commands=fake, sleep=lambda _: None)
    with pytest.raises(ConfigError, match="the variable `NOT_SET` is not set here"):
        scheduler.submit(app(BY=Secret("env:NOT_SET")), {})
    home = Path(scheduler.folders(scheduler._here).place("x")).parent
    assert [path.name for path in home.glob("*")] == []
    assert fake.argvs("env") == fake.argvs(submits) == []


@SCHEDULERS
def test_a_program_that_is_missing_is_named(kind, submits):
    """The error does not name `env`, which calls it."""
    fake = FakeCommandRunner()
    fake.on("env", returncode=127, stderr="env: no such file")
    scheduler = kind("s", commands=fake, sleep=lambda _: None)
    with pytest.raises(Exception, match="is not installed on this machine") as e:
        scheduler.submit(app(K="x"), {})
    assert "`env`" not in str(e.value)


@SCHEDULERS
@pytest.mark.parametrize(("found", "kept"), [("", False), (None, True), ("7", True)])
def test_a_submission_that_was_killed(kind, submits, found, kept, monkeypatch, tmp_path):
    """The file is removed as soon as it is certain that there is no job."""
    (tmp_path / "secrets.sh").write_text("")
    scheduler = kind("s", commands=FakeCommandRunner())
    monkeypatch.setattr(scheduler, "_find_late", lambda *_: found)
    assert scheduler.find_submission(f"job-1 {tmp_path}", {}, age_s=999) == found
    assert (tmp_path / "secrets.sh").exists() is kept
