"""The backend with scripted answers, recorded from Son of Grid Engine 8.1.9: nothing has to be installed."""

import os
from pathlib import Path
from typing import Any

import pytest
from torchx_gridengine import STATES, GridEngineScheduler, app_state
from torchx_gridengine.answers import parse_qacct, parse_qstat

from torchx.errors import CommandError, NotSupportedError
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.commands import Completed
from torchx.specs import AppDef, AppState, Resource, RetryPolicy, Role
from torchx.testing import Call, CommandContract, FakeCommandRunner, Recordings, SchedulerContract

recorded = Recordings(os.path.join(os.path.dirname(__file__), "recorded"))


def read(name: str) -> str:
    return recorded.read("gridengine", "8.1.9", name)


class Cluster(FakeCommandRunner):
    """Takes any job, and then shows it as running."""

    def __init__(self) -> None:
        super().__init__()
        self.on("qsub", stdout="7.1-1:1\n")
        self.on("qstat", stdout=self.qstat)
        self.on("qacct", returncode=1, stderr="error: job id 7 not found")
        self.on("qdel", stdout="root has registered the job 7 for deletion")

    def qstat(self, _: Call) -> str:
        names = [argv[argv.index("-N") + 1] for argv in self.argvs("qsub")]
        text = read("qstat.xml")
        return text.replace("train-x1", names[-1]) if names else text


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def scheduler_on(commands: Any) -> GridEngineScheduler:
    made = GridEngineScheduler("test", commands=commands, sleep=lambda _: None)
    made.fresh_s = 0
    return made


class TestContract(SchedulerContract):
    """What every scheduler promises, as far as nothing has to run."""

    raw_states = STATES
    name_rule = r"[A-Za-z][A-Za-z0-9_-]{0,80}"

    def create_scheduler(self, folder: str) -> Scheduler[Any]:  # noqa: ARG002  # jobs lie in TORCHX_HOME
        return scheduler_on(Cluster())

    def map_state(self, raw: str) -> AppState:
        return app_state(raw)


class TestTrouble(CommandContract):
    """What every command-driven backend promises when its commands are in trouble."""

    submit_argv = ("qsub",)
    query_argv = ("qstat",)

    def cluster(self) -> FakeCommandRunner:
        return Cluster()

    def create_scheduler(self, commands: Any) -> Scheduler[Any]:
        return scheduler_on(commands)


def app(n: int = 1, **role: Any) -> AppDef:
    return AppDef("job", [Role("w", "/", entrypoint="true", num_replicas=n, resource=Resource(2, 0, 64), **role)])


def leave(scheduler: GridEngineScheduler, app_id: str, k: int, **files: str) -> None:
    """What a replica writes down as it runs."""
    folder = scheduler.folders(scheduler._here).of(app_id)
    assert folder is not None
    os.makedirs(folder.replica("w", k), exist_ok=True)
    for name, text in files.items():
        Path(folder.replica("w", k), name.replace("_log", ".log")).write_text(text)


def test_recorded_qstat() -> None:
    """Each task is a row with its state."""
    assert [(r.name, r.task, r.state) for r in parse_qstat(read("qstat.xml"))] == [
        *(("train-x1", 1, "r"), ("train-x1", 2, "r"), ("limit-x4", 1, "r"), ("dead-x5", 1, "r")),
        *(("broken-x3", 1, "Eqw"), ("held-x2", 1, "hqw"), ("held-x2", 2, "hqw")),
    ]
    assert parse_qstat(read("qstat-empty.xml")) == []


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("train-x1", {1: ("0", 1), 2: ("0", 2)}),
        ("limit-x4", {1: ("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", 137)}),
        ("dead-x5", {1: ("100 : assumedly after job", 137)}),
    ],
)
def test_recorded_qacct(name: str, found: dict[int, tuple[str, int]]) -> None:
    """How each task failed, and its exit status."""
    assert parse_qacct(read(f"qacct-{name}.txt")) == found


