"""`torchx.notebook` in a real kernel: cells are written, launched, and looked at, as a person would do it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import blocks

nbformat = pytest.importorskip("nbformat", reason="needs nbclient and ipykernel; the extra `ci` has them")
pytest.importorskip("ipykernel", reason="needs nbclient and ipykernel; the extra `ci` has them")
nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel; the extra `ci` has them")

pytestmark = pytest.mark.timeout(600)  # a notebook is many commands, one after the other

PAGE = Path(__file__).resolve().parents[2] / "docs/notebook.md"
Outputs = list[dict[str, Any]]


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Outputs]]:
    """Runs cells in a new kernel, and returns the outputs of each; an error is an output too."""
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    spec = KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], display_name="this")
    monkeypatch.setattr(KernelSpecManager, "get_kernel_spec", lambda *_: spec)
    (tmp_path / "project").mkdir()

    def run(*cells: str) -> list[Outputs]:
        page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        resources = {"metadata": {"path": str(tmp_path / "project")}}
        # `iopub_timeout` is how long outputs may come behind the end of their cell: what is later is lost.
        waits = {"timeout": 300, "startup_timeout": 300, "iopub_timeout": 300}
        client = nbclient.NotebookClient(page, **waits, allow_errors=True, resources=resources)
        asyncio.run(client.async_execute())  # `execute` leaves its event loop open
        return [cell.outputs for cell in page.cells]

    return run


def text(outputs: Outputs) -> str:
    """Returns what a cell printed."""
    return "".join(out["text"] for out in outputs if out["output_type"] == "stream")


def value(outputs: Outputs) -> dict[str, str]:
    """Returns the value of a cell, by MIME type."""
    return next(dict(out["data"]) for out in outputs if out["output_type"] == "execute_result")


def error(outputs: Outputs) -> str:
    """Returns the error of a cell as it is displayed."""
    return next("\n".join(out["traceback"]) for out in outputs if out["output_type"] == "error")


@pytest.mark.slow
def test_a_notebook(notebook: Callable[..., list[Outputs]], tmp_path: Path) -> None:
    """Launches and inspects a job from cells; errors are one line without a traceback."""
    cells = {
        "load": "%load_ext torchx.notebook",
        "again": "import torchx.notebook\n%reload_ext torchx.notebook",
        "train": "%%workspacefile train.py\nimport sys\nfrom lib.greet import greeting\nprint(greeting, sys.argv[1:])",
        "greet": "%%workspacefile lib/greet.py\ngreeting = 'hello'",
        "list": "%workspace",
        "run": "lr = \"it's $(id)\"\njob = %torchx run utils.python --script train.py -- --lr {lr} '${app_id}'\njob.wait()",
        "log": "print(*job.log_lines(), sep='')",
        "job": "job",
        "status": "%torchx status @last",
        "handle": "job.handle == torchx.notebook.Job('@last').handle",
        "component": "%%workspacefile comp.py\nimport torchx.specs as specs\n\n\ndef two(n: int) -> specs.AppDef:\n"
        "    return specs.AppDef('two', [specs.Role('two', '', entrypoint='true', num_replicas=n)])",
        "run component": "%%torchx run --wait comp.py:two\n  --n 2",
        "fails": "%torchx run --wait utils.sh 'echo no >&2; exit 3'",
        "mistake": "%torchx run utils.echo --mgs x",
        "outside": "%%workspacefile ../x\nx",
        "here": "import os, logging\nprint(os.getcwd(), logging.getLogger().handlers)",
        "complete": "print(get_ipython().Completer.complete(line_buffer='%torchx run utils.ec', cursor_pos=20)[1])",
        "unload": "%unload_ext torchx.notebook\n%torchx --version",
    }
    out = dict(zip(cells, notebook(*cells.values()), strict=True))
    assert out["load"] == out["again"] == []
    assert text(out["train"]) == "wrote train.py, 72 bytes, in memory://torchx-workspace\n"
    assert text(out["list"]) == "      19  lib/greet.py\n      72  train.py\n"
    assert "SUCCEEDED" in value(out["run"])["text/html"]
    app_id = value(out["job"])["text/plain"].splitlines()[0].rpartition("/")[2]
    assert text(out["log"]).strip() == f"hello ['--lr', \"it's $(id)\", '{app_id}']"
    assert app_id in value(out["job"])["text/html"]
    assert "SUCCEEDED" in text(out["status"])
    assert value(out["handle"])["text/plain"] == "True"
    assert "2 SUCCEEDED" in value(out["run component"])["text/html"]
    assert "exit code 3" in text(out["fails"])
    assert error(out["fails"]) == "`torchx run` ended with exit code 1"
    assert "did you mean `--msg`" in text(out["mistake"])
    assert error(out["outside"]).startswith("`../x` is not a path below the workspace's root")
    assert text(out["here"]) == f"{tmp_path}/project []\n"
    assert "utils.echo" in text(out["complete"])
    assert "`%torchx` not found" in text(out["unload"])


def test_import_is_enough(notebook: Callable[..., list[Outputs]]) -> None:
    """`import torchx.notebook` registers the magics."""
    (_, version) = notebook("import torchx.notebook", "%torchx --version")
    assert text(version).startswith("torchx ")
    assert os.environ.get("IPYTHONDIR")


@pytest.mark.slow
def test_the_page(notebook: Callable[..., list[Outputs]]) -> None:
    """The cells of docs/notebook.md run in order."""
    cells = [block.body for block in blocks(str(PAGE)) if block.language == "ipython"]
    out = notebook(*cells)
    assert len(cells) >= 6
    assert [o for outputs in out for o in outputs if o["output_type"] == "error"] == []
    assert "SUCCEEDED" in value(out[2])["text/html"]
    assert "2 SUCCEEDED" in value(out[3])["text/html"]
    assert text(out[4]).strip() == "training with ['--lr', '0.1']"
