"""Every Python, shell and TOML block of the user's documents runs as written.

The documents are read from the folder ``TORCHX_SPEC_DIR``, else from ``shared/spec`` beside the repository; without
them these tests are skipped. The blocks of a page share a namespace, in order, and run in a folder with the scripts
that the pages mention. What is put in their place, and why, stands in ``SUBSTITUTIONS`` and ``BEFORE``.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
import subprocess
import sys
import textwrap
import types
import unittest
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from torchx.testing import site

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.environ.get("TORCHX_SPEC_DIR") or os.path.join(REPOSITORY, "..", "shared", "spec")

pytestmark = pytest.mark.skipif(not os.path.isdir(FOLDER), reason="the user's documents are not here")

# (page, text in the block) -> (text, what runs in its place). Each is a blank that the page leaves to its reader.
SUBSTITUTIONS = {
    # "the roles of your job": where the job is submitted, the role that the page defined before
    ("quick-reference", 'app = AppDef(name="my_job", roles=[...])'): ("roles=[...]", "roles=[role]"),
}

# (page, text in the block) -> what runs before it: a name that the page uses and does not define.
BEFORE = {
    # the log of a role named `trainer` is read: the page's own component has one, its first AppDef has not
    ("basic-concepts", "app_handle = runner.run(app,"): (
        "app = ddp(name='my_job', nnodes=1, image='/tmp', entrypoint='/bin/echo')"
    ),
}

# Arguments that a page's command leaves out although the component on the page requires them.
REQUIRED_ARGUMENTS = {
    "torchx run --scheduler local_cwd my_component.py:ddp": "--name docs --nnodes 1 --image / --entrypoint /bin/echo"
}

GROUPS = {"torchx.schedulers", "torchx.named_resources", "torchx.components", "torchx.tracker", "torchx.cli.cmds"}


class Block(NamedTuple):
    """One code block of a page."""

    page: str
    language: str
    line: int
    text: str


def rst_blocks(page: str) -> list[Block]:
    """The code blocks of a reStructuredText page."""
    with open(os.path.join(FOLDER, f"{page}.rst"), encoding="utf-8") as f:
        lines = f.read().splitlines()
    found = []
    for number, line in enumerate(lines):
        match = re.match(r"( *)\.\. code-block:: (\w+)$", line)
        if match is None:
            continue
        body = []
        for text in lines[number + 1 :]:
            if text.strip() and not text.startswith(match[1] + " "):
                break
            body.append(text)
        found.append(Block(page, match[2], number + 2, textwrap.dedent("\n".join(body)).strip("\n") + "\n"))
    return found


def pages() -> list[str]:
    return (
        sorted(n.removesuffix(".rst") for n in os.listdir(FOLDER) if n.endswith(".rst"))
        if os.path.isdir(FOLDER)
        else []
    )


@pytest.fixture
def sandbox(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A folder with the scripts that the pages name; `kubernetes` is a stand-in; jobs are waited for at the end."""
    (tmp_path / "train.py").write_text("print('training')\n")
    (tmp_path / "my_train.py").write_text("import sys\nprint('training', sys.argv[1:])\n")
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name, command in {"torchx": "-m torchx ", "python": ""}.items():
        (bin_dir / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command}"$@"\n')
        (bin_dir / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_dir}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TORCHX_INTERNAL_SESSION_ID", "documents")  # the Runner sets it where it is not
    monkeypatch.chdir(tmp_path)
    packages = tmp_path / "packages"
    packages.mkdir()
    with open(os.path.join(os.path.dirname(__file__), "standin.py"), encoding="utf-8") as f:
        standin = f.read()
    with site(str(packages)) as made:
        made.install(
            "standin",
            entry_points="[torchx.schedulers]\nkubernetes = torchx_documents_standin:create_scheduler\n",
            files={"torchx_documents_standin.py": standin},
        )
        monkeypatch.setenv("PYTHONPATH", str(packages))
        yield tmp_path
        wait_for_local_jobs()


def wait_for_local_jobs() -> None:
    from torchx.runner import get_runner

    with get_runner() as runner:
        for job in runner.list("local_cwd"):
            runner.wait(job.app_handle, wait_interval=0.05)


