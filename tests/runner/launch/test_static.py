"""Static checks: problems that stop a submission, with a fix that works; and valid jobs, which no check stops."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.golden_apps import SCRIPTS as SCRIPTS_OF_GOLDEN
from tests.golden_apps import golden_apps
from torchx.components.dist import ddp, torchrun
from torchx.components.utils import python
from torchx.errors import SpecError
from torchx.runner import Runner, get_runner
from torchx.runner.launch import static
from torchx.schedulers.kit.findings import BAD, UNKNOWN, Finding
from torchx.specs import AppDef, Resource, Role, Workspace
from torchx.specs.wishes.after import AFTER

Make = Callable[[Path], AppDef]

CONTAINERS = ("local_docker", "kubernetes", "kubernetes_mcad", "aws_batch", "aws_sagemaker")
FOLDERS = ("slurm", "lsf")


def write(root: Path, *names: str, **texts: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("print(1)\n")
    for name, text in texts.items():
        (root / f".{name}").write_text(text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, empty."""
    path = tmp_path / "pets"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def found(app: AppDef, scheduler: str, workspace: str | None = ".", **cfg: Any) -> list[Finding]:
    """The findings of the static checks, without good ones."""
    with get_runner() as runner:
        backend = runner._scheduler(scheduler)
        for role in app.roles:
            role.workspace = Workspace.from_str(workspace) if workspace else None
        return [f for f in static.findings(app, backend, cfg) if f.verdict != "good"]


SCRIPTS = {
    "typo": (lambda r: write(r, "train.py"), "trian.py", "did you mean `--script train.py`?"),
    "folder": (lambda r: write(r, "src/train.py"), "train.py", "did you mean `--script src/train.py`?"),
    "other folder": (lambda r: write(r, "b/train.py", "a/x"), "a/train.py", "did you mean `--script b/train.py`?"),
    "blank": (lambda r: write(r, "my train.py"), "my trian.py", "did you mean `--script 'my train.py'`?"),
    "nothing alike": (lambda r: None, "train.py", "`--script PATH`"),
}


@pytest.mark.parametrize("scheduler", [*CONTAINERS, *FOLDERS])
@pytest.mark.parametrize("case", SCRIPTS)
def test_a_script_that_is_not_there(home: Path, scheduler: str, case: str) -> None:
    """It is bad where the job runs in a folder, and in doubt where an image may have it; the fix names a similar file."""
    prepare, script, fix = SCRIPTS[case]
    prepare(home)
    (bad,) = found(python(script=script), scheduler)
    certain = BAD if scheduler in FOLDERS else UNKNOWN
    assert (bad.verdict, bad.what) == (certain, f"script of role `{python(script=script).roles[0].name}`")
    assert fix in bad.fix or (certain == UNKNOWN and case == "nothing alike")


IGNORED = {
    "its name": ("train.py\n", "train.py", ".torchxignore"),
    "all of them": ("*.py", "train.py", ".torchxignore"),
    "its folder": ("src\n", "src/train.py", ".torchxignore"),
    "deep": ("**/jobs\n", "src/jobs/train.py", ".torchxignore"),
}


@pytest.mark.parametrize("case", IGNORED)
@pytest.mark.parametrize("name", ["torchxignore", "dockerignore"])
def test_a_script_that_is_left_out(home: Path, case: str, name: str) -> None:
    """The fix, run in a shell, includes it again: no finding is left."""
    rules, script, _ = IGNORED[case]
    write(home, script, **{name: rules})
    (bad,) = found(ddp(script=script, j="1x1"), "kubernetes")
    assert bad.verdict == UNKNOWN
    assert f"its `.{name}` leaves it out" in bad.said
    subprocess.run(["sh", "-c", re.search(r"`(.*)`", bad.fix)[1]], check=True)
    assert found(ddp(script=script, j="1x1"), "kubernetes") == []


def test_a_script_beside_the_workspace(home: Path) -> None:
    """It is in the current directory, but another folder is the workspace."""
    write(home, "train.py", "lib/x.py")
    (bad,) = found(python(script="train.py"), "slurm", workspace="lib", job_dir="/shared/x")
    assert bad.verdict == BAD
    assert "`--workspace .`" in bad.fix


