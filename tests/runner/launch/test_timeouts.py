"""The time limit of a job: each scheduler gets it in its own form, and only once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchx.cli.main import main
from torchx.errors import ConfigError, NotSupportedError, SpecError
from torchx.runner import Runner, get_runner
from torchx.schedulers.api import Capabilities
from torchx.specs.api import AppDef, Resource, Role
from torchx.specs.wishes.timeouts import TIMEOUT

CFG: dict[str, dict[str, Any]] = {
    "aws_batch": {"queue": "q"},
    "aws_sagemaker": {"role": "r", "instance_type": "ml.m5.large"},
}
SAID = {
    "slurm": " --time=2:00:00 ",
    "lsf": " -W 2:00 ",
    "kubernetes": "activeDeadlineSeconds: 7200",
    "kubernetes_mcad": "activeDeadlineSeconds: 7200",
    "aws_batch": "attemptDurationSeconds: 7200",
    "aws_sagemaker": "MaxRuntimeInSeconds: 7200",
    "local_cwd": "timeout: 2h",
}
OPTIONS = {"slurm": "time", "lsf": "time", "aws_batch": "timeout_s", "aws_sagemaker": "max_run"}


def _app(timeout: str = "2h") -> AppDef:
    role = Role("w", "repo/image", entrypoint="true", resource=Resource(cpu=1, gpu=0, memMB=512))
    return AppDef("job", [role], metadata={TIMEOUT: timeout})


@pytest.fixture
def runner():
    with get_runner() as runner:
        yield runner


@pytest.mark.parametrize("scheduler", SAID)
def test_each_scheduler_says_it_in_its_own_words(runner: Runner, scheduler: str) -> None:
    """The request contains it; that of a job without a limit does not."""
    request = str(runner.dryrun(_app(), scheduler, CFG.get(scheduler, {})))
    assert SAID[scheduler] in request
    assert SAID[scheduler] not in str(runner.dryrun(_app(""), scheduler, CFG.get(scheduler, {})))


@pytest.mark.parametrize("kind", ["job", "jobset", "volcano"])
def test_a_pod_has_it(runner: Runner, kind: str) -> None:
    """The limit applies to each pod, so that waiting for nodes does not count."""
    info = runner.dryrun(_app(), "kubernetes", {"kind": kind, "queue": "q"} if kind == "volcano" else {"kind": kind})
    assert _pod_specs(info.request.resource) == [7200]


def _pod_specs(found: Any) -> list[int]:
    if isinstance(found, dict):
        own = [found["activeDeadlineSeconds"]] if "containers" in found and "activeDeadlineSeconds" in found else []
        return own + [s for value in found.values() for s in _pod_specs(value)]
    return [s for value in found for s in _pod_specs(value)] if isinstance(found, list) else []


@pytest.mark.parametrize("scheduler", OPTIONS)
def test_a_limit_that_is_said_twice_is_refused(runner: Runner, scheduler: str) -> None:
    """Both were given for this job, which is ambiguous."""
    option = OPTIONS[scheduler]
    with pytest.raises(ConfigError, match=rf"timeout `2h` and `{option}=60` both set"):
        runner.dryrun(_app(), scheduler, {**CFG.get(scheduler, {}), option: "60" if option == "time" else 60})


def test_that_of_a_config_file_gives_way(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default of a site is not a contradiction."""
    (tmp_path / ".torchxconfig").write_text("[slurm]\ntime = 60\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert SAID["slurm"] in str(runner.dryrun(_app(), "slurm"))


def test_a_scheduler_without_one_refuses(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example that of a plugin; nothing is built before."""
    monkeypatch.setattr(type(runner._scheduler("local_cwd")), "capabilities", Capabilities())
    with pytest.raises(NotSupportedError, match="`local_cwd` cannot end a job after a time"):
        runner.dryrun(_app(), "local_cwd")


def test_a_bad_one_is_refused_before_anything_is_made(runner: Runner) -> None:
    """The error is the same from code and from the command line."""
    with pytest.raises(SpecError, match="`soon` is not a length of time"):
        runner.dryrun(_app("soon"), "slurm")


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, one hint, exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(["run", "--timeout", "90", "utils.echo"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "torchx: error: the timeout `90` is not a length of time\nhint: write its unit: `90s`, `90m` or `90h`\n"
    )


@pytest.mark.parametrize("words", [["utils.echo", "--timeout", "7m"], ["--timeout", "7m", "utils.echo"]])
def test_it_may_stand_behind_the_component(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Like other options of torchx."""
    main(["run", "--dryrun", *words])
    assert "\n  timeout: 7m\n" in capsys.readouterr().out


def test_that_of_a_script_is_the_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a script, an option is the script's."""
    (tmp_path / "train.py").touch()
    main(["run", "--dryrun", str(tmp_path / "train.py"), "--timeout", "5"])
    out = capsys.readouterr().out
    assert "--timeout 5" in out
    assert "timeout: " not in out


def test_the_config_file_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """`[cli:run] timeout`; the command line overrides it."""
    (tmp_path / ".torchxconfig").write_text("[cli:run]\ntimeout = 3h\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    main(["run", "--dryrun", "utils.echo"])
    assert "\n  timeout: 3h\n" in capsys.readouterr().out
    main(["run", "--dryrun", "--timeout", "4h", "utils.echo"])
    assert "\n  timeout: 4h\n" in capsys.readouterr().out