class Page:
    """The program that a page's Python blocks are: one module, whose source can be inspected."""

    def __init__(self, name: str, folder: Any) -> None:
        self.module = types.ModuleType(f"documents_{name.replace('-', '_')}")
        self.path = os.path.join(folder, f"{self.module.__name__}.py")
        self.module.__file__ = self.path
        self.source = ""
        sys.modules[self.module.__name__] = self.module

    def run(self, text: str) -> None:
        start = self.source.count("\n")
        self.source += text
        with open(self.path, "w", encoding="utf-8") as f:
            f.write(self.source)
        exec(compile("\n" * start + text, self.path, "exec"), self.module.__dict__)

    def __getitem__(self, name: str) -> Any:
        return getattr(self.module, name)

    def close(self) -> None:
        runner = getattr(self.module, "runner", None)
        if runner is not None:
            runner.close()
        del sys.modules[self.module.__name__]


def python_text(block: Block) -> str:
    """What is run for a block: the block, but for the substitutions."""
    text = block.text
    for (page, has), (old, new) in SUBSTITUTIONS.items():
        if page == block.page and has in text:
            text = text.replace(old, new)
    for (page, has), before in BEFORE.items():
        if page == block.page and has in text:
            text = f"{before}\n{text}"
    return text


@pytest.mark.parametrize("page", pages())
def test_page(page: str, sandbox: Any) -> None:
    """All blocks of a page run, in order."""
    blocks = rst_blocks(page)
    with open(os.path.join(FOLDER, f"{page}.rst"), encoding="utf-8") as f:
        assert len(blocks) == f.read().count("code-block::")
    program = Page(page, sandbox)
    try:
        for block in blocks:
            try:
                run_block(block, program, sandbox)
            except Exception as e:
                e.add_note(f"{page}.rst:{block.line}") if hasattr(e, "add_note") else None
                raise
    finally:
        program.close()


def run_block(block: Block, program: Page, sandbox: Any) -> None:
    if block.language == "python" and re.match(r"(# setup\.py\n)?entry_points=", block.text):
        check_entry_points(eval(f"dict({block.text})")["entry_points"])
    elif block.language == "python":
        if match := re.match(r"# (\w+\.py)\n", block.text):
            (sandbox / match[1]).write_text(block.text.partition("# Launch it:")[0])
        if hasattr(program.module, "runner"):
            # Blocks go on with the runner of a `with` block before them: they get one that is open.
            program.run("from torchx.runner import get_runner\nrunner = get_runner()\n")
        program.run(python_text(block))
        check_plugins(program, block)
    elif block.language == "shell":
        run_shell(block, program, sandbox)
    elif block.language == "toml":
        toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
        check_entry_points(
            {
                g: [f"{k} = {v}" for k, v in es.items()]
                for g, es in toml.loads(block.text)["project"]["entry-points"].items()
            }
        )
    else:
        assert block.language == "text", f"{block.page}.rst:{block.line}: what is `{block.language}`?"


def run_shell(block: Block, program: Page, sandbox: Any) -> None:
    """Commands exit with 0; one that lacks required arguments says which, and works when they are given."""
    if hasattr(program.module, "ddp"):
        source = inspect.getsource(program.module.ddp)
        (sandbox / "my_component.py").write_text(f"import torchx.specs as specs\n\n{source}")
    for command in block.text.strip().splitlines():
        required = REQUIRED_ARGUMENTS.get(command, "")
        if required:
            done = shell(command)
            assert done.returncode == 2
            assert "Traceback" not in done.stderr
            assert all(n in done.stderr for n in re.findall(r"--(\w+)", required)), done.stderr
        done = shell(f"{command} {required}")
        assert done.returncode == 0, done.stderr


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)


