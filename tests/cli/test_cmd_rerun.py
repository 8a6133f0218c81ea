"""`torchx rerun`: with real jobs of this machine, and a real git repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from torchx import cli
from torchx.settings import torchx_home

from .conftest import Call, runs

SCHEMAS = Path(cli.__file__).parent / "schemas"
COMPONENT = '''
import torchx.specs as specs

def job(text: str, token: str = "", n: int = 1, *args: str) -> specs.AppDef:
    """A job.

    Args:
        text: what it says
        token: a secret
        n: replicas
        args: more of it
    """
    env = {"HF_TOKEN": token} if token else {}
    return specs.AppDef("job", [specs.Role("r", image="", entrypoint="sh",
        args=["-c", 'echo "$HF_TOKEN" "$EXTRA" "$@"', "sh", text, *args], env=env, num_replicas=n)])
'''


def git(where: Path, *words: str) -> str:
    argv = ["git", "-C", str(where), "-c", "user.name=x", "-c", "user.email=x@y", *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def torchx(torchx: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls the command line as a process of its own would, with its arguments on record."""

    def call(*argv: str) -> Any:
        monkeypatch.setattr("sys.argv", ["torchx", *argv])
        return torchx(*argv)

    return call


@pytest.fixture
def repo(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a program that prints its version; the current directory."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setattr("torchx.util.git._FRESH_S", 0.0)  # each call stands for a process of its own
    (project / "train.py").write_text('import sys; print("one", *sys.argv[1:])\n')
    (project / "comp.py").write_text(COMPONENT)
    (project / ".gitignore").write_text("__pycache__/\n")  # the jobs import what is beside them
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "one")
    return project


def said(outcome: Any) -> list[str]:
    """Returns the output of the replicas of a followed job."""
    assert outcome.code == 0, outcome.err
    return [" ".join(line.split()[1:]) for line in outcome.err.splitlines() if "/0 " in line]


def settled() -> None:
    """Waits until git has recorded the code, which happens in parallel to the submission."""
    folder = Path(torchx_home("patches"))
    deadline = time.monotonic() + 60
    while [*folder.glob("*.start")]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_same_again(torchx: Call, repo: Path) -> None:
    """Command, options and environment are those of the run, from any directory; the record names the original run."""
    first = torchx("run", "--wait", "-cfg", "cancel_grace_s=3", "train.py", "--lr", "1 2").out.strip()
    os.chdir("/")
    assert said(torchx("rerun", "@last", "--log")) == ["one --lr 1 2"]
    old, new = (json.loads(torchx("describe", ref, "--json").out) for ref in ("@last~1", "@last"))
    assert old["handle"] == first != new["handle"]
    assert (new["app"], new["cfg"]) == (old["app"], old["cfg"])
    assert new["cfg"]["cancel_grace_s"] == {"value": 3, "source": "-cfg"}
    assert (new["run"]["cwd"], new["run"]["git_commit"]) == (str(repo), git(repo, "rev-parse", "HEAD"))
    assert os.getcwd() == "/"
    assert f"rerun of:    {first}\n" in torchx("describe", "@last").out


def test_a_sweep(torchx: Call, repo: Path, tmp_path: Path) -> None:
    """A rerun launches all tasks with their values; rerunning a single task, or exporting it, is an error."""
    options = ["-s", "local_cwd", "--grid", "lr=1,2", "--max-parallel", "1"]
    torchx("sweep", *options, "utils.python", "--script", "train.py", "--", "{lr}")
    torchx("wait", "@last")
    again = torchx("rerun", "@last", "--set", "env.EXTRA=x", "--wait")
    assert "all 2 tasks run again" in again.err
    for k in (0, 1):
        assert torchx("log", f"@last/{k}").out == f"train/{k} one {k + 1}\n"
    old, new = (json.loads(torchx("describe", ref, "--json").out) for ref in ("@last~1", "@last"))
    assert old["handle"] != new["handle"]
    assert json.loads(torchx("status", "@last", "--json").out)["tasks"]["max_parallel"] == 1
    assert "sweeps as a whole" in torchx("rerun", "@last/1").hint()
    refused = torchx("export", "@last", "-o", str(tmp_path / "out"))
    assert (refused.code, "is a sweep of 2 tasks" in refused.err) == (5, True)
    assert not (tmp_path / "out").exists()


