"""Small jobs: their AppDefs, and the results of running them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchx
from torchx.component_reader.builders import materialize_appdef
from torchx.components import utils
from torchx.errors import MissingDependencyError, SpecError
from torchx.specs import AppDef, BindMount, Resource, macros, resource


def run(app: AppDef, cwd: Path | None = None) -> str:
    """Run the only role and return its output."""
    (role,) = app.roles
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    done = subprocess.run(
        [role.entrypoint, *role.args],
        env={**os.environ, **role.env, "PATH": path},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_echo() -> None:
    """Each replica prints the message unchanged."""
    app = utils.echo("it's $HOME", num_replicas=3)
    assert run(app) == "it's $HOME\n"
    assert (app.name, app.roles[0].num_replicas, app.roles[0].image) == ("echo", 3, torchx.IMAGE)
    assert utils.echo().roles[0].args == ["hello world"]


def test_touch(tmp_path: Path) -> None:
    """The file exists afterwards."""
    run(utils.touch(str(tmp_path / "a b")))
    assert (tmp_path / "a b").exists()


def test_sh_words() -> None:
    """Several words are a command with arguments, which the shell does not interpret."""
    assert run(utils.sh("printf", "%s|", "a b", "$HOME", "it's", "`id`", "$$")) == "a b|$HOME|it's|`id`|$$|"


def test_sh_line(tmp_path: Path) -> None:
    """A single word is a shell command line."""
    assert run(utils.sh("echo one; echo two | tr a-z A-Z"), tmp_path) == "one\nTWO\n"
    assert utils.sh("ls").roles[0].args == ["-c", "ls"]


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_sh_passes_on_any_words(words: list[str]) -> None:
    """The command gets any words unchanged."""
    app = materialize_appdef(utils.sh, ["--", "printf", "%s\\0", *words])
    (role,) = app.roles
    out = subprocess.run([role.entrypoint, *role.args], capture_output=True, check=True).stdout
    assert out.decode().split("\0")[:-1] == words


def test_sh_options() -> None:
    """Resource, environment, retries, mounts and shell are set in the role."""
    role = utils.sh(
        *("ls", "-l"),
        env={"A": "1"},
        h="cpu.small",
        max_retries=2,
        mounts=["type=bind", "src=/a", "dst=/b"],
        entrypoint="bash",
        num_replicas=2,
        image="img",
    ).roles[0]
    assert (role.entrypoint, role.env, role.max_retries, role.num_replicas, role.image) == (
        "bash",
        {"A": "1"},
        2,
        2,
        "img",
    )
    assert role.resource == resource(h="cpu.small")
    assert role.mounts == [BindMount("/a", "/b")]
    assert utils.sh("a", cpu=2, gpu=1, memMB=3).roles[0].resource == Resource(cpu=2, gpu=1, memMB=3)
    with pytest.raises(SpecError, match="no command"):
        utils.sh()


def test_python(tmp_path: Path) -> None:
    """A module, code or script runs with its arguments."""
    (tmp_path / "hello.py").write_text("import sys; print('script', sys.argv[1:])")
    assert run(utils.python("a b", script="hello.py"), tmp_path) == "script ['a b']\n"
    assert run(utils.python("x", c="import sys; print(sys.argv[1:])")) == "['x']\n"
    (tmp_path / "hello_module.py").write_text("import sys; print('module', sys.argv[1:])")
    assert run(utils.python("--x", m="hello_module"), tmp_path) == "module ['--x']\n"
    assert [utils.python(m="a.b").roles[0].name, utils.python(c="1").roles[0].name] == ["b", "python"]
    assert utils.python(m="a", name="n").name == "n"


@pytest.mark.parametrize("kwargs", [{}, {"m": "a", "c": "b"}, {"m": "a", "script": "b", "c": "c"}])
def test_python_needs_one_program(kwargs: dict[str, Any]) -> None:
    """None or two of them raise an error that names the options."""
    with pytest.raises(SpecError) as e:
        utils.python(**kwargs)
    assert "one of `-m module`" in e.value.hint


def test_binary() -> None:
    """A program runs with its arguments, without a shell."""
    app = utils.binary("%s|", "$HOME", "a b", entrypoint="printf", name="n", num_replicas=2, h="cpu.nano")
    assert run(app) == "$HOME|a b|"
    assert (app.name, app.roles[0].name, app.roles[0].num_replicas) == ("n", "n", 2)
    assert app.roles[0].resource == resource(h="cpu.nano")


def test_copy(tmp_path: Path) -> None:
    """A file is copied by URL into a directory that does not exist yet."""
    pytest.importorskip("fsspec")
    (tmp_path / "a").write_bytes(b"\0\1" * 1_000_000)
    run(utils.copy(f"file://{tmp_path}/a", f"file://{tmp_path}/new/b"))
    assert (tmp_path / "new" / "b").read_bytes() == b"\0\1" * 1_000_000


def test_booth(tmp_path: Path) -> None:
    """The value, also for negative arguments, is stored under the number of the trial."""
    pytest.importorskip("fsspec")
    from torchx.runtime.tracking import FsspecResultTracker

    run(utils.booth(x1=-1.0, x2=-2.5, trial_idx=7, tracker_base=str(tmp_path / "t")))
    assert FsspecResultTracker(str(tmp_path / "t")).get(7) == {"booth_eval": 259.25}


CONFIG = """
_target_: torchx.specs.AppDef
name: ${oc.env:JOB_NAME}
metadata: {lr: "0.1"}
roles:
  - _target_: torchx.specs.Role
    name: trainer
    image: img
    entrypoint: python
    args: ["--lr", "${metadata.lr}", "--id", "${app_id}", "--replica=\\\\${replica_id}"]
    resource:
      _target_: torchx.specs.Resource
      cpu: 1
      gpu: 0
      memMB: 100