@pytest.mark.parametrize("scheduler", FOLDERS)
def test_nothing_is_built_or_submitted(home: Path, scheduler: str, tmp_path: Path) -> None:
    """`Runner.run` raises an error with the hint; there is no job folder, no connection and no record."""
    write(home, "train.py")
    with get_runner() as runner, pytest.raises(SpecError, match=r"`trian.py` is n.*") as caught:
        runner.run(ddp(script="trian.py", j="1x1"), scheduler, workspace=".")
    assert "did you mean `--script train.py`?" in caught.value.hint
    assert "--no-check" in caught.value.hint
    with get_runner() as runner:
        assert runner.runs(refresh=False) == []


def test_the_way_out(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With TORCHX_NO_CHECK=1 the folder is created, and the dry run succeeds."""
    monkeypatch.setenv("TORCHX_NO_CHECK", "1")
    write(home, "train.py")
    with get_runner() as runner:
        info = runner.dryrun(python(script="trian.py"), "slurm", {"job_dir": str(tmp_path / "job")}, workspace=".")
    assert "trian.py" in str(info)


NOT_CERTAIN: dict[str, tuple[Make, str, dict[str, Any]]] = {
    "an image of one's own": (lambda r: python(script="main.py", image="ghcr.io/me/train:1"), "kubernetes", {}),
    "mounted": (
        lambda r: ddp(script="main.py", j="1x1", mounts=["type=bind", "src=/code", "dst=/app"]),
        "local_docker",
        {},
    ),
    "made by a Dockerfile": (lambda r: (write(r, "Dockerfile.torchx"), python(script="main.py"))[1], "kubernetes", {}),
    "absolute": (lambda r: python(script="/workspace/main.py"), "local_docker", {}),
    "above": (lambda r: python(script="../main.py"), "kubernetes", {}),
    "home": (lambda r: python(script="~/main.py"), "slurm", {}),
    "a variable": (lambda r: python(script="$CODE/main.py"), "slurm", {}),
    "a macro": (lambda r: python(script="${img_root}/main.py"), "kubernetes", {}),
    "a folder of the nodes as image": (lambda r: python(script="main.py", image="/opt/code"), "slurm", {}),
    "in a container of Slurm": (lambda r: python(script="main.py"), "slurm", {"container": "auto"}),
    "a placeholder of a sweep": (lambda r: python(script="{name}.py"), "kubernetes", {}),
}


@pytest.mark.parametrize("case", NOT_CERTAIN)
def test_what_is_not_certain_is_not_bad(home: Path, case: str) -> None:
    """The script may be where the check cannot look."""
    make, scheduler, cfg = NOT_CERTAIN[case]
    assert [f for f in found(make(home), scheduler, **cfg) if f.verdict == BAD] == []


def test_what_an_earlier_job_makes(home: Path) -> None:
    """With `--after`, an earlier job may create the script."""
    app = python(script="made.py")
    app.metadata[AFTER] = "ok:slurm://s/1"
    assert [f.verdict for f in found(app, "slurm", job_dir="/shared/x")] == [UNKNOWN]


@pytest.mark.parametrize(
    ("script", "warning"),
    [("train.py", "leaves it out; take it back in"), ("mian.py", "did you mean `--script main.py`?")],
)
def test_a_script_may_be_in_an_image(home: Path, script: str, warning: str, caplog: pytest.LogCaptureFixture) -> None:
    """So there is a warning, and the job is submitted."""
    write(home, "train.py", "main.py", torchxignore="train.py")
    app = python(script=script, image="ghcr.io/me/train:1")
    (doubt,) = found(app, "kubernetes")
    assert doubt.verdict == UNKNOWN
    with get_runner() as runner:
        static.refuse_scripts(app, runner._scheduler("kubernetes"), {})
    assert warning in caplog.text


@pytest.mark.parametrize("workspace", ["s3://bucket/code", "file:///nowhere/at/all", "memory://x"])
def test_workspaces_that_are_elsewhere(home: Path, workspace: str) -> None:
    """No connection is made; a workspace that does not exist is rejected when it is built."""
    assert [f.verdict for f in found(python(script="main.py"), "kubernetes", workspace)] == [UNKNOWN]


def test_projects_at_places(home: Path) -> None:
    """The script is searched in the project that is mounted above its path."""
    write(home, "trainer/main.py", "lib/util.py")
    assert found(python(script="t/main.py"), "kubernetes", "trainer=t,lib=lib") == []
    (bad,) = found(python(script="trainer/main.py"), "kubernetes", "trainer=t,lib=lib")
    assert (bad.verdict, "not in the workspace" in bad.said) == (UNKNOWN, True)


def test_a_link_out_of_the_workspace(home: Path, tmp_path: Path) -> None:
    """The link is not sent along, but the result is not certain."""
    write(tmp_path, "outside.py")
    (home / "train.py").symlink_to(tmp_path / "outside.py")
    (doubt,) = found(python(script="train.py"), "kubernetes")
    assert (doubt.verdict, "leads out" in doubt.said) == (UNKNOWN, True)


IMAGES = ["ghcr.io/me/train:${app_id}", "${img_root}/train", "train:${replica_id}", "${TAG}"]


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("scheduler", CONTAINERS)
def test_a_macro_in_an_image(image: str, scheduler: str) -> None:
    """Macros are not substituted in names of images, so it is bad."""
    app = AppDef("a", [Role("r", image, entrypoint="sh", resource=Resource(1, 0, 2048))])
    (bad,) = found(app, scheduler, None)
    assert (bad.verdict, bad.what, "--image" in bad.fix) == (BAD, "image of role `r`", True)


def test_it_is_refused_at_the_submission(home: Path) -> None:
    """Before the scheduler is queried."""
    app = AppDef("a", [Role("r", "x:${app_id}", entrypoint="sh", resource=Resource(1, 0, 2048))])
    with get_runner() as runner, pytest.raises(SpecError, match="contains a macro, but macros are not substituted"):
        runner.run(app, "kubernetes")


@pytest.mark.parametrize("field", ["args", "env"])
def test_a_typo_is_told_at_the_submission(field: str, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The job runs; wherever the macro is, the warning names the right one."""
    role = Role("r", "", entrypoint="true")
    role.args, role.env = (["${replicaid}"], {}) if field == "args" else ([], {"K": "${replicaid}"})
    with get_runner() as runner:
        assert runner.wait(runner.run(AppDef("a", [role]), "local_cwd")) is not None
    assert "there is a macro `${replica_id}`" in caplog.text


MACROS = {
    "${replicaid}": "${replica_id}",
    "${appid}": "${app_id}",
    "${app-id}": None,
    "${img_rot}": "${img_root}",
    "${rank0_evn}": "${rank0_env}",
    "--id=${replica_idx}/x": "${replica_id}",
    "$${replicaid}": None,
    "${HOME}": None,
    "${lr}": None,
    "${oc.env:X}": None,
    "${replica_id}": None,
}


@pytest.mark.parametrize("word", MACROS)
def test_macros_with_a_typo(word: str) -> None:
    """They are only warned about: a shell, or Hydra, may use the same syntax."""
    meant = MACROS[word]
    app = AppDef("a", [Role("r", "", entrypoint="sh", args=["-c", word], resource=Resource(1, 0, 2048))])
    doubts = found(app, "slurm", None)
    assert [f.verdict for f in doubts] == ([UNKNOWN] if meant else [])
    assert all(str(meant) in f.fix for f in doubts)


SIZES = {
    "8 workers on 4 GPUs": (lambda: ddp(script="t.py", j="2x8", gpu=4, memMB=65536), "`-j 2x4`, or `--gpu 8`"),
    "2 on 1": (lambda: torchrun(script="t.py", j="1x2", gpu=1, memMB=65536), "`-j 1x1`"),
    "the default memory": (lambda: ddp(script="t.py", j="1x2", gpu=2), "--memMB 65536"),
    "little memory": (lambda: python(script="t.py", gpu=1, memMB=512), "--memMB 32768"),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_that_look_wrong(home: Path, case: str) -> None:
    """The fix suggests other values."""
    write(home, "t.py")
    make, fix = SIZES[case]
    (doubt,) = found(make(), "slurm")
    assert doubt.verdict == UNKNOWN
    assert fix in doubt.fix


def test_sizes_are_told_at_the_submission(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each is warned about once; the job is submitted."""
    write(home, "t.py")
    with get_runner() as runner:
        runner.dryrun(ddp(script="t.py", j="1x8", gpu=4), "slurm", {"job_dir": "/shared/x"})
    assert caplog.text.count("8 workers on nodes of 4 GPUs") == 1
    assert caplog.text.count("`--cpu 32 --memMB 131072` is usual") == 1
    caplog.clear()
    with get_runner() as runner:
        runner.dryrun(ddp(script="t.py", j="1x4", gpu=4, memMB=65536), "slurm", {"job_dir": "/shared/x"})
    assert "GPUs" not in caplog.text


def good_jobs() -> list[tuple[str, AppDef]]:
    """Valid jobs of all sizes and kinds: scripts, modules, programs, images, resources."""
    makes: list[AppDef] = []
    for script in ("train.py", "src/train.py", "src/pets/train.py", "my train.py", "./train.py", "train.sh"):
        makes += [python(script=script), python("--lr", "${lr}", script=script, image="ghcr.io/me/train:1")]
        makes += [ddp("--id", "${app_id}", script=script, j=j) for j in ("1x1", "1x2", "2x8", "2:4x2")]
        makes += [ddp(script=script, j=f"2x{gpus}", gpu=gpus, memMB=32768 * gpus) for gpus in (1, 2, 8)]
    makes += [ddp(m="pets.train", j="1x4"), python(m="pets.train"), python(c="print('${HOME}')")]
    shell = ["-c", "echo ${replica_id} $${rank0_env}"]
    makes += [AppDef("a", [Role("r", "", entrypoint="sh", args=shell, resource=Resource(1, 0, 1))])]
    return [(f"{i}: {app.roles[0].args} {app.roles[0].resource}", app) for i, app in enumerate(makes)]


GOOD_CFGS: dict[str, dict[str, Any]] = {"slurm": {"job_dir": "/shared/x"}, "lsf": {"jobdir": "/shared/x"}}


@pytest.mark.parametrize("scheduler", [*CONTAINERS, *FOLDERS, "local_cwd"])
def test_good_jobs_have_no_finding(home: Path, scheduler: str) -> None:
    """None of more than 200 jobs has a bad or unknown finding: there is no false alarm."""
    write(
        home, "train.py", "src/train.py", "src/pets/train.py", "my train.py", "train.sh", torchxignore="*.ckpt\nout\n"
    )
    assert len(good_jobs()) * 8 > 200
    for what, app in good_jobs():
        assert found(app, scheduler, ".", **GOOD_CFGS.get(scheduler, {})) == [], what
        if scheduler in FOLDERS:
            assert found(app, scheduler, ".") == [], what  # in the folder that they are submitted from


@pytest.mark.parametrize("scheduler", [*CONTAINERS, *FOLDERS, "local_cwd"])
def test_golden_jobs_are_not_stopped(home: Path, scheduler: str) -> None:
    """Jobs of the golden scripts and of each component, for each scheduler, with and without a job folder."""
    write(home, *SCRIPTS_OF_GOLDEN, torchxignore="*.ckpt\nout\n")
    for cfg in ({}, GOOD_CFGS.get(scheduler, {})):
        for name, app in golden_apps().items():
            doubts = found(app, scheduler, ".", **cfg)
            assert [f for f in doubts if f.verdict == BAD] == [], name


def test_a_resource_without_figures(home: Path) -> None:
    """The memory of a role without a fixed size is not checked."""
    app = AppDef("a", [Role("r", "", entrypoint="sh", resource=Resource(-1, -1, -1))])
    assert found(app, "slurm", None) == []


def test_another_runner_of_a_program(home: Path) -> None:
    """A plugin's scheduler is not queried, and its jobs are not checked for files."""
    from tests.runner.memory_backend import MemoryScheduler

    def memory(session_name: str, **_: Any) -> MemoryScheduler:
        return MemoryScheduler(session_name, jobs={})

    with Runner("t", {"memory": memory}) as runner:
        found = runner.check(python(script="main.py"), "memory")
    assert [f.verdict for f in found if f.verdict == BAD] == []
    assert found[-1].said == "this scheduler has no checks of its own"
