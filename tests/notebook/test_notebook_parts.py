"""The parts of `torchx.notebook` that need no kernel: words, files, streams, pages; and that importing it costs nothing."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.errors import SpecError
from torchx.notebook import WORKSPACE, commands, magics, workspace, workspacefile
from torchx.notebook.job import Job
from torchx.render import html_pages
from torchx.runner.watching.answers import status_of
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.verdict import on_answer
from torchx.specs import AppState, AppStatus, ReplicaStatus, RoleStatus

pytest.importorskip("fsspec")

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    workspace.clear()
    monkeypatch.setattr(workspace, "_folder", "")
    workspace._laid_out.clear()
    yield
    workspace.clear()


# importing


def test_import_costs_nothing() -> None:
    """Without IPython the import loads only the module and its package."""
    code = "import sys; before = set(sys.modules); import torchx.notebook; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["__future__", "torchx", "torchx.notebook", "torchx.version"]


def test_import_without_ipython() -> None:
    """The module works without IPython installed."""
    code = (
        "import sys; sys.modules['IPython'] = None; import torchx.notebook as n; "
        "n.workspacefile('a.py', 'x'); print(n.WORKSPACE)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{WORKSPACE}\n"), done.stderr


# the words of a command


@given(value=TEXT)
def test_a_variable_is_one_argument(value: str) -> None:
    """A value with blanks, quotes, dollars or braces, or an empty one, is one argument."""
    assert magics.split("run x --msg {value} '{value}'", {"value": value}) == ["run", "x", "--msg", value, value]


def test_what_stays_as_it_is() -> None:
    """Macros, shell variables, JSON and unknown names are not replaced."""
    text = """run x '${app_id}' '$HOME' '{"a": 1}' {nobody} {} {0} {1x}"""
    expected = ["run", "x", "${app_id}", "$HOME", '{"a": 1}', "{nobody}", "{}", "{0}", "{1x}"]
    assert magics.split(text, {"app_id": "no", "HOME": "no", "a": "no"}) == expected


def test_what_is_in_a_variable() -> None:
    """Attributes and items work as in a format string; nothing is called."""
    variables = {"cfg": SimpleNamespace(lr=0.1), "sizes": [1, 2], "names": {"a": "b c"}}
    assert magics.split("{cfg.lr} {sizes[1]} --n={names[a]}", variables) == ["0.1", "2", "--n=b c"]
    assert magics.split("'{cfg.lr()}'", variables) == ["{cfg.lr()}"]
    for broken in ("{cfg.no}", "{sizes[7]}", "{names[x]}"):
        with pytest.raises(magics.MistakeError, match="has no value"):
            magics.split(broken, variables)


def test_lines() -> None:
    """The lines of a cell are further words, with or without a backslash."""
    assert magics.split("run x\n  --a 1 \\\n  --b '2 3'\n", {}) == ["run", "x", "--a", "1", "--b", "2 3"]
    with pytest.raises(magics.MistakeError, match="cannot be parsed"):
        magics.split("run 'x", {})


# the files of the cells


def test_files() -> None:
    """Files can be written, replaced, appended to, listed and removed; fsspec finds them."""
    import fsspec

    assert workspacefile("a.py", "1\n") == 2
    workspacefile("a.py", "two\n")
    workspacefile("a.py", "é\n", append=True)
    workspacefile("lib/./b.py", "")
    assert workspace.files() == {"a.py": 7, "lib/b.py": 0}
    with fsspec.open(f"{WORKSPACE}/a.py") as f:
        assert f.read().decode() == "two\né\n"
    assert (workspace.clear(), workspace.files(), workspace.clear()) == (2, {}, 0)


@pytest.mark.parametrize("path", ["", " ", ".", "..", "/etc/x", "../x", "a/../../x", "a\0b", "lib", "lib/b.py/c"])
def test_no_path_leads_out(path: str) -> None:
    """An invalid path, one outside the workspace or below a file, or a folder, is an error, and nothing is written."""
    workspacefile("lib/b.py", "x")
    with pytest.raises(SpecError, match=r"is not a path below|is a folder|is below a file"):
        workspacefile(path, "x")
    assert workspace.files() == {"lib/b.py": 1}


def test_the_folder_of_this_process() -> None:
    """The folder mirrors the files; removed files go, files of jobs stay; it is private."""
    workspacefile("a.py", "1")
    workspacefile("lib/b.py", "2")
    folder = Path(workspace.folder())
    (folder / "checkpoint").touch()
    workspace.clear()
    workspacefile("a.py", "3")
    assert workspace.folder() == str(folder)
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == ["a.py", "checkpoint"]
    assert (folder / "a.py").read_text() == "3"
    assert folder.stat().st_mode & 0o077 == 0


def test_a_quote_that_is_not_closed() -> None:
    """It is an error without a traceback."""
    with pytest.raises(magics.MistakeError, match="cannot be parsed"):
        magics.Magics(None).workspacefile('"a.py', "x")


# which code goes along


def test_nothing_written_nothing_changed() -> None:
    """Without files, `run` uses the default workspace."""
    words = ["run", "utils.echo"]
    assert commands.with_cells(words) == (words, "")


def test_a_scheduler_that_builds() -> None:
    """`--workspace` is inserted before the component, after the options of torchx."""
    workspacefile("a.py", "1")
    words, folder = commands.with_cells(["--log_level", "INFO", "run", "-s", "slurm", "utils.echo", "--msg", "x"])
    expected = ["--log_level", "INFO", "run", "--workspace", WORKSPACE, "-s", "slurm", "utils.echo", "--msg", "x"]
    assert (words, folder) == (expected, "")


def test_a_scheduler_that_does_not() -> None:
    """A local job runs in a folder with the files."""
    workspacefile("a.py", "1")
    assert commands.with_cells(["run", "utils.echo"]) == (["run", "utils.echo"], workspace.folder())


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--workspace", ".", "utils.echo"],
        ["run", "--workspace=", "utils.echo"],
        ["run", "--help"],
        ["run", "utils.echo", "--help"],
        ["run", "--stdin"],
        ["run", "--nope", "utils.echo"],
        ["status", "run"],
        ["--nope"],
        [],
    ],
    ids=" ".join,
)
def test_left_alone(words: list[str]) -> None:
    """A given workspace, another verb, and invalid commands are not changed."""
    workspacefile("a.py", "1")
    assert commands.with_cells(words) == (words, "")


def test_an_option_of_the_component_is_not_ours() -> None:
    """`--workspace` after the component belongs to the component."""
    workspacefile("a.py", "1")
    assert commands.with_cells(["run", "utils.echo", "--workspace", "."])[1] == workspace.folder()


def test_a_component_of_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`file.py:function` is found in the current directory, then among the cells' files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").touch()
    workspacefile("comp.py", "1")
    words = [
        commands.with_cells(["run", *w])[0][-1]
        for w in (["comp.py:f"], ["here.py:f"], ["--", "comp.py:f"], ["no.py:f"])
    ]
    in_cell = f"{workspace.folder()}/comp.py:f"
    assert words == [in_cell, f"{tmp_path}/here.py:f", in_cell, "no.py:f"]


def test_where_we_are_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs in the folder, with the config file of the current directory, which is restored."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".torchxconfig").write_text("[local_cwd]\n")
    workspacefile("a.py", "1")
    with pytest.raises(KeyError), commands._working_in(workspace.folder()):
        assert (os.getcwd(), Path(".torchxconfig").read_text()) == (workspace.folder(), "[local_cwd]\n")
        raise KeyError
    assert os.getcwd() == str(tmp_path)
    (tmp_path / ".torchxconfig").unlink()
    with commands._working_in(workspace.folder()):
        assert not Path(".torchxconfig").exists()


# what a command writes


def shown(*texts: str, keep: bool = False) -> tuple[str, str]:
    out = io.StringIO()
    stream = commands.Output(out)
    for text in texts:
        stream.write(text)
        stream.flush()
    handle = stream.finish(keep_handle=keep)
    return out.getvalue(), handle


def test_the_handle_is_returned_and_not_shown() -> None:
    """A handle alone on the last line is returned; elsewhere it is printed."""
    handle = "local_cwd://torchx/echo-x"
    assert shown("hello\n", f"{handle}\n") == ("hello\n", handle)
    assert shown("hello\n", handle, "\n") == ("hello\n", handle)
    assert shown(f"{handle}\nhello\n") == (f"{handle}\nhello\n", "")
    assert shown(f"app: {handle}\n") == (f"app: {handle}\n", "")
    assert shown(f"{handle}\n", keep=True) == (f"{handle}\n", "")


@given(st.lists(TEXT))
def test_nothing_else_is_held_back(texts: list[str]) -> None:
    """All other output is printed in order, however it is chunked."""
    assert shown(*texts, keep=True) == ("".join(texts), "")


def test_the_process_is_as_before() -> None:
    """A command restores arguments, streams and log handlers."""
    import logging

    from torchx.cli.main import main

    root, before = logging.getLogger(), (sys.argv, sys.stdout, sys.stderr, list(logging.getLogger().handlers))
    level = root.level
    with commands.as_a_command_line(["--log_level", "INFO", "--version"]):
        main(["--log_level", "INFO", "builtins"])
    assert (sys.argv, sys.stdout, sys.stderr, list(root.handlers), root.level) == (*before, level)


def test_an_exit_code_is_an_error() -> None:
    """A failed command raises, so that "run all cells" stops."""
    with pytest.raises(commands.CommandError, match="`torchx status` ended with exit code 3") as e:
        commands.run(["status", "nobody"])
    assert (e.value.exit_code, e.value._render_traceback_()) == (3, [str(e.value)])


def test_a_job_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`run` returns the job without printing its handle."""
    monkeypatch.chdir(tmp_path)
    job = commands.run(["run", "-s", "local_cwd", "utils.echo", "--msg", "from the job"])
    assert isinstance(job, Job)
    status = job.wait(timeout=300)
    assert status is not None
    assert status.state == AppState.SUCCEEDED
    assert list(job.log_lines()) == ["from the job\n"]
    assert job.handle not in capsys.readouterr().out
    assert commands.run(["status", job.app_id]) is None
    bundle = job._repr_mimebundle_()
    assert job.handle in bundle["text/plain"]
    assert "SUCCEEDED" in bundle["text/html"]