def test_the_command(cluster: Cluster) -> None:
    """Options become words of qsub; the script lies in the job's folder, for its user alone."""
    cfg = {"queue": "a.q", "project": "p", "time": "60", "resources": ["gpu=1", "mem_free=8G"], "pe": "smp"}
    app_id = scheduler_on(cluster).submit(app(3), cfg)
    (argv,) = cluster.argvs("qsub")
    assert argv[:6] == ["qsub", "-terse", "-N", app_id, "-t", "1-3"]
    line = " ".join(argv)
    assert "-q a.q -P p -l gpu=1 -l mem_free=8G -l h_rt=60 -pe smp 2 -b y -shell n /bin/sh" in line
    assert os.stat(argv[-1]).st_mode & 0o777 == 0o600


def test_a_replica_that_failed_is_the_cause(cluster: Cluster) -> None:
    """The job goes on until the others have ended; then it is FAILED, with exit code and last words of the first."""
    scheduler = scheduler_on(cluster)
    app_id = scheduler.submit(app(2), {})
    leave(scheduler, app_id, 1, started="100 node2", exit="3 1 160", stderr_log="Traceback ...\nKeyError: 'x'\n")
    found = scheduler.describe(app_id)
    assert found is not None
    said = "w/1 on node2: exit code 3: KeyError: 'x'"
    assert (found.state, found.msg) == (AppState.RUNNING, f"{said}; the others are being ended")
    cluster.on("qstat", "-u", stdout=read("qstat-empty.xml"))
    cluster.on("qacct", "-j", stdout=read("qacct-dead-x5.txt"))
    found = scheduler.describe(app_id)
    assert found is not None
    assert (found.state, found.started_at, found.ended_at) == (AppState.FAILED, 100.0, 160.0)
    assert [(r.id, r.state.name, r.hostname) for r in found.roles_statuses[0].replicas] == [
        (0, "CANCELLED", ""),
        (1, "FAILED", "node2"),
    ]
    assert found.msg == said


@pytest.mark.parametrize(
    ("account", "state", "msg"),
    [
        ("qacct-limit-x4.txt", AppState.FAILED, "w/0: Grid Engine: qmaster enforced h_rt, h_cpu, or h_vmem limit"),
        ("qacct-dead-x5.txt", AppState.CANCELLED, "deleted with qdel, or killed on its host"),
    ],
    ids=["limit", "qdel"],
)
def test_a_replica_that_left_no_word(cluster: Cluster, account: str, state: AppState, msg: str) -> None:
    """Grid Engine's accounting says what became of it: a limit is a failure, anything else that killed it is not."""
    scheduler = scheduler_on(cluster)
    app_id = scheduler.submit(app(), {})
    cluster.on("qstat", "-u", stdout=read("qstat-empty.xml"))
    cluster.on("qacct", "-j", stdout=read(account))
    found = scheduler.describe(app_id)
    assert found is not None
    assert (found.state, found.msg) == (state, msg)


def test_a_held_job_says_so(cluster: Cluster) -> None:
    """A task that Grid Engine could not start is PENDING, and the message says how to go on."""
    scheduler = scheduler_on(cluster)
    app_id = scheduler.submit(app(), {})
    cluster.on("qstat", "-u", stdout=read("qstat.xml").replace("broken-x3", app_id))
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.state is AppState.PENDING
    assert "`qmod -cj` lets it try again" in found.msg


def test_a_refusal_is_in_its_words() -> None:
    """What qsub says, without its frame."""
    said = 'Unable to run job: Job was rejected because job requests unknown queue "x"\nExiting.\n'
    cluster = FakeCommandRunner()
    cluster.on("qsub", returncode=1, stderr=said)
    with pytest.raises(CommandError, match=r'refused the job: Job .* unknown queue "x"$'):
        scheduler_on(cluster).submit(app(), {})


def test_other_retries_are_refused(cluster: Cluster) -> None:
    """Only REPLICA; the hint says what to set."""
    with pytest.raises(NotSupportedError) as caught:
        scheduler_on(cluster).submit_dryrun(app(max_retries=1, retry_policy=RetryPolicy.ROLE), {})
    assert "RetryPolicy.REPLICA" in caught.value.hint


def test_cancelling_what_is_gone_is_quiet(cluster: Cluster) -> None:
    """Grid Engine's `does not exist` is no error; a refusal is one."""
    scheduler = scheduler_on(cluster)
    scheduler._accept_cancel(Completed(["qdel"], 1, 'denied: job "7" does not exist\n'))
    with pytest.raises(CommandError):
        scheduler._accept_cancel(Completed(["qdel"], 1, "", "denied: you are not the owner"))