def check_entry_points(groups: dict[str, list[str]]) -> None:
    """The groups are those that torchx reads, and its parser understands the lines."""
    from torchx.plugins import discovery

    assert set(groups) <= GROUPS
    assert groups
    text = "".join(f"[{group}]\n" + "\n".join(lines) + "\n" for group, lines in groups.items())
    parsed = discovery.parse(text)
    assert len(parsed) == sum(map(len, groups.values()))
    assert all(re.fullmatch(r"[\w.]+(:\w+)?", e.value) for e in parsed)


def check_plugins(program: Page, block: Block) -> None:
    """What a block defines works, not only its definition."""
    defined = {n.name for n in ast.parse(block.text).body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    has = {name: program[name] for name in defined}
    if "create_scheduler" in has:
        check_scheduler(program)
    if "MySchedulerTest" in has:
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(has["MySchedulerTest"]).run(result)
        assert result.testsRun == 2
        assert not result.errors + result.failures, result.errors + result.failures
    if "MyWorkspaceMixin" in has:
        from torchx.specs import Role, Workspace

        role = Role(name="trainer", image="", workspace=Workspace({"/src": ""}))
        has["MyWorkspaceMixin"]().build_workspaces([role], {"artifact_store": "s3://bucket"})
        assert role.env["WORKSPACE_URL"] == "s3://bucket/trainer"
    if "MyTracker" in has:
        assert has["create"](None)._conn == "default://localhost"
    if "CmdMyTool" in has:
        parser = argparse.ArgumentParser()
        command = has["CmdMyTool"]()
        command.add_arguments(parser)
        command.run(parser.parse_args(["--config", "c", "kubernetes://s/a"]))
    if "_run_opts" in has:
        assert {name for name, _ in has["_run_opts"](None)} == {"cluster", "queue"}


def check_scheduler(program: Page) -> None:
    """The skeleton of a scheduler takes a job and renders it; its options have the help of their docstrings."""
    from torchx.specs import AppDef, Resource, Role

    created = program["create_scheduler"]
    scheduler = created("session")
    app = AppDef("job", [Role(name="r", image="i", entrypoint="echo", args=["x"], resource=Resource(1, 0, 1))])
    info = scheduler.submit_dryrun(app, {"cluster": "c"})
    assert info.request.cmd == ["echo", "x"]
    assert isinstance(scheduler.submit(app, {}), str)
    opt = scheduler.run_opts().get("cluster")
    assert opt.default == "default"
    assert "luster" in opt.help


def test_architecture_data_structures() -> None:
    """The classes that architecture.md sketches have its fields, in its order for those without default, and methods."""
    from torchx import specs
    from torchx.schedulers.api import Scheduler

    classes = [n for block in markdown_python() for n in ast.parse(block).body if isinstance(n, ast.ClassDef)]
    assert {c.name for c in classes} == {"AppDef", "Role", "Scheduler"}
    for drawn in classes:
        ours = Scheduler if drawn.name == "Scheduler" else getattr(specs, drawn.name)
        for node in drawn.body:
            if isinstance(node, ast.AnnAssign):
                assert isinstance(node.target, ast.Name)
                assert node.target.id in inspect.signature(ours).parameters
            if isinstance(node, ast.FunctionDef):
                drawn_names = [a.arg for a in node.args.args if a.arg not in ("self", "index")]
                assert set(drawn_names) - {"role"} <= set(inspect.signature(getattr(ours, node.name)).parameters)


def test_architecture_component() -> None:
    """The component that architecture.md sketches is one: it is validated, and called."""
    from torchx import specs

    (block,) = [b for b in markdown_python() if "def my_component" in b]
    namespace: dict[str, Any] = {"AppDef": specs.AppDef, "Role": specs.Role}
    exec(block, namespace)
    app = namespace["my_component"]("train.py")
    assert (app.name, app.roles[0].entrypoint) == ("my_app", "train.py")


def markdown_python() -> list[str]:
    """The Python blocks of architecture.md; `, ...)`, which is not Python after a keyword argument, is left out."""
    with open(os.path.join(FOLDER, "architecture.md"), encoding="utf-8") as f:
        blocks = re.findall(r"^```python\n(.*?)^```", f.read(), re.MULTILINE | re.DOTALL)
    assert blocks
    return [b.replace(", ...)", ")") for b in blocks]
