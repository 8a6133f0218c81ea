"""Every example of the documentation runs as written."""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import Block, blocks, matches, run

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    os.path.relpath(page, ROOT)
    for page in [*glob.glob(f"{ROOT}/docs/**/*.md", recursive=True), f"{ROOT}/README.md", f"{ROOT}/CONTRIBUTING.md"]
)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's directory: the examples lie in it, and `torchx` is the one that is tested."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    return tmp_path


def _marked(page: str) -> Any:
    """The page, marked when none of its blocks needs an optional package."""
    return (
        page if any(block.needs for block in blocks(str(ROOT / page))) else pytest.param(page, marks=pytest.mark.plain)
    )


@pytest.mark.timeout(1800)  # a page is many real jobs, one after the other; each block has a limit of its own
@pytest.mark.parametrize("page", [_marked(page) for page in PAGES])
def test_blocks_run_as_written(page: str, reader: Path) -> None:
    """Each block does what the page shows, in the page's order, in an empty directory with the examples."""
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks(str(ROOT / page)):
        if block.not_run or (block.needs and importlib.util.find_spec(block.needs) is None):
            continue
        try:
            run(block, namespace)
        except AssertionError as difference:
            said = str(difference) or f"{block.where}: an assertion of the example fails"
            raise pytest.fail.Exception(said, pytrace=False) from None


NEEDY = [block for page in PAGES for block in blocks(str(ROOT / page)) if block.needs]


@pytest.mark.parametrize("block", NEEDY, ids=[os.path.basename(block.where) for block in NEEDY])
def test_needs_are_there(block: Block) -> None:
    """A block that needs an optional package is not passed over in silence: this says so, and the gate has the package."""
    if importlib.util.find_spec(block.needs) is None:
        pytest.skip(f"{os.path.relpath(block.where, ROOT)} needs {block.needs}; the gate runs it")
    assert importlib.util.find_spec(block.needs) is not None


GENERATED = {
    "cli.md",
    "run-options.md",
    "components.md",
    "environment.md",
    "capabilities.md",
    "troubleshooting.md",
    "cli-json.md",
}


def _text(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub and the site name them."""
    heads = re.findall(r"^#+ (.*)$", _text(page), re.MULTILINE)
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", head).lower() for head in heads]
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in plain}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """A relative link of a page names a file that exists, and a heading of that page."""
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", _text(ROOT / page)):
        if "://" in target:
            continue
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        if anchor and file.name not in GENERATED:
            assert anchor in _anchors(file), f"{page} links to {target}#{anchor}"


def test_a_wrong_page_fails(reader: Path) -> None:
    """The checker itself can fail: output that differs from what is shown, and a command that fails."""
    with pytest.raises(AssertionError, match="but printed"):
        run(Block("page.md", 1, "console", "$ echo one\ntwo\n"), {})
    with pytest.raises(AssertionError, match="exit code 3"):
        run(Block("page.md", 1, "bash", "exit 3"), {})
    assert matches("one ...\n...\nfour", "one two\nthree\nfour\n")
    assert not matches("one", "one\ntwo\n")


def test_a_transcript_is_compared_as_a_person_sees_it(reader: Path) -> None:
    """On a terminal: its width, the text that a progress line leaves, stderr too; ids and times do not count."""
    shown = """$ tput cols; printf '10 %%\\rdone\\033[K\\n' >&2; echo run-k492mg39v99w60 after 3 s
88
done
run-bcdfghjklmnpqr after 21.5 s
"""
    run(Block("page.md", 1, "console", shown, terminal="88"), {})
    with pytest.raises(AssertionError, match="but printed"):
        run(Block("page.md", 1, "console", shown.replace("done\n", "10 %\n"), terminal="88"), {})
    with pytest.raises(AssertionError, match="but printed"):
        run(Block("page.md", 1, "console", shown.replace("run-b", "job-b"), terminal="88"), {})
