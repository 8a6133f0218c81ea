"""``slurm`` without a cluster: rendered scripts, queries, and parsed answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from torchx.components import dist
from torchx.errors import CommandError, ConfigError, NotSupportedError, SpecError, TransientError
from torchx.schedulers import slurm_scheduler
from torchx.schedulers.batch.base import Site
from torchx.schedulers.batch.inherit import environ
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.slurm.parse import SEPARATOR
from torchx.schedulers.slurm.request import MAX_SCRIPT
from torchx.schedulers.slurm_scheduler import (
    SLURM_STATES,
    SlurmBatchRequest,
    SlurmOpts,
    SlurmReplicaRequest,
    SlurmScheduler,
    create_scheduler,
)
from torchx.specs import AppDef, AppState, BindMount, Resource, RetryPolicy, Role, macros
from torchx.specs.failures import parse_failure
from torchx.specs.wishes.after import AFTER
from torchx.testing.commands import FakeCommandRunner
from torchx.testing.contract import SchedulerContract

TESTS = Path(__file__).parents[2]
GOLDEN = TESTS / "golden" / "slurm"
SMALL = Resource(cpu=1, gpu=0, memMB=100)
GPU = Resource(cpu=8, gpu=4, memMB=4096)


def role(name: str = "trainer", *args: str, **more: Any) -> Role:
    more.setdefault("resource", SMALL)
    return Role(name, "", entrypoint="echo", args=list(args), **more)


def row(job_id: str, state: str, reason: str = "None", *, status: int = 0, folder: str = "/tmp", **more: str) -> str:
    """One line of plain ``squeue``."""
    cells = [job_id, state, reason, "100", more.get("start", "N/A"), more.get("end", "N/A"), "0", str(status)]
    return SEPARATOR.join([*cells, more.get("nodes", ""), "me", folder, more.get("name", "job"), ""]) + "\n"


@pytest.fixture
def fake() -> FakeCommandRunner:
    runner = FakeCommandRunner()
    runner.on("env", "SLURM_TIME_FORMAT=%s", "squeue", stdout="")
    runner.on("env", "SLURM_TIME_FORMAT=%s", "sacct", stdout="")
    runner.on("scancel", returncode=1, stderr="scancel: error: Invalid job id specified")
    return runner


@pytest.fixture
def scheduler(fake: FakeCommandRunner) -> SlurmScheduler:
    made = SlurmScheduler("test", commands=fake, sleep=lambda _: None)
    made.fresh_s = 0
    return made


class TestContract(SchedulerContract):
    """The contract's parts that need no cluster."""

    unknown_id: ClassVar[str] = "999999999"
    runtime_macros: ClassVar[frozenset[str]] = frozenset({"app_id"})
    raw_states = SLURM_STATES

    def create_scheduler(self, folder: str) -> SlurmScheduler:
        runner = FakeCommandRunner()
        runner.on("env", "SLURM_TIME_FORMAT=%s", "squeue", returncode=1, stderr="Invalid job id specified")
        runner.on("env", "SLURM_TIME_FORMAT=%s", "sacct", stdout="")
        return SlurmScheduler("contract", commands=runner, sleep=lambda _: None)

    def map_state(self, raw: str) -> AppState:
        return slurm_scheduler.appstate_from_slurm_state(raw)

    def request_name(self, info) -> str:
        return str(info.request.name)


# -- what is rendered --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "rendered"),
    [
        ("gpu:a100,nvme:1,shard", "gpu:a100:4,nvme:1,shard:1"),
        ("tmp:10G,lic:2k", f"gpu:4,tmp:{10 << 30},lic:2048"),
        ("gpu:2", "gpu:2"),
    ],
)
def test_generic_resources(given: str, rendered: str, scheduler: SlurmScheduler) -> None:
    """Amounts may have units, as for `sbatch`; only a name gets the number of GPUs, or 1."""
    app = AppDef("job", [role("w", resource=GPU)])
    assert f" --gres={rendered} " in str(scheduler.submit_dryrun(app, {"gres": given}).request)


