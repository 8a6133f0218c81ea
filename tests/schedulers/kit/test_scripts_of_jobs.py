"""What is rendered for a shell means there what it means here: exports, values of tasks, scripts in an archive."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from torchx.errors import NotFoundError, NotSupportedError
from torchx.schedulers.api import NONE
from torchx.schedulers.kit.export import CODE, build_lines, folder_of_a_run, split_script
from torchx.schedulers.kit.facts import ReplicaFacts
from torchx.schedulers.kit.failures.reader import Evidence
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.kit.simulations import cannot
from torchx.schedulers.kit.tasks import (
    as_replicas,
    check_numbers,
    describe_sweep,
    describe_task,
    only_role,
    shell_words,
    values_line,
)
from torchx.specs.api import AppDef, AppState, Role
from torchx.specs.tasks import TaskList, TaskTable
from torchx.specs.wishes.idle import IDLE
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.watchdog import WATCHDOG

ODD = 'it\'s "$HOME" `x` \\ é\n end '


def _sh(script: str, shell: str = "sh", **env: str) -> str:
    done = subprocess.run(
        [shell, "-ec", script], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- exports -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "job", "machinery"),
    [
        ("a\nb\n# -- one --\nc\n# -- two --\nd\n", "a\nb\n", "# -- one --\nc\n# -- two --\nd\n"),
        ("a", "a\n", ""),
    ],
)
def test_a_script_is_split_at_its_first_section(script: str, job: str, machinery: str) -> None:
    """What is about the job comes before it; the rest is the same for every job."""
    assert split_script(script) == (job, machinery)


def test_a_run_of_an_export_has_its_own_folder(tmp_path: Path) -> None:
    """With copies of the files, a link to the code, and secrets that only the user can read, character by character."""
    (tmp_path / "job.sh").write_text("echo")
    (tmp_path / CODE).mkdir()
    names = ["TOKEN", "OTHER"]
    lines = folder_of_a_run(["job.sh"], secrets_file="secrets", secrets=names)
    job = Path(
        _sh("\n".join(["umask 022", *lines, 'printf %s "$job"']), "bash", here=str(tmp_path), TOKEN=ODD, OTHER="b")
    )
    assert job.parent == tmp_path / "runs"
    assert sorted(os.listdir(job)) == [CODE, "job.sh", "secrets"]
    assert os.readlink(job / CODE) == str(tmp_path / CODE)
    assert (job / "secrets").stat().st_mode & 0o777 == 0o600
    assert _sh(f'. "{job}/secrets"; printf "%s|%s" "$TOKEN" "$OTHER"') == f"{ODD}|b"
    none = folder_of_a_run(["job.sh"], secrets_file="secrets", secrets=[])
    plain = Path(_sh("\n".join([*none, 'printf %s "$job"']), "bash", here=str(tmp_path)))
    assert sorted(os.listdir(plain)) == [CODE, "job.sh"]


@pytest.mark.parametrize("push", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_images_of_an_export_are_built_below_the_code(tmp_path: Path, push: bool, own: bool) -> None:
    """With a Dockerfile of their own if the code has one; they are pushed where the cluster pulls them."""
    (tmp_path / CODE).mkdir()
    context = tmp_path / CODE if own else tmp_path
    file = context / ("Dockerfile.torchx" if own else "Dockerfile")
    file.touch()
    lines, files = build_lines({"repo/my:1": "base:2"}, push=push)
    assert files["Dockerfile"] == "ARG IMAGE\nFROM $IMAGE\nCOPY code/ .\n"
    said = _sh("\n".join(['docker() { echo "$@"; }', "exec 2>&1", *lines]), "bash", here=str(tmp_path)).splitlines()
    assert said[0] == (
        f"build --build-arg IMAGE=base:2 --build-arg WORKSPACE=. --tag repo/my:1 --file {file} {context}"
    )
    assert said[1:] == (["push repo/my:1"] if push else [])
    assert build_lines({}, push=push) == ([], {})


# -- scripts -----------------------------------------------------------------------------------------


def test_a_script_in_an_archive(tmp_path: Path) -> None:
    """The node of a batch job has torchx in one file; comments at its head are left out there, too."""
    archive = tmp_path / "torchx.pyz"
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("torchx/x/a.sh", "# why\n\n# stays\necho é\n")
    assert read_script(f"{archive}/torchx/x/module.py", "a.sh") == "\n# stays\necho é\n"


# -- tasks -------------------------------------------------------------------------------------------


def test_values_of_a_task_in_a_shell() -> None:
    """In arguments, variables, and variables that the shell cannot name; beside values that only the job knows."""
    line = values_line([ODD, "2"])
    assert line.count("\n") == 1 and line.endswith("\n")
    env = {"A": "{x.y}-{n}", "B-C": "@JOB@ {x.y}"}
    words = ["printf", "%s|", "{x.y}", "{{n}}", "n={n}", "@JOB@"]
    lines, command = shell_words(["x.y", "n"], env, words, {"@JOB@": "JOB_ID"})
    assert command[:2] == ["env", "--"]
    start = f"nl='\n'\nJOB_ID=7\n{line}" + "\n".join(lines) + "\n"
    assert _sh(start + " ".join(command)) == f"{ODD}|{{n}}|n=2|7|"
    assert _sh(start + 'printf %s "$A"') == f"{ODD}-2"
    assert f"B-C=7 {ODD}" in _sh(start + " ".join([*command[:3], "env"]))
    assert shell_words([], {}, ["a", "b c"]) == ([], ["a", "'b c'"])


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (AppDef("a", []), "a task has 0 replicas"),
        (AppDef("a", [Role("w", "img", num_replicas=2)]), "a task has 2 replicas"),
        (AppDef("a", [Role("w", "img"), Role("v", "img", num_replicas=2)]), "a task has 3 replicas"),
        (AppDef("a", [Role("w", "img", ends_job=True)]), "cannot wait for each other"),
        (AppDef("a", [Role("w", "img", max_retries=1)]), "cannot have retries"),
        (AppDef("a", [Role("w", "img")], metadata={RETRY: "oom:1"}), "cannot have retries"),
        (AppDef("a", [Role("w", "img")], metadata={WATCHDOG: "60s"}), "cannot have a watchdog"),
        (AppDef("a", [Role("w", "img")], metadata={IDLE: "60s"}), "idle tasks of a sweep on `x` are not detected"),
        (None, "a task has 0 replicas"),
    ],
)
def test_what_a_task_cannot_be(app: AppDef | None, said: str) -> None:
    """More than one process that is started once; each is refused in its own words."""
    with pytest.raises(NotSupportedError, match=said):
        only_role(app, "x", timeout=True)


def test_a_task_is_a_replica() -> None:
    """The job has one for each, numbered from 0; another number is refused with those that there are."""
    role = Role("w", "img")
    tasks = TaskList(names=["x"], points=[("1",), ("2",), ("3",)])
    app = AppDef("a", [role])
    assert [r.num_replicas for r in as_replicas(app, tasks).roles] == [3] and role.num_replicas == 1
    check_numbers("a", [0, 2], 3)
    for k in (-1, 3):
        with pytest.raises(NotFoundError, match=f"`a` has no task `{k}`") as e:
            check_numbers("a", [0, k], 3)
        assert e.value.hint == "it has tasks 0 to 2"


@pytest.mark.parametrize(
    ("facts", "state", "said"),
    [
        ({"state": AppState.PENDING}, AppState.PENDING, "waits until other tasks of the sweep have ended"),
        ({"state": AppState.PENDING, "reason": "no node"}, AppState.PENDING, "no node"),
        ({"state": AppState.RUNNING}, AppState.RUNNING, NONE),
        ({"state": AppState.SUCCEEDED}, AppState.SUCCEEDED, NONE),
        ({"state": AppState.UNKNOWN}, AppState.FAILED, "it is not known how it ended"),
        ({"state": AppState.FAILED, "exit_code": 2, "host": "n1"}, AppState.FAILED, "w/1: exit code 2"),
        ({"state": AppState.CANCELLED, "kind": "lost"}, AppState.CANCELLED, NONE),
    ],
)
def test_a_task_described_as_a_job(facts: dict[str, object], state: AppState, said: str) -> None:
    """It has a state of its own, and says why it waits; one of which the end is not known has failed."""
    replica = ReplicaFacts(**{"role": "w", "replica": 1, **facts})  # type: ignore[arg-type]  # as in the table above
    found = describe_task("a-1", replica, lambda some: [Evidence() for _ in some])
    assert (found.app_id, found.state, found.msg) == ("a-1", state, said)
    assert (found.started_at, found.ended_at) == (None, None)
    timed = ReplicaFacts(role="w", replica=0, state=AppState.SUCCEEDED, started=1.0, ended=2.0)
    found = describe_task("a-0", timed, lambda some: [Evidence() for _ in some])
    assert (found.started_at, found.ended_at) == (1.0, 2.0)


def test_a_sweep_described() -> None:
    """It was not restarted, and has its table; the state is the backend's if that has one."""
    table = TaskTable(states=[AppState.SUCCEEDED, AppState.RUNNING], exit_codes=[0, None], ended=[1.0, 0.0])
    found = describe_sweep("a", table)
    assert (found.state, found.num_restarts, found.tasks) == (AppState.RUNNING, 0, table)
    assert found.msg == "1 of 2 tasks succeeded, 1 running"
    assert describe_sweep("a", table, AppState.CANCELLED).state is AppState.CANCELLED
    nothing = TaskTable(states=[], exit_codes=[], ended=[])
    assert describe_sweep("a", nothing, AppState.CANCELLED).ended_at is None


# -- faults ------------------------------------------------------------------------------------------


def test_a_fault_that_a_backend_cannot_cause() -> None:
    """The closest one is named, if there is one."""
    error = cannot("x", "node", "it has no machines", instead="kill")
    assert str(error).startswith("`node` cannot be simulated on `x`: it has no machines")
    assert error.hint == "`torchx simulate kill` comes closest"
    assert not cannot("x", "node", "it has no machines").hint
