"""What the tests of the command line share: a call of ``main``, and a scheduler of their own that comes as a plugin."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pexpect
import pytest

PAPER = '''
"""A scheduler on paper: jobs are where a test puts them, and say what it makes them say."""
from __future__ import annotations
import copy
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, filter_regex
from torchx.specs import AppDryRunInfo, AppState, ReplicaStatus, RoleStatus, runopts

JOBS = {}
OUTPUT = {}      # (app_id, role, k) -> lines
STATES = {}      # app_id -> AppState
ERRORS = {}      # app_id -> structured_error_msg of the first replica
CANCELLED = []

class Paper(Scheduler):
    wait_hint = 0.25

    def _run_opts(self):
        opts = runopts()
        opts.add("queue", type_=str, help="where to stand in line", default="main")
        opts.add("tags", type_=list[str], help="labels", default=None)
        return opts

    def _submit_dryrun(self, app, cfg):
        request = {"queue": cfg.get("queue"), "env": {k: v for r in app.roles for k, v in r.env.items()}}
        return AppDryRunInfo(request, lambda r: f"submit to {r['queue']} with {r['env']}")

    def schedule(self, info):
        app_id = f"{info._app.name}-{len(JOBS)}"
        JOBS[app_id] = copy.deepcopy(info._app)
        STATES.setdefault(app_id, AppState.SUCCEEDED)
        return app_id

    def describe(self, app_id):
        app = JOBS.get(app_id)
        if app is None:
            return None
        state = STATES[app_id]
        error = ERRORS.get(app_id, "<NONE>")
        roles = [
            RoleStatus(r.name, [ReplicaStatus(k, state, r.name, "", error if k == 0 else "<NONE>")
                                for k in range(r.num_replicas)])
            for r in app.roles
        ]
        return DescribeAppResponse(app_id, state, structured_error_msg=error, roles=app.roles, roles_statuses=roles)

    def list(self, cfg=None):
        return [ListAppResponse(app_id, STATES[app_id], name=app.name) for app_id, app in JOBS.items()]

    def log_iter(self, app_id, role_name, k=0, regex=None, since=None, until=None, should_tail=False, streams=None):
        lines = OUTPUT.get((app_id, role_name, k), [])
        return iter(filter_regex(regex, lines)) if regex else iter(lines)

    def _cancel_existing(self, app_id):
        CANCELLED.append(app_id)
        STATES[app_id] = AppState.CANCELLED

    def _delete_existing(self, app_id):
        del JOBS[app_id]

def create_scheduler(session_name, **kwargs):
    return Paper("paper", session_name)
'''


HELLO = '''
from torchx.cli.cmd_base import SubCommand
class Hello(SubCommand):
    """says hello"""
    def add_arguments(self, subparser):
        subparser.add_argument("name")
    def run(self, args):
        print("hello", args.name)
'''


class Outcome(NamedTuple):
    """What a call of the command line left behind."""

    code: int
    out: str
    err: str

    def error_lines(self) -> list[str]:
        """The lines on stderr but the hint."""
        return [line for line in self.err.splitlines() if not line.startswith("hint: ")]

    def hint(self) -> str:
        """The hint, without its label."""
        return next((line[6:] for line in self.err.splitlines() if line.startswith("hint: ")), "")


Call = Callable[..., Outcome]


def spawn(project: Path, *argv: str) -> Any:
    """Starts ``torchx <argv>`` in a terminal of its own."""
    return pexpect.spawn(
        sys.executable, ["-m", "torchx", *argv], cwd=str(project), encoding="utf-8", timeout=300, dimensions=(24, 100)
    )


def end(child: Any) -> int:
    """Waits until the program in a terminal has ended, and returns its exit code."""
    child.expect(pexpect.EOF)
    child.wait()  # closing the terminal earlier would send a SIGHUP
    child.close()
    return int(child.exitstatus)


def until(condition: Callable[[], Any], timeout_s: float = 120.0) -> None:
    """Waits until the condition is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def state(torchx: Call, job: str = "@last") -> str:
    """The state of a job, as ``torchx status`` reports it."""
    return str(json.loads(torchx("status", job, "--json").out)["state"])


def runs(torchx: Call) -> list[Any]:
    """The runs on record."""
    return list(json.loads(torchx("list", "--json").out)["runs"])


@pytest.fixture
def torchx(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls the command line in this process: ``torchx("run", "utils.echo").out``."""
    from torchx.cli import failures
    from torchx.cli.main import main

    monkeypatch.setattr(failures, "_shows_progress", False)  # a command has a process of its own, and so begins anew

    def call(*argv: str) -> Outcome:
        capfd.readouterr()
        code = 0
        try:
            main(list(argv))
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 1
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return call


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a package for the time of a test: ``install_plugin("mine", {"torchx.cli.cmds": ["x = mine:X"]}, source)``."""
    from torchx.plugins import refresh

    modules = []

    def install(name: str, entry_points: dict[str, list[str]], source: str) -> None:
        site = tmp_path / f"site-{name}"
        info = site / f"{name}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        text = "\n".join("\n".join([f"[{group}]", *rows]) for group, rows in entry_points.items())
        (info / "entry_points.txt").write_text(text + "\n")
        (site / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(site))
        modules.append(name)
        refresh()

    yield install
    for name in modules:
        sys.modules.pop(name, None)
    refresh()


@pytest.fixture
def paper(install_plugin: Callable[..., None]) -> object:
    """The module of a scheduler `paper` whose jobs are where a test puts them."""
    import importlib

    install_plugin("paper_scheduler", {"torchx.schedulers": ["paper = paper_scheduler:create_scheduler"]}, PAPER)
    return importlib.import_module("paper_scheduler")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    path = tmp_path / "project"
    path.mkdir()
    monkeypatch.chdir(path)
    return path