JOBS: dict[str, tuple[AppDef, dict]] = {
    "ddp": (dist.ddp("--epochs", "3", script="train.py", j="2x2", env={"HF_TOKEN": "hf_secret", "A": "b c"}), {}),
    "elastic": (dist.ddp(script="train.py", j="2:4x1", max_retries=2), {"time": "60"}),
    "two-roles": (
        AppDef(
            "het",
            [
                role("reader", macros.app_id, env={"R": macros.rank0_env}),
                role("trainer", macros.replica_id, num_replicas=3, resource=GPU, max_retries=1),
            ],
        ),
        {"partition": "gpu", "comment": 'it\'s "ours" #1', "gres": "gpu:a100,nvme:1", "mail-type": "END"},
    ),
    "packed": (
        AppDef("packed", [role(num_replicas=5, resource=GPU, retry_policy=RetryPolicy.REPLICA)]),
        {"replicas_per_node": 2, "exclusive": True, "nodelist": "n[1-3]", "extra": ["--nice=10"]},
    ),
    "pyxis": (
        AppDef("box", [role(mounts=[BindMount("/data", "/in", read_only=True)], resource=GPU)]),
        {"container": "pyxis", "container_image": "ghcr.io/pytorch/torchx:0.7.0"},
    ),
    "container-auto": (AppDef("box", [role(resource=GPU)]), {"container_image": "ubuntu:22.04"}),
    "apptainer": (
        AppDef("box", [Role("r", "/shared/code", entrypoint="echo", env={"PATH": "/own:/bin", "A": "b"})]),
        {"container": "apptainer", "container_image": "/shared/tiny.sif"},
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_scripts_are_as_recorded(scheduler: SlurmScheduler, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts match tests/golden/slurm, which `UPDATE_GOLDEN=1` rewrites. bash can parse them."""
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.chdir("/tmp")
    app, cfg = JOBS[name]
    info = scheduler.submit_dryrun(app, cfg)
    shown = str(info).replace(info.request.name, "<NAME>")
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(shown)
    assert shown == path.read_text()
    read = subprocess.run(["bash", "-n"], input=info.request.materialize(), text=True, capture_output=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


def test_a_container_runs_in_the_folder_of_the_code(scheduler: SlurmScheduler) -> None:
    """With `container_image` the role's image is still the folder of a workspace: it is mounted, and the working
    directory.
    """
    code = {runtime: _script(scheduler, "/shared/my code", runtime) for runtime in ("pyxis", "apptainer", "auto")}
    for script in code.values():
        assert "choose_dir '/shared/my code'" in script
    assert '--container-mounts="$folder:$folder","$dir:$dir" --container-workdir="$dir"' in code["pyxis"]
    assert '--bind "$dir:$dir" --pwd "$dir"' in code["apptainer"]
    assert "--pwd" not in _script(scheduler, "ubuntu:22.04", "apptainer")


def test_what_apptainer_would_replace_reaches_the_program(scheduler: SlurmScheduler) -> None:
    """The image sets PATH and LD_LIBRARY_PATH; the role's values arrive, and programs outside ignore them."""
    env = {"PATH": "/own:/bin", "LD_LIBRARY_PATH": "it's", "A": "b"}
    for runtime in ("apptainer", "auto"):
        script = _script(scheduler, "ubuntu:22.04", runtime, env=env)
        for prefix in ("APPTAINERENV", "SINGULARITYENV"):
            assert f"export {prefix}_PATH=/own:/bin\n" in script
            assert f"export {prefix}_LD_LIBRARY_PATH='it'\\''s'\n" in script
        assert "export A=b\n" in script
    assert "export PATH=" not in _script(scheduler, "ubuntu:22.04", "apptainer", env=env)
    assert "APPTAINERENV" not in _script(scheduler, "ubuntu:22.04", "pyxis", env=env)


def _script(scheduler: SlurmScheduler, image: str, runtime: str, **more: Any) -> str:
    app = AppDef("box", [Role("r", image, entrypoint="echo", resource=SMALL, **more)])
    cfg = {"container": runtime, **({"container_image": "/shared/tiny.sif"} if image.startswith("/") else {})}
    return scheduler.submit_dryrun(app, cfg).request.materialize()


def test_secrets_are_in_no_script(scheduler: SlurmScheduler) -> None:
    """`--dryrun` prints the request and Slurm stores the script, so the value is in a file that the steps read."""
    info = scheduler.submit_dryrun(*JOBS["ddp"])
    assert "hf_secret" not in str(info)
    assert "hf_secret" not in repr(info.request)
    assert "hf_secret" not in info.request.materialize()
    assert "hf_secret" in info.request.secrets({})


def test_a_thousand_replicas_in_one_dryrun(scheduler: SlurmScheduler) -> None:
    """The script grows by the differences between replicas, and stays below sbatch's limit (4 MiB)."""
    one, thousand = (
        len(scheduler.submit_dryrun(dist.ddp(script="t.py", j=f"{n}x8"), {}).request.materialize()) for n in (1, 1000)
    )
    assert thousand < (1 << 20)
    assert (thousand - one) / 999 < 600


def test_a_huge_script_is_submitted_by_a_small_one(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """sbatch rejects scripts above 4 MiB, so it gets one that starts the other."""
    fake.on("sbatch", stdout="7\n")
    scheduler.submit(AppDef("big", [role("r", macros.replica_id + "x" * 5000, num_replicas=1000)]), {})
    script = Path(fake.argvs("sbatch")[0][-1])
    text = script.read_text()
    assert len(text) < 1000
    assert "#SBATCH --nodes=1000" in text
    assert text.rstrip().endswith('exec bash "$PWD/job.sh"')
    assert (script.parent / "job.sh").stat().st_size > 4 << 20


def test_the_public_names() -> None:
    """Names that programs import exist, with these fields and signatures."""
    made = SlurmReplicaRequest.from_role("t-1", role("t", "a b", env={"E": "1"}, max_retries=1), {"time": "5"}, False)
    assert (made.name, made.entrypoint, made.args, made.env) == ("t-1", "echo", ["a b"], {"E": "1"})
    assert made.sbatch_opts == {
        "requeue": None,
        "time": "5",
        "ntasks-per-node": "1",
        "cpus-per-task": "1",
        "mem": "100",
    }
    assert made.srun_opts == {"cpus-per-task": "1", "mem": "100"}
    sbatch, srun = made.materialize()
    assert sbatch[:3] == ["--job-name=t-1", "--requeue", "--time=5"]
    assert srun == ["--cpus-per-task=1", "--mem=100", "echo", "'a b'"]
    assert "mem" not in SlurmReplicaRequest.from_role("t-1", role("t"), SlurmOpts(), True).sbatch_opts
    batch = SlurmBatchRequest(cmd=["sbatch"], replicas={"t-1": made}, job_dir=None, max_retries=1)
    assert "echo 'a b'" in batch.materialize()
    assert slurm_scheduler.PIPE == subprocess.PIPE
    assert "time" in slurm_scheduler.SBATCH_GROUP_OPTIONS
    assert "comment" in slurm_scheduler.SBATCH_JOB_OPTIONS
    assert isinstance(create_scheduler("s", unknown=1), SlurmScheduler)


def test_options_with_dashes(scheduler: SlurmScheduler) -> None:
    """`mail-type` and `mail-user` are spelled as in Slurm."""
    names = {name for name, _ in scheduler.run_opts()}
    assert {"mail-type", "mail-user", "partition", "job_dir", "ssh"} <= names
    assert not {"mail_type", "mail_user"} & names
    info = scheduler.submit_dryrun(AppDef("a", [role()]), {"mail-user": "me@x", "mail-type": "END"})
    assert info.request.cmd == ["sbatch", "--parsable", "--mail-type=END", "--mail-user=me@x"]


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        ({"extra": ["--array=1-3"]}, "`--array` is set by torchx"),
        ({"extra": ["nice=1"]}, "not an option of sbatch"),
        ({"replicas_per_node": 0}, "`replicas_per_node` is `0`"),
        ({"container": "podman"}, "`container` is `podman`"),
        ({"partition": "a\nb"}, "`partition` is"),
        ({"job_dir": "a\\b"}, "`job_dir` is"),
    ],
    ids=["array", "no-option", "per-node", "container", "line-end", "backslash"],
)
def test_bad_options_are_refused(scheduler: SlurmScheduler, cfg: dict, words: str) -> None:
    """They are rejected before the submission."""
    with pytest.raises((ConfigError, SpecError), match=words):
        scheduler.submit_dryrun(AppDef("a", [role()]), cfg)


def test_what_no_job_can_have_is_refused(scheduler: SlurmScheduler) -> None:
    """NUL in an argument; an environment variable without a name; a mount without a container."""
    with pytest.raises(SpecError, match="NUL"):
        scheduler.submit_dryrun(AppDef("a", [role("r", "a\0b")]), {})
    with pytest.raises(SpecError, match="environment variable"):
        scheduler.submit_dryrun(AppDef("a", [role(env={"": "x"})]), {})
    with pytest.raises(NotSupportedError, match="does not support mounts"):
        scheduler.submit_dryrun(AppDef("a", [role(mounts=[BindMount("/a", "/b")])]), {})


def test_the_rendezvous_has_another_id_after_a_restart(scheduler: SlurmScheduler) -> None:
    """Elsewhere the job's id stays the same, so that checkpoints are found."""
    app = dist.ddp("--out", macros.app_id, script="t.py", j="2x1")
    script = scheduler.submit_dryrun(app, {}).request.materialize()
    line = next(line for line in script.splitlines() if "--rdzv_id" in line)
    assert "--rdzv_id '\\'''\"${rdzv}\"" in line
    assert line.count('"${SLURM_JOB_ID}"') == 1


# -- submission --------------------------------------------------------------------------------------


def test_submission_writes_a_folder_and_remembers_it(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """The folder contains the script and the job without its secrets; the id leads to it."""
    fake.on("env", "-u", "HF_TOKEN", "sbatch", stdout="7;tst\n")
    assert scheduler.submit(*JOBS["ddp"]) == "7"
    (argv,) = fake.argvs("env")
    folder = Path(argv[-1]).parent
    assert argv[3:-1] == [
        "sbatch",
        "--parsable",
        f"--job-name={folder.name}",
        f"--chdir={folder}",
        f"--output={folder}/slurm.log",
    ]
    assert folder.stat().st_mode & 0o777 == 0o700
    record = json.loads((folder / "job.json").read_text())
    assert record["app"]["roles"][0]["env"]["HF_TOKEN"] == "********"
    assert scheduler.folders(scheduler._here).of("7").path == str(folder)


def test_a_dependency_of_ones_own(scheduler: SlurmScheduler) -> None:
    """It is kept with `--after`: of two options `sbatch` takes the last one."""
    app = AppDef("a", [role()], metadata={AFTER: "ok:slurm://t/5"})
    cmd = scheduler.submit_dryrun(app, {"extra": ["--dependency=singleton"]}).request.cmd
    assert [word for word in cmd if word.startswith("--dependency")][-1] == "--dependency=singleton,afterok:5"


def test_a_script_that_is_too_long_for_sbatch(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """In bytes: a short one starts it from the job's folder."""
    fake.on("sbatch", stdout="7\n")
    scheduler.submit(AppDef("a", [role("w", "\u20ac" * (MAX_SCRIPT // 3))]), {})
    assert Path(fake.argvs("sbatch")[0][-1]).name == "launch.sh"


def test_a_refused_job_leaves_nothing_and_says_what_to_do(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """The error quotes Slurm and has a hint."""
    fake.on("sbatch", returncode=1, stderr="sbatch: error: invalid partition specified: x\nsbatch: error: Batch job")
    with pytest.raises(CommandError) as caught:
        scheduler.submit(AppDef("a", [role()]), {"partition": "x"})
    assert caught.value.hint == "`sinfo` shows the partitions"
    assert not Path(fake.argvs("sbatch")[0][-1]).parent.exists()


def test_memory_is_left_out_when_it_is_refused(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """The second submission is the first without memory."""
    fake.on("sbatch", returncode=1, stderr="sbatch: error: Memory specification can not be satisfied")
    fake.on("sbatch", stdout="8\n")
    fake.on("sinfo", "--noheader", "--format=%m", "--partition=old", stdout="1\n")
    assert "--mem" in str(scheduler.submit_dryrun(AppDef("a", [role()]), {"partition": "old"}))
    assert scheduler.submit(AppDef("a", [role()]), {"partition": "old"}) == "8"
    first, second = fake.argvs("sbatch")
    assert first == second
    assert "--mem" not in Path(second[-1]).read_text()


def test_too_much_memory_is_refused(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """Slurm's message is the same if nodes have less memory: then the job must not start with the default."""
    fake.on("sbatch", returncode=1, stderr="sbatch: error: Memory specification can not be satisfied")
    fake.on("sinfo", "--noheader", "--format=%m", stdout="16000\n64000+\n")
    with pytest.raises(CommandError, match="Memory specification") as caught:
        scheduler.submit(AppDef("a", [role()]), {})
    assert "sinfo" in caught.value.hint
    assert len(fake.argvs("sbatch")) == 1


def test_a_lost_answer_never_makes_a_second_job(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """After a timeout Slurm is queried for the job's name, and has it."""
    fake.on("sbatch", raises=TransientError("`sbatch` did not answer within 60 s"))
    fake.on("squeue", "--noheader", "--states=all", "--me", stdout="9\n")
    assert scheduler.submit(AppDef("a", [role()]), {}) == "9"
    assert len(fake.argvs("sbatch")) == 1
    asked = fake.argvs("squeue")[-1]
    assert asked[-2] == "--name=" + Path(fake.argvs("sbatch")[0][-1]).parent.name
    assert asked[-1] == "--format=%F"  # `%A` of an array is the id of one of its tasks


def test_a_job_that_is_submitted_in_a_job(
    scheduler: SlurmScheduler, fake: FakeCommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It inherits nothing that describes the other job, such as its memory, which `srun` would refuse; only Slurm's
    configuration."""
    for name in ("SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SLURM_RESTART_COUNT", "SLURM_CONF", "SBATCH_ACCOUNT"):
        monkeypatch.setenv(name, "1")
    fake.on("sbatch", stdout="7\n")
    assert scheduler.submit(AppDef("a", [role()]), {}) == "7"
    given = environ("slurm")
    assert {name for name in given if name.startswith(("SB", "SL")) and given[name] == "1"} == {
        "SLURM_CONF",
        "SBATCH_ACCOUNT",
    }


def test_a_relative_job_dir(
    scheduler: SlurmScheduler, fake: FakeCommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts at the folder of submission, and is found from any other folder."""
    monkeypatch.chdir(tmp_path)
    fake.on("sbatch", stdout="7\n")
    scheduler.submit(AppDef("a", [role()]), {"job_dir": "jobs/1"})
    (argv,) = fake.argvs("sbatch")
    folder = Path(argv[-1]).parent
    assert folder.parent == tmp_path / "jobs" / "1" / "torchx-jobs"
    assert argv[3:5] == [f"--chdir={folder}", f"--output={folder}/slurm.log"]
    assert scheduler.folders(scheduler._here).of("7").path == str(folder)


def test_thousands_of_jobs_are_one_question(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """`squeue` is queried for all of the user's jobs, and accounting only for those that it no longer has."""
    fake._scripts.clear()
    fake.on(
        *["env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--states=all", "--me"],
        stdout="".join(row(str(i), "PENDING") for i in range(3000, 5999)),
    )
    fake.on("env", "SLURM_TIME_FORMAT=%s", "squeue", returncode=1, stderr="Invalid job id specified")
    fake.on("env", "SLURM_TIME_FORMAT=%s", "sacct", stdout="")
    found = scheduler.describe_many([str(i) for i in range(3500, 6000)])
    assert [i for i, answer in found.items() if answer is None] == ["5999"]
    assert {answer.state for answer in found.values() if answer} == {AppState.PENDING}
    asked = [argv[2:] for argv in fake.argvs("env")]
    assert [(argv[0], [word for word in argv if word.startswith("--jobs")]) for argv in asked] == [
        ("squeue", []),
        ("squeue", ["--jobs=5999"]),
        ("sacct", ["--jobs=5999"]),
    ]


def test_jobs_that_wait_on_are_not_looked_into_again(
    scheduler: SlurmScheduler, fake: FakeCommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a job that has never started are not read while its record is unchanged; those of others are."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w", num_replicas=2)]))
    fake._scripts = {p: a for p, a in fake._scripts.items() if p[0] != "sbatch"}
    other = submitted(scheduler, fake, AppDef("b", [role()]), "8")
    read: list[str] = []
    whole = LocalFiles.read
    monkeypatch.setattr(LocalFiles, "read", lambda self, path, *more: read.append(path) or whole(self, path, *more))

    def look(*rows: str) -> Any:
        read.clear()
        says(fake, "".join(rows))
        return scheduler.describe_many(["7", "8"])

    waits = row("7", "PENDING", "Priority", folder=str(folder))
    late = row("8", "PENDING", "Resources", folder=str(other), start="99999999999")
    first = look(waits, late)
    assert look(waits, late) == first
    assert (str(folder / "events") in read, str(other / "events") in read) == (False, True)
    assert look(waits.replace("Priority", "Resources"))["7"].msg != first["7"].msg
    (folder / "events").write_text("100 start 0 7\n101 up w/0 n1\n101 up w/1 n2\n105 down w/0 0\n")
    states = [r.state for r in look(row("7", "RUNNING", folder=str(folder)))["7"].roles_statuses[0].replicas]
    assert states == [AppState.SUCCEEDED, AppState.RUNNING]
    for _ in range(2):  # put back into the queue: what it has written may grow
        assert look(row("7", "PENDING", "Priority", folder=str(folder)))["7"].num_restarts == 1
        assert str(folder / "events") in read


def test_a_job_that_was_not_taken_is_submitted_again(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """Slurm does not know the name, so the submission is repeated."""
    fake.on("sbatch", returncode=1, stderr="sbatch: error: Unable to contact slurm controller (connect failure)")
    fake.on("sbatch", stdout="10\n")
    fake.on("squeue", "--noheader", "--states=all", "--me", stdout="")
    assert scheduler.submit(AppDef("a", [role()]), {}) == "10"
    assert len(fake.argvs("sbatch")) == 2


def test_where_there_is_no_slurm() -> None:
    """The error is one clear line, and says how to reach a cluster from here."""
    runner = FakeCommandRunner()
    runner.on("sbatch", raises=CommandError("`sbatch` is not installed", argv=["sbatch"], returncode=127))
    with pytest.raises(CommandError, match="`sbatch` is not installed on this machine") as caught:
        SlurmScheduler("s", commands=runner).submit(AppDef("a", [role()]), {})
    assert "-cfg ssh=" in caught.value.hint


# -- what became of it -------------------------------------------------------------------------------


def submitted(scheduler: SlurmScheduler, fake: FakeCommandRunner, app: AppDef, job_id: str = "7") -> Path:
    """The folder of a job that was submitted."""
    fake.on("sbatch", stdout=f"{job_id}\n")
    scheduler.submit(app, {})
    return Path(fake.argvs("sbatch")[-1][-1]).parent


def says(fake: FakeCommandRunner, text: str, steps: str = "") -> None:
    """Sets Slurm's answers."""
    fake._scripts = {p: a for p, a in fake._scripts.items() if p[-1] not in ("squeue", "sacct")}
    fake.on("env", "SLURM_TIME_FORMAT=%s", "squeue", stdout=text)
    fake.on("env", "SLURM_TIME_FORMAT=%s", "sacct", stdout=steps)
    fake.on("scontrol", "show", "config", stdout="KillWait                = 30 sec\n")


def test_a_job_is_described_by_slurm_and_by_its_folder(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """State, hosts and roles; a job that another program submitted has a state."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w x", num_replicas=2)]))
    (folder / "events").write_text("100 start 0 7\n101 up w%20x/0 n1\n101 up w%20x/1 n2\n105 down w%20x/0 0\n")
    says(
        fake, row("7", "RUNNING", folder=str(folder), start="100") + row("8_3", "PENDING", "Priority", name="not ours")
    )
    found = scheduler.describe_many(["7", "8_3", "9", "nonsense"])
    job = found["7"]
    assert job is not None
    assert (job.state, job.started_at, job.roles[0].num_replicas) == (AppState.RUNNING, 100.0, 2)
    states = [(r.state, r.hostname) for r in job.roles_statuses[0].replicas]
    assert states == [(AppState.SUCCEEDED, "n1"), (AppState.RUNNING, "n2")]
    other = found["8_3"]
    assert other is not None
    assert other.msg == "jobs of higher priority go first (Priority)"
    assert found["9"] is found["nonsense"] is None
    assert "--jobs=9" in [argv for argv in fake.argvs("env") if "sacct" in argv][-1]


def test_the_first_failure_is_the_cause(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """The replica that was stopped because of it, and the one that lost its peer, are not blamed."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w", num_replicas=3)]))
    for k, text in ((0, "RuntimeError: Connection closed by peer [n2]"), (1, "ValueError: boom"), (2, "")):
        (folder / "w" / str(k)).mkdir(parents=True)
        (folder / "w" / str(k) / "stderr.log").write_text(f"Traceback (most recent call last):\n  x\n{text}\n")
    ups = "".join(f"101 up w/{k} n{k}\n" for k in range(3))
    (folder / "events").write_text(f"100 start 0 7\n{ups}110 down w/0 1\n110 down w/1 1\n112 down w/2 143\n112 end 1\n")
    says(fake, row("7", "FAILED", "NonZeroExitCode", status=256, folder=str(folder)))
    job = scheduler.describe("7")
    assert job is not None
    assert job.msg == "w/1 on n1: exit code 1: ValueError: boom"
    assert [str(r.state) for r in job.roles_statuses[0].replicas] == ["FAILED", "FAILED", "CANCELLED"]
    assert "ValueError: boom" in job.structured_error_msg


def test_the_victim_that_died_first_is_not_blamed(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """Rank 0 lost its peer a second before rank 1 reported why: rank 1 is the cause, by one query for both."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w", num_replicas=2)]))
    for k, text in ((0, "RuntimeError: Connection closed by peer"), (1, "ValueError: bad batch")):
        (folder / "w" / str(k)).mkdir(parents=True)
        (folder / "w" / str(k) / "stderr.log").write_text(f"Traceback (most recent call last):\n  x\n{text}\n")
    ups = "".join(f"1 up w/{k} n{k}\n" for k in range(2))
    (folder / "events").write_text(f"1 start 0 7\n{ups}10 down w/0 1\n11 down w/1 1\n12 end 1\n")
    says(fake, row("7", "FAILED", "NonZeroExitCode", status=256, folder=str(folder)))
    looks = counting_looks(scheduler)
    job = scheduler.describe("7")
    assert job is not None
    assert job.msg == "w/1 on n1: exit code 1: ValueError: bad batch"
    failure = parse_failure(job.structured_error_msg)
    assert failure is not None
    assert (failure.kind, failure.role, failure.replica) == ("error", "w", 1)
    assert len([paths for paths in looks if any("stderr.log" in path for path in paths)]) == 1


def counting_looks(scheduler: SlurmScheduler) -> list[list[str]]:
    """The paths of each further query for files."""
    looks: list[list[str]] = []

    class Counting(LocalFiles):
        def grown(self, offsets: Mapping[str, int], wait_s: float = 0) -> dict[str, bytes]:
            looks.append([*offsets])
            return super().grown(offsets, wait_s)

    scheduler._here = Site(scheduler._here.commands, Counting())
    scheduler._asked.clear()
    return looks


def test_many_failed_replicas_are_one_look(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """One query reads the files of eight replicas; stdout counts if stderr is empty."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w", num_replicas=8)]))
    for k in range(8):
        (folder / "w" / str(k)).mkdir(parents=True)
        (folder / "w" / str(k) / "stdout.log").write_text("fatal: no disk\n")
    events = "".join(f"101 up w/{k} n{k}\n{110 + k} down w/{k} 1\n" for k in range(8))
    (folder / "events").write_text(f"100 start 0 7\n{events}120 end 1\n")
    says(fake, row("7", "FAILED", "NonZeroExitCode", status=256, folder=str(folder)))
    looks = counting_looks(scheduler)
    job = scheduler.describe("7")
    assert job is not None
    assert job.msg == "w/0 on n0: exit code 1: fatal: no disk"
    assert len(looks) == 3  # markers; job and notes; error files, stderr, stdout, what Slurm said


ENDING = "100 start 0 7\n101 up w/0 n0\n101 up w/1 n1\n"


@pytest.mark.parametrize(
    ("events", "squeue", "sacct", "state", "msg", "replicas"),
    [
        ("110 down w/1 3\n", "RUNNING", "", "RUNNING", "w/1 on n1: exit code 3; the others are being ended", "RUNNING FAILED"),
        ("110 down w/1 3\n", "COMPLETING", "FAILED", "RUNNING", "w/1 on n1: exit code 3; the others are being ended", "RUNNING FAILED"),
        ("110 down w/1 3\n112 down w/0 143\n112 end 3\n", "COMPLETING", "FAILED", "FAILED", "w/1 on n1: exit code 3", "CANCELLED FAILED"),
        ("", "COMPLETING", "CANCELLED by 0", "RUNNING", "cancelling", "RUNNING RUNNING"),
        ("150 down w/1 143\n", "COMPLETING", "CANCELLED by 0", "RUNNING", "cancelling", "RUNNING CANCELLED"),
        ("150 down w/1 143\n", "COMPLETING", "", "RUNNING", "cancelling", "RUNNING CANCELLED"),
        ("150 down w/1 143\n151 down w/0 0\n151 end 0\n", "COMPLETING", "CANCELLED by 0", "CANCELLED", "<NONE>", "CANCELLED CANCELLED"),
        ("", "CANCELLED", "", "CANCELLED", "<NONE>", "CANCELLED CANCELLED"),
        ("110 down w/0 143\n110 down w/1 143\n", "COMPLETING", "TIMEOUT", "FAILED", "it reached its time limit", "CANCELLED CANCELLED"),
        ("110 down w/0 143\n", "COMPLETING", "TIMEOUT", "RUNNING", "it reached its time limit; the others are being ended", "CANCELLED RUNNING"),
    ],
    ids=["failing", "failing-completing", "failed", "cancel", "cancel-one", "cancel-no-accounting", "cancel-all", "cancelled", "limit", "limit-one"],
)  # fmt: skip
def test_a_job_that_is_ending_says_nothing_that_contradicts_itself(
    scheduler: SlurmScheduler, fake: FakeCommandRunner, events: str, squeue: str, sacct: str, state: str, msg: str, replicas: str
) -> None:  # fmt: skip
    """It runs while one of its replicas does, with a message; `list` reports the same state."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w", num_replicas=2)]))
    (folder / "events").write_text(ENDING + events)
    cells = ["7", sacct, "", "100", "100", "150", "0:15", "n[0-1]", "", "", "me", str(folder), "job"]
    accounted = SEPARATOR.join(cells) + "\n" if sacct else ""
    says(fake, row("7", squeue, folder=str(folder), start="100", end="150"), accounted)
    job = scheduler.describe("7")
    assert job is not None
    assert (job.state.name, job.msg) == (state, msg)
    assert " ".join(r.state.name for r in job.roles_statuses[0].replicas) == replicas
    assert [found.state for found in scheduler.list()] == [job.state]


def test_a_job_that_is_being_cancelled_says_when_slurm_kills_it(
    scheduler: SlurmScheduler, fake: FakeCommandRunner
) -> None:
    """The end that Slurm writes at once is when SIGTERM was sent; SIGKILL follows after its `KillWait`."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w", num_replicas=2)]))
    (folder / "events").write_text(ENDING)
    end = f"{time.time() - 10:.0f}"
    accounted = ["7", "CANCELLED by 0", "", "100", "100", end, "0:15", "n[0-1]", "", "", "me", str(folder), "job"]
    says(fake, row("7", "COMPLETING", folder=str(folder), start="100", end=end), SEPARATOR.join(accounted) + "\n")
    job = scheduler.describe("7")
    assert job is not None
    assert re.fullmatch("cancelling, SIGKILL in (18|19|20) s", job.msg)


def test_a_failure_that_is_made_good_is_no_end(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """While there are retries left a failed replica is restarted; after the last one the others are ended."""
    again = role("w", num_replicas=2, max_retries=1, retry_policy=RetryPolicy.REPLICA)
    folder = submitted(scheduler, fake, AppDef("a", [again]))
    says(fake, row("7", "RUNNING", folder=str(folder), start="100"))
    (folder / "events").write_text(ENDING + "110 down w/1 3\n")
    told = scheduler.describe("7")
    assert told is not None
    assert (told.state, told.msg) == (AppState.RUNNING, "w/1 failed and is being restarted: exit code 3")
    (folder / "events").write_text(ENDING + "110 down w/1 3\n111 again w/1\n111 up w/1 n1\n120 down w/1 4\n")
    told = scheduler.describe("7")
    assert told is not None
    assert told.msg == "w/1 on n1: exit code 4; the others are being ended"


@pytest.mark.parametrize("n", [1, 16, 64])
def test_the_logs_of_many_replicas_cost_no_command(scheduler: SlurmScheduler, fake: FakeCommandRunner, n: int) -> None:
    """The job's folder lists the replicas and their logs: Slurm is not queried, however many they are."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w", num_replicas=n)]))
    for k in range(n):
        (folder / "w" / str(k)).mkdir(parents=True)
        (folder / "w" / str(k) / "stdout.log").write_text(f"hello {k}\n")
    asked = len(fake.calls)
    replicas = scheduler.log_replicas("7")
    assert replicas == [("w", k) for k in range(n)]
    logs = scheduler.open_logs("7", replicas, LogQuery())
    assert [list(lines) for lines in logs] == [[f"hello {k}\n"] for k in range(n)]
    assert len(fake.calls) == asked


@pytest.mark.parametrize(
    ("log", "steps", "words"),
    [
        (
            "slurmstepd: error: StepId=7.0 exceeded memory limit (642875392 > 209715200), being killed\n",
            "",
            "used 613 MiB",
        ),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n",
            "",
            "out of memory",
        ),
        ("", "627808K", "probably out of memory: a step used 613 MiB, and 100 MiB were asked for"),
        ("", "10K", ""),
    ],
    ids=["gather", "cgroup", "step-record", "not-memory"],
)
def test_out_of_memory_is_named(
    scheduler: SlurmScheduler, fake: FakeCommandRunner, log: str, steps: str, words: str
) -> None:
    """slurmstepd's message or Slurm's record of the step shows it; signal 9 alone does not."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w")]))
    (folder / "w" / "0").mkdir(parents=True)
    (folder / "w" / "0" / "srun.log").write_text(log)
    (folder / "events").write_text("100 start 0 7\n101 up w/0 n1\n110 down w/0 137\n110 end 137\n")
    cells = ["7.0", "CANCELLED", "", "1", "1", "1", "0:9", "n1", steps, "", "", "", "sh"]
    says(fake, row("7", "FAILED", "NonZeroExitCode", status=137 << 8, folder=str(folder)), SEPARATOR.join(cells) + "\n")
    job = scheduler.describe("7")
    assert job is not None
    assert "killed by SIGKILL" in job.msg
    assert words in job.msg
    assert ("memory" in job.msg.replace("(often: out of memory)", "")) == bool(words)