"""


def test_hydra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration with overrides becomes the AppDef; macros are preserved."""
    pytest.importorskip("hydra")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOB_NAME", "my job")
    (tmp_path / ".torchx").mkdir()
    (tmp_path / ".torchx" / "base.yaml").write_text(CONFIG)
    app = materialize_appdef(utils.hydra, ["-cn", "base", "--", "metadata.lr=0.5", "roles.0.image=new"])
    assert (app.name, app.roles[0].image) == ("my job", "new")
    assert app.roles[0].args == ["--lr", "0.5", "--id", macros.app_id, f"--replica={macros.replica_id}"]
    assert app.roles[0].resource == Resource(cpu=1, gpu=0, memMB=100)


@pytest.mark.parametrize("indent", ["", "  "], ids=["top", "below app"])
def test_hydra_as_before(indent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The AppDef may be the key `app`, and macros may be written as resolvers."""
    pytest.importorskip("hydra")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".torchx").mkdir()
    job = """
_target_: torchx.specs.AppDef
name: j-${lr}
roles:
  - {_target_: torchx.specs.Role, name: r, image: i, entrypoint: e, args: ["${torchx.app_id:}/${torchx.replica_id:}", "${lr}"]}
"""
    text = ("app:\n" if indent else "") + "".join(f"{indent}{line}\n" for line in job.splitlines())
    (tmp_path / ".torchx" / "c.yaml").write_text(f"lr: 0.1\n{text}")
    app = materialize_appdef(utils.hydra, ["-cn", "c", "--", "lr=0.5"])
    assert app.name == "j-0.5"
    assert app.roles[0].args == [f"{macros.app_id}/{macros.replica_id}", "0.5"]


GROUPS = {
    "job": """
defaults: [{size: small}, _self_]
lr: 0.1
_target_: torchx.specs.AppDef
name: train-${size.replicas}
roles:
  - _target_: torchx.specs.Role
    name: trainer
    image: img
    entrypoint: python
    args: [--lr, "${lr}", '\\${HOME} costs $5', "${oc.env:USER}", "${app_id}-${replica_id}"]
    num_replicas: ${size.replicas}
    resource: {_target_: torchx.specs.resource, h: "${size.h}"}
""",
    "size/small": "replicas: 1\nh: cpu.nano\n",
    "size/large": "replicas: 4\nh: cpu.micro\nextra: {deep: ['${lr}']}\n",
}


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a configuration, and a group of it."""
    pytest.importorskip("hydra")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("USER", "ada")
    for name, content in GROUPS.items():
        file = tmp_path / ".torchx" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return tmp_path


def test_hydra_groups(groups: Path) -> None:
    """Defaults, groups and new keys work; keys that are not fields of an AppDef serve interpolation only."""
    literal = ["${HOME} costs $5", "ada", f"{macros.app_id}-{macros.replica_id}"]
    app = materialize_appdef(utils.hydra, ["-cn", "job"])
    assert (app.name, app.roles[0].args) == ("train-1", ["--lr", "0.1", *literal])
    app = materialize_appdef(utils.hydra, ["-cn", "job", "--", "size=large", "lr=5", "+metadata.team=vision"])
    assert (app.name, app.metadata, app.roles[0].num_replicas) == ("train-4", {"team": "vision"}, 4)
    assert app.roles[0].args == ["--lr", "5", *literal]
    assert app.roles[0].resource == resource(h="cpu.micro")


def test_hydra_on_this_machine(groups: Path) -> None:
    """The described job runs, with Hydra's overrides and torchx's macros in its arguments."""
    from torchx.runner import get_runner

    words = ["-cn", "job", "--", "size=large", "roles.0.entrypoint=echo"]
    with get_runner("hydra") as runner:
        handle = runner.run_component("utils.hydra", words, "local_cwd")
        status = runner.wait(handle, wait_interval=0.1, timeout=300)
        assert status is not None
        assert str(status.state) == "SUCCEEDED"
        lines = ["".join(runner.log_lines(handle, "trainer", k)) for k in range(4)]
    app_id = handle.rpartition("/")[2]
    assert lines == [f"--lr 0.1 ${{HOME}} costs $5 ada {app_id}-{k}\n" for k in range(4)]


def test_hydra_misspelt(groups: Path) -> None:
    """A misspelled field raises an error instead of being ignored."""
    with pytest.raises(SpecError, match="no field `metadat`") as e:
        materialize_appdef(utils.hydra, ["-cn", "job", "--", "+metadat={a: b}"])
    assert e.value.hint == "did you mean `metadata`?"


def test_hydra_says_why(groups: Path) -> None:
    """For an unknown field of a role, the error has Hydra's message and the reason below it."""
    with pytest.raises(SpecError, match=r"torchx.specs.*Role.*unexpected keyword argument 'imgae'"):
        materialize_appdef(utils.hydra, ["-cn", "job", "--", "+roles.0.imgae=x"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-cn", "none"], "configuration `none`"),
        (["-cn", "text"], "describes `dict`, not an AppDef"),
        (["-cn", "text", "-cd", "nowhere"], "`nowhere` does not exist"),
        (["-cn", "text", "--", "nokey=1"], "configuration `text`"),
        (["-cn", "broken"], "configuration `broken`"),
        (["-cn", "nulls"], r"`args\[1\]` of role `r` is null"),
        (["-cn", "nulls", "--", "ckpt=c"], r"`env.D` of role `r` is null"),
    ],
)
def test_hydra_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    """A missing, wrong or failing configuration raises an error of one line."""
    pytest.importorskip("hydra")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".torchx").mkdir()
    (tmp_path / ".torchx" / "text.yaml").write_text("a: b\n")
    (tmp_path / ".torchx" / "nulls.yaml").write_text(
        "ckpt: null\n_target_: torchx.specs.AppDef\nname: a\nroles:\n- _target_: torchx.specs.Role\n  name: r\n"
        "  image: ''\n  entrypoint: echo\n  args: [--ckpt, '${ckpt}']\n  env: {A: 1, D: null}\n"
    )
    (tmp_path / ".torchx" / "broken.yaml").write_text("_target_: no_such_module.Thing\n")
    with pytest.raises(SpecError, match=message) as e:
        materialize_appdef(utils.hydra, words)
    assert "\n" not in str(e.value)


def test_hydra_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hydra-core, the hint has the install command."""
    monkeypatch.setitem(sys.modules, "hydra", None)
    with pytest.raises(MissingDependencyError, match="needs the package `hydra`") as e:
        utils.hydra(config_name="x")
    assert e.value.hint == "pip install 'hydra-core>=1.3'"
