"""Behaviours that programs written against earlier versions rely on, and that no error would tell them of."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from torchx.components.dist import ddp, spmd
from torchx.errors import TorchXError
from torchx.runner import Runner, get_runner
from torchx.runner.api import get_configured_trackers
from torchx.runtime.tracking import FsspecResultTracker
from torchx.schedulers import get_scheduler_factories
from torchx.schedulers.api import DescribeAppResponse, Scheduler
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.schedulers.local_scheduler import LogIterator
from torchx.specs import AppDef, AppDryRunInfo, AppState, AppStatus, CfgVal, Role, resource


def app() -> AppDef:
    return AppDef("a", [Role("r", "/tmp", entrypoint="true")])


def environment(**kwargs: Any) -> dict[str, str]:
    """What a role is given on its way through a dry run."""
    with get_runner() as runner:
        dryrun = runner.dryrun(app(), "local_cwd", **kwargs)
    assert dryrun._app is not None
    return dryrun._app.roles[0].env


def test_ddp_with_one_number() -> None:
    """`-j 2` is one node with two workers; of `dist.spmd` it is two nodes."""
    assert ddp(script="a.py", j="2").roles[0].num_replicas == 1
    assert "--nproc_per_node 2" in ddp(script="a.py", j="2").roles[0].args[1]
    assert spmd(script="a.py", j="2").roles[0].num_replicas == 2


def test_resources() -> None:
    """Two CPUs and a GiB, unless something else is said."""
    assert (resource().cpu, resource(gpu=1).cpu, resource(memMB=2).cpu, resource(cpu=1).cpu) == (2, 2, 2, 1)
    assert (resource().gpu, resource().memMB) == (0, 1024)


@pytest.mark.parametrize("component", [ddp, spmd])
def test_environment_of_distributed_jobs(component: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The level of torchrun's log and the names for trackers; what the user gives is stronger."""
    monkeypatch.delenv("LOGLEVEL", raising=False)
    env = component(script="a.py", name="exp/run").roles[0].env
    assert (env["TORCHX_TRACKING_EXPERIMENT_NAME"], env["TORCHX_TRACKING_RUN_NAME"]) == ("exp", "run")
    assert env["LOGLEVEL"] == "WARNING"
    monkeypatch.setenv("LOGLEVEL", "DEBUG")
    assert component(script="a.py").roles[0].env["LOGLEVEL"] == "DEBUG"
    assert component(script="a.py").roles[0].env["TORCHX_TRACKING_RUN_NAME"] == "a"
    assert component(script="a.py", env={"LOGLEVEL": "ERROR"}).roles[0].env["LOGLEVEL"] == "ERROR"


def test_trackers_of_the_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Variables that name trackers and the parent reach the job, and go before the config file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".torchxconfig").write_text("[torchx:tracker]\nfsspec =\n[tracker:fsspec]\nconfig = x\n")
    assert environment()["TORCHX_TRACKERS"] == "fsspec"
    monkeypatch.setenv("TORCHX_TRACKERS", "mine,other")
    monkeypatch.setenv("TORCHX_TRACKER_MINE_CONFIG", "where")
    monkeypatch.setenv("TORCHX_PARENT_RUN_ID", "parent")
    env = environment()
    assert (env["TORCHX_TRACKERS"], env["TORCHX_TRACKER_MINE_CONFIG"]) == ("mine,other", "where")
    assert env["TORCHX_PARENT_RUN_ID"] == "parent"
    assert environment(parent_run_id="given")["TORCHX_PARENT_RUN_ID"] == "given"
    assert get_configured_trackers() == {"mine": "where", "other": None}


def test_results_by_key(tmp_path: Path) -> None:
    """A tracker of results is read and written like a dictionary."""
    pytest.importorskip("fsspec")
    tracker = FsspecResultTracker(f"file://{tmp_path}")
    tracker["trial"] = {"loss": 0.5}
    assert tracker["trial"] == tracker.get("trial") == {"loss": 0.5}
    assert tracker["missing"] == {}


def test_status_as_json() -> None:
    """The keys that programs read."""
    status = AppStatus(AppState.RUNNING, ui_url="http://x")
    assert json.loads(json.dumps(status.to_json())) == {
        "state": "RUNNING",
        "num_restarts": 0,
        "roles": [],
        "msg": "",
        "structured_error_msg": "<NONE>",
        "url": "http://x",
    }


def test_session_without_a_name() -> None:
    """It stays empty: programs build handles such as ``slurm:///ID``."""
    with Runner("") as runner:
        assert runner.name() == ""