@pytest.mark.parametrize(
    ("code", "words"),
    [(255, "exit code 255"), (193, "exit code 193"), (137, "killed by SIGKILL (often: out of memory)")],
)
def test_a_high_exit_code_is_no_signal(
    scheduler: SlurmScheduler, fake: FakeCommandRunner, code: int, words: str
) -> None:
    """`sys.exit(-1)`, and apptainer when it cannot start: there is no signal 127."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w")]))
    (folder / "events").write_text(f"100 start 0 7\n101 up w/0 n1\n110 down w/0 {code}\n110 end {code}\n")
    says(fake, row("7", "FAILED", "NonZeroExitCode", status=code << 8, folder=str(folder)))
    job = scheduler.describe("7")
    assert job is not None
    assert job.msg == f"w/0 on n1: {words}"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", "out of memory"),
        ("Traceback (most recent call last):\nRuntimeError: worker died\n", "out of memory: RuntimeError: worker died"),
    ],
)
def test_out_of_memory_without_a_signal(
    scheduler: SlurmScheduler, fake: FakeCommandRunner, said: str, words: str
) -> None:
    """With cgroups `srun` exits with 1, as in Slurm 24.11, and the program may have lost only a child."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w")]))
    (folder / "w" / "0").mkdir(parents=True)
    (folder / "w" / "0" / "srun.log").write_text(
        "slurmstepd-n1: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
        "srun: error: n1: task 0: Out Of Memory\n"
    )
    (folder / "w" / "0" / "stderr.log").write_text(said)
    (folder / "events").write_text("100 start 0 7\n101 up w/0 n1\n110 down w/0 1\n110 end 1\n")
    says(fake, row("7", "FAILED", "NonZeroExitCode", status=1 << 8, folder=str(folder)))
    job = scheduler.describe("7")
    assert job is not None
    assert job.msg == f"w/0 on n1: exit code 1: {words}"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("TIMEOUT", "it reached its time limit"),
        ("NODE_FAIL", "a node failed while it ran: n2"),
        ("PREEMPTED", "it was preempted by a job of higher priority"),
        ("OUT_OF_MEMORY", "it needed more memory than it had asked for"),
        ("DEADLINE", "it could not end before its deadline"),
        ("BOOT_FAIL", "a node could not be booted"),
    ],
)
def test_each_way_to_end_has_its_sentence(
    scheduler: SlurmScheduler, fake: FakeCommandRunner, state: str, words: str
) -> None:
    """Slurm's own states of failure."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w", num_replicas=2)]))
    (folder / "w" / "1").mkdir(parents=True)
    (folder / "w" / "1" / "srun.log").write_text("srun: error: Node failure on n2\n")
    (folder / "events").write_text("100 start 0 7\n101 up w/0 n1\n101 up w/1 n2\n105 down w/1 1\n")
    says(fake, row("7", state, folder=str(folder), nodes="n[1-2]"))
    job = scheduler.describe("7")
    assert job is not None
    assert job.state is AppState.FAILED
    assert words in job.msg
    # the exit code of a replica that its node, or a job of higher priority, took down says nothing
    assert ("exit code" in job.msg) == (state in ("TIMEOUT", "OUT_OF_MEMORY", "DEADLINE"))


def test_a_job_that_slurm_has_forgotten(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """Without accounting its own events show how it ended, if it recorded that."""
    folder = submitted(scheduler, fake, AppDef("a", [role("w")]))
    fake.on("env", "SLURM_TIME_FORMAT=%s", "sacct", returncode=1, stderr="Slurm accounting storage is disabled")
    assert scheduler.describe("7").state is AppState.UNKNOWN
    assert "never started" in scheduler.describe("7").msg
    (folder / "events").write_text("100 start 0 7\n101 up w/0 n1\n105 down w/0 0\n105 end 0\n")
    assert scheduler.describe("7").state is AppState.SUCCEEDED
    (folder / "events").write_text("100 start 0 7\n101 up w/0 n1\n105 down w/0 3\n105 end 3\n")
    job = scheduler.describe("7")
    assert job.state is AppState.FAILED
    assert job.msg == "w/0 on n1: exit code 3"
    assert len([argv for argv in fake.argvs("env") if "sacct" in argv]) == 2  # it says so once, and is not asked again


def test_deleted_jobs_are_not_shown_again(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """Slurm still reports them, but their folder is gone."""
    folder = submitted(scheduler, fake, AppDef("a", [role()]))
    says(fake, row("7", "COMPLETED", folder=str(folder)))
    assert [job.app_id for job in scheduler.list()] == ["7"]
    scheduler.delete("7")
    assert not folder.exists()
    assert scheduler.describe("7") is None
    assert scheduler.list() == []


def test_logs_of_earlier_versions_are_found(
    scheduler: SlurmScheduler, fake: FakeCommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`.torchxslurmjobdirs` in the current folder leads to the folder of an old job, which is never removed."""
    monkeypatch.chdir(tmp_path)
    old = tmp_path / "old"
    old.mkdir()
    (old / "slurm-5-w-0.out").write_text("out\n")
    (old / "slurm-5-w-0.err").write_text("err\n")
    Path(slurm_scheduler.SLURM_JOB_DIRS).write_text(f"4 = /elsewhere\n5 = {old}\n")
    says(fake, row("5", "COMPLETED", folder=str(tmp_path)))
    assert list(scheduler.log_iter("5", "w", 0)) == ["out\n", "err\n"]
    scheduler.delete("5")
    assert old.exists()