def test_other_arguments(torchx: Call, repo: Path) -> None:
    """Arguments after `--` replace those of the program and keep those of the component, also in a rerun of a rerun."""
    torchx("run", "--wait", "comp.py:job", "--text", "hi", "--", "a", "b")
    assert said(torchx("rerun", "@last", "--log", "--", "c  d", "--e")) == ["hi c d --e"]
    assert said(torchx("rerun", "@last", "--log", "--", "f")) == ["hi f"]
    assert said(torchx("rerun", "--log", "@last")) == ["hi f"]
    os.chdir("/")  # a component that is a file is where the run was launched
    assert said(torchx("rerun", "@last", "--log", "--", "g")) == ["hi g"]
    os.chdir(repo)
    torchx("run", "--wait", "train.py", "x")
    assert said(torchx("rerun", "@last", "--log", "--")) == ["one"]


def test_a_component_without_further_arguments_gets_all_of_them(torchx: Call, repo: Path) -> None:
    """For `utils.echo`, which passes nothing on, arguments after `--` are those of the component."""
    torchx("run", "--wait", "utils.echo", "--msg", "hi")
    assert said(torchx("rerun", "@last", "--log", "--", "--msg", "bye")) == ["bye"]


def test_changes(torchx: Call, repo: Path) -> None:
    """`--set` changes fields of all roles or of one role; text fields stay text."""
    torchx("run", "--wait", "comp.py:job", "--text", "hi")
    words = ("--set", "env.EXTRA=7", "--set", "num_replicas=2", "--set", "roles.r.args.3=bye")
    assert said(torchx("rerun", "@last", "--log", *words)) == ["7 bye"]
    role = json.loads(torchx("describe", "@last", "--json").out)["app"]["roles"][0]
    assert (role["num_replicas"], role["env"]["EXTRA"]) == (2, "7")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--set", "num_replica=2"], "there is no `num_replica`", "`num_replicas`"),
        (["--set", 'env={"A": 1}'], "the value of environment variable `A`, `1`, is of type int", "as a string"),
        (["--set", "args=[null]"], "an argument, `None`, is of type NoneType", "as a string"),
        (["--set", "roles.x.image=2"], "there is no `x`", "roles.r"),
        (["--set", "num_replicas"], "a value is missing", "num_replicas=8"),
        (["--set", "num_replicas=many"], "`'many'`", ""),
        (["--set", "roles.r.args.9=x"], "there is no `9`", "0, 1, 2, 3"),
        (["--code", "old"], "`--code`: `old` is not one of then, now", "--help"),
        (["lr"], "unexpected argument `lr`", "-- lr"),
        (["--cod", "then"], "unknown option `--cod`", "--code"),
    ],
)
def test_what_is_refused(torchx: Call, repo: Path, words: list[str], message: str, hint: str) -> None:
    """An invalid change is rejected before anything is launched."""
    torchx("run", "--wait", "comp.py:job", "--text", "hi")
    outcome = torchx("rerun", "@last", *words)
    assert outcome.code == 2
    assert message in outcome.err
    assert hint in outcome.hint()
    assert len(runs(torchx)) == 1


def test_code_of_then_and_of_now(torchx: Call, repo: Path) -> None:
    """`--code then` runs commit and patch, including new files; `--code now`, the default, runs the current files."""
    (repo / "train.py").write_text('import new; print("two", new.TEXT)\n')
    (repo / "new.py").write_text('TEXT = "new"\n')
    assert said(torchx("run", "--log", "train.py")) == ["two new"]
    settled()
    (repo / "train.py").write_text('print("three")\n')
    (repo / "new.py").unlink()
    git(repo, "commit", "-qam", "two")

    outcome = torchx("rerun", "@last", "--log", "--code", "then")
    assert said(outcome) == ["two new"]
    assert "what was not committed then" in outcome.err
    # What was run then is what is on record of it, so that it can be run once more, and be compared.
    assert said(torchx("rerun", "@last", "--log", "--code", "then")) == ["two new"]
    run = json.loads(torchx("describe", "@last", "--json").out)["run"]
    assert (run["git_commit"], run["git_dirty"]) == (git(repo, "rev-parse", "HEAD~1"), True)
    now = torchx("rerun", "@last", "--log")
    assert said(now) == ["three"]
    assert "the code as it is now" in now.err
    assert git(repo, "status", "--porcelain") == ""


