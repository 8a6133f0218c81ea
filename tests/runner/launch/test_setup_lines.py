"""Set-up lines: they run in each replica before its program, on every backend, and a failure of theirs has their name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from torchx.cli.main import main
from torchx.errors import NotSupportedError, SpecError
from torchx.runner import Runner, get_runner
from torchx.schedulers import get_scheduler_factories
from torchx.schedulers.kit.failures import Evidence
from torchx.schedulers.kit.failures.reader import read_failure
from torchx.schedulers.kit.setup import with_setup
from torchx.specs import AppDef, AppState, Resource, Role
from torchx.specs.images import NamesOnly
from torchx.specs.wishes.scripts import SBATCH
from torchx.specs.wishes.setup import SETUP, UV

CFG: dict[str, dict[str, Any]] = {
    "aws_batch": {"queue": "q"},
    "aws_sagemaker": {"role": "r", "instance_type": "ml.m5.large"},
}
LINES = """true; {}; echo unreached"""
FAILURES = {
    "false": "false (exit 1)",
    "module load nope": "module load nope (exit 127)",
    ". ./missing.sh": ". ./missing.sh (exit 1)",
    "true && exit 4": "exit 4 (exit 4)",
    "exit 0": "exit 0 (exit 0)",
    ". ./exits.sh": ". ./exits.sh (exit 0)",
    "f() { false; return 3; }; f x": "f x (exit 3)",
    "if [": "its lines (exit 2)",
    "python3 -c 'raise ValueError(1)'": "python3 -c 'raise ValueError(1)' (exit 1)",
}


def app(setup: str = "", *argv: str, uv: str = "") -> AppDef:
    entrypoint, *args = argv or ("sh", "-c", 'echo "<$A> $0"', "${app_id}")
    role = Role("w", "repo/image", entrypoint=entrypoint, args=args, resource=Resource(cpu=1, gpu=0, memMB=512))
    return AppDef("job", [role], metadata={SETUP: setup, UV: uv})


def commands(runner: Runner, scheduler: str, setup: str) -> list[str]:
    """The command of the job on a backend, as it gets there."""
    given: AppDef = app(setup)
    backend = runner._scheduler(scheduler)
    (role,) = with_setup(given, {}, scheduler, backend).roles
    return [role.entrypoint, *role.args]


@pytest.fixture
def runner():
    with get_runner() as runner:
        yield runner


@pytest.mark.parametrize("scheduler", sorted({*get_scheduler_factories()} - {"local_docker"}))
def test_every_request_has_the_lines(runner: Runner, scheduler: str) -> None:
    """Those of the site first, then those of the job; without lines the request is as before."""
    with NamesOnly():
        cfg = {**CFG.get(scheduler, {}), "setup": "module load site"}
        info = runner.dryrun(app("module load mine"), scheduler, cfg)
        plain = str(runner.dryrun(app(), scheduler, CFG.get(scheduler, {})))
    request = " ".join(str(info).replace("\\", " ").split())  # YAML folds lines
    assert request.index("module load site") < request.rindex("module load mine")
    assert "set-up failed" in request and "set-up failed" not in plain
    assert info._app is not None and info._app.roles[0].entrypoint == "sh"  # the record is of the job as it was given


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("scheduler", ["local_cwd", "kubernetes"])
def test_the_program_has_the_environment(runner: Runner, tmp_path: Path, scheduler: str, shell: str) -> None:
    """Whatever characters the values have; nothing of torchx is left in it."""
    if shutil.which(shell) is None or (shell, scheduler) == ("dash", "local_cwd"):
        pytest.skip(f"no {shell} here")
    (tmp_path / "sh").symlink_to(shutil.which(shell) or "")
    (tmp_path / "env").symlink_to(shutil.which("env") or "")
    if shell == "bash":
        (tmp_path / "bash").symlink_to(shutil.which("bash") or "")
    given = app("A='x; $y \"z\"'\nexport A", "env", "-0")
    (role,) = with_setup(given, {}, scheduler, runner._scheduler(scheduler)).roles
    argv = [word.replace("$${", "${") for word in [role.entrypoint, *role.args]]
    done = subprocess.run(argv, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    found = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    assert found["A"] == 'x; $y "z"' and {*found} <= {"A", "PATH", "PWD", "OLDPWD", "SHLVL", "_"}


@pytest.mark.parametrize("line", FAILURES)
def test_a_failure_is_named(runner: Runner, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that failed, not the whole text; the program does not run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exits.sh").write_text("export A=1\nexit 0\n")
    argv = [word.replace("$${", "${") for word in commands(runner, "slurm", LINES.format(line))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "unreached" not in done.stdout and "<" not in done.stdout
    assert done.stderr.splitlines()[-1] == f"torchx: set-up failed: {FAILURES[line]}"
    assert done.returncode > 0
    failure = read_failure(Evidence(stderr=done.stderr), exit_code=done.returncode)
    assert (failure.message, failure.kind) == (f"set-up failed: {FAILURES[line]}", "error")


def test_a_function_that_exits(runner: Runner) -> None:
    """Its line may not be known, but it is a failure, and not a signal."""
    argv = [word.replace("$${", "${") for word in commands(runner, "slurm", "f() { g; }; g() { exit 0; }; f")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("torchx: set-up failed: ") and not done.stdout


@pytest.mark.parametrize("line", FAILURES)
@pytest.mark.skipif(shutil.which("dash") is None, reason="no dash here")
def test_a_failure_without_bash(runner: Runner, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no name, but the program does not run, and the replica does not succeed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exits.sh").write_text("export A=1\nexit 0\n")
    _, *argv = [word.replace("$${", "${") for word in commands(runner, "slurm", LINES.format(line))]
    done = subprocess.run(["dash", *argv], capture_output=True, text=True, check=False)
    assert "unreached" not in done.stdout and "<" not in done.stdout
    assert done.stderr.splitlines()[-1].startswith("torchx: set-up failed: a line of it (exit ")
    assert done.returncode > 0


@pytest.mark.parametrize(
    "line",
    [
        "false || true",
        "if false; then exit 1; fi",
        ". ./fine.sh",
        "f() { false; }; f || :",
        "[ -e nope ] && . ./nope",
        "[ $# = 0 ] && set -- a b c",
        "set -eu",
    ],
)
@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_what_is_not_a_failure(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, shell: str
) -> None:
    """Commands within conditions, and within files that are sourced, such as those of conda. The lines do not see, and
    do not change, the words of the program.
    """
    if shell == "sh" and (line == ". ./fine.sh" or os.path.realpath("/bin/sh").endswith("bash")):
        pytest.skip("`sh` stops within files, too")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A", "")
    (tmp_path / "fine.sh").write_text("false\n(exit 3)\nexport A=1\n")
    argv = [word.replace("$${", "${") for word in commands(runner, "slurm", line)]
    done = subprocess.run([shell, *argv[1:]], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("<") and done.stderr == ""


def test_every_variable_stays(runner: Runner) -> None:
    """Whatever its name, also that of one which these scripts use."""
    names = ["c", "w", "was", "now", "file", "failed", "env", "envs", "copy", "fd", "words"]
    given = app("\n".join(f"export {name}=mine" for name in names), "env")
    (role,) = with_setup(given, {}, "slurm", runner._scheduler("slurm")).roles
    argv = [word.replace("$${", "${") for word in [role.entrypoint, *role.args]]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {f"{name}=mine" for name in names} <= {*said}
    assert not [line for line in said if line.startswith("torchx_")]


@pytest.mark.parametrize("line", ["sleep 100", "echo x; sleep 100; true", "f() { sleep 100; }; f"])
@pytest.mark.parametrize("whom", ["the shell", "all"])
def test_a_set_up_that_is_told_to_end_has_not_failed(runner: Runner, line: str, whom: str) -> None:
    """The replica ends by the signal, and says nothing about its lines."""
    argv = [word.replace("$${", "${") for word in commands(runner, "slurm", f"echo up\n{line}")]
    started = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert started.stdout is not None and started.stdout.readline() == "up\n"
    time.sleep(0.2)  # until it sleeps
    if whom == "all":
        os.killpg(started.pid, signal.SIGTERM)
    else:
        started.terminate()
    code = started.wait()
    os.killpg(started.pid, signal.SIGKILL) if whom != "all" else None
    assert (code, "set-up failed" in started.communicate()[1]) == (-signal.SIGTERM, False)


def test_the_program_itself_is_blamed_for_its_own_failure() -> None:
    """A line of set-up above the last one is none of its end."""
    said = "torchx: set-up failed: x (exit 1)\nTraceback (most recent call last):\nValueError: mine\n"
    assert read_failure(Evidence(stderr=said), exit_code=1).message == "ValueError: mine"


def test_from_a_config_file_to_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runner: Runner
) -> None:
    """A real job, once the user trusts the file of this folder; a rerun has the same lines."""
    (tmp_path / ".torchxconfig").write_text(
        "[local_cwd]\nsetup = export A=site\n    export B=1\n[local_cwd@bad]\nsetup = module load nope\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as e:
        main(["run", "--wait", "utils.echo"])
    assert e.value.code == 2 and "runs a program that this folder chose" in capsys.readouterr().err
    main(["run", "--dryrun", "utils.echo"])
    monkeypatch.setenv("TORCHX_TRUST", "1")
    main(["run", "--wait", "--setup", "A=$A-mine", "--", "sh", "-c", "echo $A$B >out"])
    assert (tmp_path / "out").read_text() == "site-mine1\n"
    (tmp_path / "out").unlink()
    main(["rerun", "@last", "--wait"])
    assert (tmp_path / "out").read_text() == "site-mine1\n"
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["run", "--wait", "--json", "--profile", "bad", "utils.echo"])
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == AppState.FAILED.name and "set-up failed: module load nope" in json.dumps(found)


def test_what_cannot_have_it(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    """A batch script on Slurm: lines for this job are refused, those of the site are left out with a warning."""
    script = app()
    script.roles[0].metadata[SBATCH] = {"file": "a.sh", "text": "#!/bin/bash\n"}
    with pytest.raises(NotSupportedError, match="its own set-up"):
        script.metadata[SETUP] = "true"
        runner.dryrun(script, "slurm")
    script.metadata.clear()
    assert "module" not in str(runner.dryrun(script, "slurm", {"setup": "module load x"}))
    assert "`setup` of the section of `slurm` is not used" in caplog.text


def test_uv_needs_a_lock(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lock file here there is none in the job."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"no `uv\.lock`"):
        runner.dryrun(app(uv="1"), "local_cwd")
    (tmp_path / "uv.lock").touch()
    (tmp_path / ".torchxconfig").write_text("[workspace]\nuv = true\n")
    info = runner.dryrun(app(), "local_cwd")
    assert "uv sync --frozen" in str(info)
    assert info._app is not None and info._app.metadata[UV] == "true"
    (tmp_path / ".torchxconfig").write_text("[workspace]\nuv = maybe\n")
    with pytest.raises(SpecError, match="maybe"):
        runner.dryrun(app(), "local_cwd")


def test_one_job_makes_the_environment_of_a_lock(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten replicas at once: one calls uv, the others wait for it; another lock has another environment."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin" / "uv"
    uv.write_text(
        f'#!/bin/bash\necho "$@" >>{tmp_path}/calls\nmkdir -p "$UV_PROJECT_ENVIRONMENT/bin"\n'
        'echo "export MADE=$UV_PROJECT_ENVIRONMENT" >"$UV_PROJECT_ENVIRONMENT/bin/activate"\nsleep 0.2\n'
    )
    uv.chmod(0o755)
    (tmp_path / "uv.lock").write_text("1")
    given = app("", "sh", "-c", "echo $MADE", uv="1")
    (role,) = with_setup(given, {}, "slurm", runner._scheduler("slurm")).roles
    argv = [word.replace("$${", "${") for word in [role.entrypoint, *role.args]]
    env = {**os.environ, "PATH": f"{uv.parent}:{os.environ['PATH']}", "TORCHX_UV_ENVS": str(tmp_path / "envs")}
    started = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) for _ in range(10)]
    made = {one.communicate()[0] for one in started}
    assert len(made) == 1 and (tmp_path / "calls").read_text() == "sync --frozen --no-install-project\n"
    (tmp_path / "uv.lock").write_text("2")
    assert subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout not in made
    uv.write_text("#!/bin/bash\nexit 3\n")
    (tmp_path / "uv.lock").write_text("3")
    failed = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert failed.returncode == 3 and "set-up failed: torchx_uv (exit 3)" in failed.stderr


def test_kubernetes_renders_it_again(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an older cluster the request is rendered once more, when it is submitted: with the lines, too."""
    from torchx.schedulers import kubernetes_scheduler

    backend: Any = runner._scheduler("kubernetes")
    monkeypatch.setattr(kubernetes_scheduler.KubernetesScheduler, "_decide", lambda *_, **__: ("job", (1, 20)))
    info = runner.dryrun(app("module load x"), "kubernetes")
    assert "set-up failed" in str(backend._objects(None, info))