# pages


def failed(message: str) -> AppStatus:
    told = {"message": message, "errorCode": 1, "extraInfo": {"py_callstack": "Traceback\n  <here>\n"}}
    error = json.dumps({"message": told})
    replica = ReplicaStatus(0, AppState.FAILED, "trainer<b>", "host&1", error)
    answer = DescribeAppResponse(
        "a", AppState.FAILED, msg="<script>", roles_statuses=[RoleStatus("trainer<b>", [replica])]
    )
    return status_of(on_answer(answer), near=False)


def test_a_failure() -> None:
    """The page has state, cause, traceback and role, and escapes all values."""
    page = html_pages.status_html(failed("ValueError: <img src=x onerror=alert(1)>"), "slurm://torchx/<1>")
    assert "exit code 1: ValueError: &lt;img src=x onerror=alert(1)&gt;" in page
    assert all(text in page for text in ("slurm://torchx/&lt;1&gt;", "&lt;script&gt;", "host&amp;1", "  &lt;here&gt;"))
    assert not any(text in page for text in ("<img", "<script", "trainer<b>"))


@given(TEXT)
def test_no_text_breaks_out(text: str) -> None:
    """No text of a scheduler becomes HTML."""
    from html.parser import HTMLParser

    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[tuple[str, list[tuple[str, Any]]]] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
            self.found.append((tag, attrs))

    def tags(value: str) -> list[Any]:
        parser = Tags()
        status = AppStatus(AppState.RUNNING, msg=f"x{value}", roles=[RoleStatus(value, [])])
        parser.feed(html_pages.status_html(status, f"x{value}"))
        return parser.found

    assert tags(text) == tags("x")


@pytest.mark.parametrize(
    ("url", "linked"),
    [("https://example.org/a?b=1&c='\"", True), ("javascript:alert(1)", False), ("file:///etc/passwd", False)],
)
def test_links(url: str, linked: bool) -> None:
    """Only web addresses become links."""
    page = html_pages.status_html(AppStatus(AppState.RUNNING, ui_url=url))
    assert ("<a href=" in page) == linked
    assert page.count('"') % 2 == 0


def test_many_replicas_are_one_line() -> None:
    """The page of thousands of replicas is as short as that of a few."""
    replicas = [ReplicaStatus(k, AppState.RUNNING, "r", f"host{k}") for k in range(5000)]
    page = html_pages.status_html(AppStatus(AppState.RUNNING, roles=[RoleStatus("r", replicas)]))
    assert "5000 RUNNING" in page
    assert "host0, host1, host2 and 4997 more" in page
    assert len(page) < 3000