def test_checkouts_do_not_pile_up(torchx: Call, repo: Path) -> None:
    """A new checkout removes those that were not used for 90 days."""
    torchx("run", "--wait", "train.py")
    settled()
    torchx("rerun", "@last", "--wait", "--code", "then")
    (folder,) = Path(torchx_home("code")).iterdir()
    old = folder.with_name("old")
    old.mkdir()
    long_ago = time.time() - 100 * 86400
    for path in (old, folder):
        os.utime(path, (long_ago, long_ago))
    torchx("rerun", "@last", "--wait", "--code", "then")
    (repo / "train.py").write_text("print(2)")
    torchx("run", "--wait", "train.py")
    settled()
    torchx("rerun", "@last", "--wait", "--code", "then")
    names = {path.name for path in folder.parent.iterdir()}
    assert folder.name in names
    assert old.name not in names
    assert len(names) == 2


@pytest.mark.parametrize("gone", ["patch", "commit", "repository", "folder", "too large", "too late"])
def test_code_that_is_gone(
    torchx: Call, repo: Path, gone: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error names what is no longer available, and nothing is launched."""
    if gone == "too large":
        monkeypatch.setattr("torchx.util.git.PATCH_LIMIT", 10)
    (repo / "train.py").write_text('print("two")\n')
    torchx("run", "--wait", "train.py")
    settled()
    if gone == "patch":
        next(Path(torchx_home("patches")).glob("*.patch")).unlink()
    elif gone == "too late":
        next(Path(torchx_home("patches")).glob("*.patch")).write_text("too late\n")
    elif gone == "commit":
        git(repo, "commit", "-q", "--amend", "-am", "other")
        git(repo, "reflog", "expire", "--expire=now", "--all")
        git(repo, "gc", "-q", "--prune=now")
    elif gone == "repository":
        (repo / ".git").rename(repo / "git")
    elif gone == "folder":
        os.chdir("/")
        repo.rename(tmp_path / "elsewhere")
    outcome = torchx("rerun", "@last", "--code", "then")
    assert outcome.code == 3
    expected = {
        "patch": "the difference is not on record",
        "commit": "no longer has commit",
        "repository": "no longer in a git repository",
        "folder": "is gone",
        "too large": "too large to keep",
        "too late": "files were changed before it could be recorded",
    }
    assert expected[gone] in outcome.err
    assert len(runs(torchx)) == 1


def test_outside_of_git(torchx: Call, project: Path) -> None:
    """`--code then` is an error outside a repository; `--code now` works."""
    (project / "train.py").write_text("print(1)")
    torchx("run", "--wait", "train.py")
    assert "not launched in a git repository" in torchx("rerun", "@last", "--code", "then").err
    assert said(torchx("rerun", "@last", "--log")) == ["1"]


def test_masked_values_are_refused_or_found(torchx: Call, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masked values come from this environment or from `[secrets]`; no job gets asterisks."""
    torchx("run", "--wait", "comp.py:job", "--text", "hi", "--token", "abcdef")
    outcome = torchx("rerun", "@last")
    assert outcome.code == 2
    assert "the value of `HF_TOKEN` is not on record" in outcome.err
    assert "export HF_TOKEN" in outcome.hint()
    torchx("rerun", "@last", "--wait", "--set", "env.HF_TOKEN=ghijkl")
    monkeypatch.setenv("HF_TOKEN", "mnopqr")
    outcome = torchx("rerun", "@last~1", "--log")
    assert "from this environment" in outcome.err
    (repo / ".torchxconfig").write_text("[secrets]\nHF_TOKEN = cmd:echo stuvwx\n")
    assert torchx("configure", "--trust").code == 0
    outcome = torchx("rerun", "@last~1", "--log")
    assert "by `cmd:echo stuvwx`" in outcome.err
    logs = [path.read_text() for path in Path(torchx_home("local")).rglob("stdout.log")]
    assert sorted(logs) == ["abcdef  hi\n", "ghijkl  hi\n", "mnopqr  hi\n", "stuvwx  hi\n"]


def test_masked_arguments(torchx: Call, repo: Path) -> None:
    """The error for a masked argument names its option."""
    torchx("run", "--wait", "train.py", "--api-key", "abcdef")
    outcome = torchx("rerun", "@last")
    assert "the value of `--api-key` is not on record" in outcome.err
    assert "--set roles.train.args.2=VALUE" in outcome.hint()
    assert said(torchx("rerun", "@last", "--log", "--set", "roles.train.args.2=xyzxyz"))
    assert said(torchx("rerun", "@last~1", "--log", "--", "--api-key", "xyzxyz"))


def test_a_dry_run_launches_nothing(torchx: Call, repo: Path) -> None:
    """`--dryrun` shows the job, also for another scheduler, which then gets the folder as workspace."""
    torchx("run", "--wait", "train.py")
    page = json.loads(torchx("rerun", "@last", "--dryrun", "--json", "-s", "slurm", "-cfg", "partition=gpu").out)
    assert page["scheduler"] == "slurm"
    assert page["cfg"]["partition"]["value"] == "gpu"
    assert page["app"]["roles"][0]["workspace"] == {"projects": {f"file://{repo}": ""}}
    assert len(runs(torchx)) == 1


def test_options_that_config_files_say_otherwise(torchx: Call, repo: Path) -> None:
    """An option at its default keeps it, even if a config file has changed since."""
    torchx("run", "--wait", "train.py")
    (repo / ".torchxconfig").write_text("[local_cwd]\ncancel_grace_s = 77\nlog_dir = /tmp/x\n")
    page = torchx("rerun", "@last", "--dryrun", "--json")
    assert json.loads(page.out)["cfg"]["cancel_grace_s"]["value"] == 10
    notes = [line for line in page.err.splitlines() if "the run had no" in line]
    assert notes == ["the run had no `log_dir`, and .torchxconfig:3 says `/tmp/x`"]


def test_not_launched_by_the_command_line(torchx: Call, repo: Path) -> None:
    """A run of a Python program can be launched again, but its arguments cannot be replaced."""
    from torchx.runner import get_runner
    from torchx.specs import AppDef, Role

    with get_runner() as runner:
        handle = runner.run(AppDef("own", [Role("r", image="", entrypoint="echo", args=["own"])]), "local_cwd")
        runner.wait(handle, wait_interval=0.1)
    assert said(torchx("rerun", "@last", "--log")) == ["own"]
    assert "was not launched by `torchx run`" in torchx("rerun", "@last", "--", "x").err


@pytest.mark.parametrize("before", ["1:4", "2"])
def test_torchrun_is_told_of_the_number_of_nodes(torchx: Call, repo: Path, before: str) -> None:
    """With another number of replicas, torchrun waits for that many nodes; an elastic range stays."""
    from torchx.runner.capsule.changes import changed
    from torchx.specs import AppDef, Role

    app = AppDef("a", [Role("r", image="", args=["-c", f"torchrun --nnodes {before} x"], num_replicas=2)])
    role = changed(app, ["num_replicas=8"]).roles[0]
    assert role.args[1] == f"torchrun --nnodes {'1:4' if before == '1:4' else '8'} x"
    listed = AppDef("a", [Role("r", image="", args=["--nnodes", "2", "x"], num_replicas=2)])
    assert changed(listed, ["roles.r.num_replicas=8"]).roles[0].args == ["--nnodes", "8", "x"]


@pytest.mark.parametrize("path", ["num_replicas.x", "roles.r.image.x", "roles.r.resource.cpu.x.y", "resource.x.y"])
def test_what_has_nothing_below_it(path: str) -> None:
    """The error for a field below a number or text quotes the given path."""
    from torchx.errors import SpecError
    from torchx.runner.capsule.changes import changed
    from torchx.specs import AppDef, Role

    with pytest.raises(SpecError) as e:
        changed(AppDef("a", [Role("r", image="i")]), [f"{path}=1"])
    assert str(e.value).startswith(f"`--set {path}`: there is no `x`")


def test_asks_a_person(repo: Path, torchx: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, masked values are asked for, once per name."""
    from torchx.runner import get_runner
    from torchx.runner.capsule.rerun import Rerun

    torchx("run", "--wait", "comp.py:job", "--text", "hi", "--token", "abcdef")
    asked: list[str] = []
    answer: Callable[[str], str] = lambda what: asked.append(what) or "ghi"  # noqa: E731
    with get_runner() as runner:
        plan = runner.rerun_plan("@last", Rerun(ask=answer))
    assert (plan.app.roles[0].env["HF_TOKEN"], asked) == ("ghi", ["`HF_TOKEN`"])


def test_diff_shows_the_code(torchx: Call, repo: Path) -> None:
    """The diff lists the changed files and shows git's patch, without changing the repository."""
    from .test_json import check

    torchx("run", "--wait", "train.py", "--lr", "1")
    settled()
    (repo / "train.py").write_text('import sys; print("two", *sys.argv[1:])\n')
    (repo / "new.py").write_text("x = 1\n" * 60)
    torchx("run", "--wait", "train.py", "--lr", "2")
    settled()
    objects = git(repo, "count-objects", "-v")
    document = check("diff", torchx("diff", "@last~1", "@last", "--json").out)
    rows = [(r["section"], r["role"], r["name"], r["a"], r["b"]) for r in document["differences"]]
    assert rows == [
        ("code", None, "new.py", None, "+60 -0"),
        ("code", None, "train.py", None, "+1 -1"),
        ("arguments", "train", "--lr", "1", "2"),
    ]
    assert document["patch"].count("\n+x = 1") == 60
    assert git(repo, "count-objects", "-v") == objects
    page = torchx("diff", "@last~1", "@last").out
    assert "\n  train.py  +1 -1\n" in page
    assert "\narguments of train\n  --lr  1  →  2\n" in page
    assert "more lines; --full shows them" in page
    assert torchx("diff", "--full", "@last~1", "@last").out.count("\n+x = 1") == 60
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "two")
    torchx("rerun", "@last", "--wait")
    rows = check("diff", torchx("diff", "@last~1", "@last", "--json").out)["differences"]
    assert [(r["section"], r["name"]) for r in rows] == [("code", "commit")], (
        "what was committed since is the same code"
    )


def test_diff_of_a_run_with_itself(torchx: Call, repo: Path) -> None:
    """The output says that the runs do not differ."""
    torchx("run", "--wait", "train.py")
    outcome = torchx("diff", "@last", "@last")
    assert (outcome.code, outcome.out.endswith("the recorded runs do not differ\n")) == (0, True)
    assert torchx("diff", "@last", "nobody").code == 3


def test_long_values_do_not_move_the_arrows(torchx: Call, project: Path) -> None:
    """Arrows of a section stand below each other; after a long value, the other one is on the next line."""
    (project / "train.py").write_text("")
    for name, lr in (("x" * 60, "0.1"), ("y", "0.25")):
        assert torchx("run", "--wait", "train.py", "--name", name, "--lr", lr).code == 0
    found = torchx("diff", "@last~1", "@last").out
    (section,) = re.findall(r"\narguments of train\n((?:  .*\n?)+)", found)
    columns = {line.index("→") for line in section.splitlines() if "→" in line}
    assert len(columns) == 1, section
    assert "x" * 60 + "\n" in section


EATS = "import time; x = bytearray(64 << 20); t = time.time()\nwhile time.time() - t < 17: time.sleep(0.1)\n"


def test_fit(torchx: Call, project: Path) -> None:
    """`status` says what was used and what would do; `rerun --fit` asks for that, and `list --wasteful` ranks it."""
    (project / ".torchxconfig").write_text("[metrics]\nevery = 2s\n")
    (project / "eat.py").write_text(EATS)
    torchx("run", "--mem", "8G", "--cpu", "4", "--timeout", "2h", "eat.py")
    early = torchx("rerun", "@last", "--fit")
    assert (early.code, early.hint()) == (2, "only a run that has succeeded used what it needs")
    assert torchx("wait", "@last").code == 0
    page = torchx("status", "@last").out
    assert re.search(r"used:     \d+ MiB of 8 GiB memory, 0.\d of 4 CPUs, 1\d s of 2 h; `--mem 256M --cpu 1", page)
    [usage] = json.loads(torchx("status", "@last", "--json").out)["usage"]
    assert usage["enough"] == {"mem": "256M", "cpu": "1", "timeout": "5m"}
    [waste] = json.loads(torchx("list", "--wasteful", "--json").out)["wasteful"]
    jsonschema.validate({"wasteful": [waste]}, json.loads((SCHEMAS / "list-wasteful.json").read_text()))
    assert waste["enough"] == "--mem 256M --cpu 1" and waste["unused_cpu_hours"] > 0.004
    assert "--mem 256M --cpu 1" in torchx("list", "--wasteful").out
    again = json.loads(torchx("rerun", "@last", "--fit", "--dryrun", "--json").out)
    resource = again["app"]["roles"][0]["resource"]
    assert (resource["memMB"], resource["cpu"], again["app"]["metadata"]["torchx/timeout"]) == (256, 1, "5m")