def test_a_restarting_controller_is_waited_for(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """Queries are retried while Slurm does not answer."""
    fake._scripts = {p: a for p, a in fake._scripts.items() if p[-1] != "squeue"}
    down = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    for _ in range(3):
        fake.on("env", "SLURM_TIME_FORMAT=%s", "squeue", returncode=1, stderr=down)
    fake.on("env", "SLURM_TIME_FORMAT=%s", "squeue", stdout=row("7", "RUNNING"))
    assert scheduler.describe("7").state is AppState.RUNNING


def test_cancel_is_quiet_when_it_is_over(scheduler: SlurmScheduler, fake: FakeCommandRunner) -> None:
    """A job that has just ended is not an error; other failures are."""
    says(fake, row("7", "RUNNING"))
    scheduler.cancel("7")
    fake._scripts = {p: a for p, a in fake._scripts.items() if p != ("scancel",)}
    fake.on("scancel", returncode=1, stderr="scancel: error: Kill job error on job id 7: Access/permission denied")
    with pytest.raises(CommandError, match="permission denied"):
        scheduler.cancel("7")


@pytest.mark.parametrize(
    ("cfg", "word"), [({}, ""), ({"requeue": "yes"}, "--requeue"), ({"requeue": "no"}, "--no-requeue")]
)
def test_who_decides_on_a_requeue(scheduler: SlurmScheduler, cfg: dict[str, str], word: str) -> None:
    """The site, unless the user does; jobs with retries are always requeued."""
    shown = [
        w for w in str(scheduler.submit_dryrun(AppDef("a", [role()]), cfg)).split() if "requeue" in w and w[0] == "-"
    ]
    assert shown == ([word] if word else [])
    retried = str(scheduler.submit_dryrun(AppDef("a", [role(max_retries=1)]), {**cfg, "requeue": "no"}))
    assert " --requeue" in retried
    assert "--no-requeue" not in retried


def test_a_requeue_that_is_none(scheduler: SlurmScheduler) -> None:
    """Other values are rejected, with the valid ones."""
    with pytest.raises(SpecError, match="`requeue` is `maybe`, not one of auto, yes, no"):
        scheduler.submit_dryrun(AppDef("a", [role()]), {"requeue": "maybe"})