class TwoArguments(Scheduler[Mapping[str, CfgVal]]):
    """As it was written when `_validate` had no run options."""

    seen: tuple[str, str] | None = None

    def __init__(self, session_name: str, **_: object) -> None:
        super().__init__("two", session_name)

    def _validate(self, app: AppDef, scheduler: str) -> None:  # type: ignore[override]  # that is the point
        super()._validate(app, scheduler)  # type: ignore[call-arg]  # as above
        type(self).seen = (app.name, scheduler)

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[str]:
        return AppDryRunInfo(app.name, repr)

    def schedule(self, dryrun_info: AppDryRunInfo[str]) -> str:
        return dryrun_info.request

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        return None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> Any:
        return []

    def _cancel_existing(self, app_id: str) -> None: ...


def test_validate_with_two_arguments() -> None:
    """It may be overridden, and called, without the run options; with them, too."""
    with Runner("s", {"two": TwoArguments}) as runner:
        runner.dryrun(app(), "two")
    assert TwoArguments.seen == ("a", "two")
    assert TwoArguments("s").submit(app(), {}) == "a"
    for name in ("docker", "local", "aws_sagemaker", "slurm"):
        module = __import__(f"torchx.schedulers.{name}_scheduler", fromlist=["create_scheduler"])
        module.create_scheduler("s")._validate(app(), name)


class OwnJobs(DockerScheduler):
    """A program's own jobs on the engine: it knows them by its `describe` alone."""

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        state = self._get_app_state(Container("exited", {"State": {"ExitCode": 0}}))
        return DescribeAppResponse(app_id, state, roles=[Role("r", "i")]) if app_id == "mine" else None


class Container:
    """What `docker` returns for one."""

    def __init__(self, status: str, attrs: dict[str, Any]) -> None:
        self.status, self.attrs = status, attrs


def test_a_describe_of_ones_own_is_asked() -> None:
    """Whether there is such a job, and what replicas it has, is not looked up behind it."""
    scheduler = OwnJobs("s")
    assert scheduler.exists("mine")
    assert not scheduler.exists("other")
    assert scheduler.log_replicas("mine") == [("r", 0)]
    assert scheduler.log_replicas("other") is None
    assert scheduler.describe_many(["mine"])["mine"] == scheduler.describe("mine")


@pytest.mark.parametrize("name", ["slurm", "lsf", "kubernetes", "local_docker", "local_cwd"])
def test_a_describe_of_ones_own_may_call_ours(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is asked once for a job, and ours looks: where there is no such backend, ours says so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    asked = []
    base = type(get_scheduler_factories()[name]("s"))

    class Own(base):  # type: ignore[misc, valid-type]
        def describe(self, app_id: str) -> DescribeAppResponse | None:
            asked.append(app_id)
            return super().describe(app_id)

    for verb in ("describe", "describe_many"):
        asked.clear()
        scheduler = Own.__new__(Own)
        scheduler.__dict__.update(get_scheduler_factories()[name]("s").__dict__)
        job = "default:j" if name == "kubernetes" else "4711"
        with contextlib.suppress(TorchXError):
            getattr(scheduler, verb)(job if verb == "describe" else [job])
        assert asked == [job]


@pytest.mark.parametrize(
    ("status", "code", "state"),
    [
        ("exited", 0, AppState.SUCCEEDED),
        ("exited", 3, AppState.FAILED),
        ("running", 0, AppState.RUNNING),
        ("created", 0, AppState.SUBMITTED),
        ("something new", 0, AppState.UNKNOWN),
    ],
)
def test_state_of_a_container(status: str, code: int, state: AppState) -> None:
    """Subclasses of the Docker scheduler ask for it."""
    assert DockerScheduler("s")._get_app_state(Container(status, {"State": {"ExitCode": code}})) is state


def test_modules_that_were_there() -> None:
    """They can be imported."""
    code = (
        "import torchx, torchx.pipelines; from torchx.version import TORCHX_IMAGE; assert TORCHX_IMAGE == torchx.IMAGE;"
        "from torchx.notebook import get_workspace, WORKSPACE; assert get_workspace() == WORKSPACE;"
        "from torchx.util.entrypoints import load, load_group; assert load('no.group', 'x', default=3) == 3"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class OwnLog(LogIterator):
    """As programs write it: it sets what it knows, and fetches the file when the job is asked for."""

    def __init__(self, log_file: Path, scheduler: Scheduler[Any]) -> None:
        self._app_id, self._log_file, self._log_fp, self._scheduler = "job", "not known yet", None, scheduler
        self._app_finished = False
        self._fetched, self._asked = log_file, 0

    def _check_finished(self) -> None:
        self._asked += 1
        if self._asked == 2:
            self._fetched.write_text("one\ntwo\n")
            self._log_file = str(self._fetched)
        self._app_finished = self._asked > 3


def test_a_log_iterator_that_sets_its_own_attributes(tmp_path: Path) -> None:
    """It need not call `__init__` of its base, and its file may come late."""
    assert list(OwnLog(tmp_path / "log", TwoArguments("s"))) == ["one\n", "two\n"]
