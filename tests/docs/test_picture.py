"""The moving picture at the top of README: what is in it was really typed and written, and any browser can show it."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs/_site/static/terminal.svg"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def picture(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import importlib

    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("_site.picture")


def lines(svg: str) -> list[str]:
    """The texts of the picture, one a line."""
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_the_picture_shows_what_the_script_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of scripts/picture is in it, in that order; and README says true of how the last run ends."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    commands = runpy.run_path(str(ROOT / "scripts/picture"))["COMMANDS"]
    shown = lines(PICTURE.read_text())
    assert [line for line in shown if line.startswith("$")] == [f"${command}" for command in commands]
    text = "\n".join(shown)
    assert re.search(r"final test accuracy: 0\.\d+", text)
    assert re.search(r"^cause: +finetune/0 rank 2: .*ValueError: label 10", text, re.MULTILINE)
    blamed = re.search(r"Root Cause.*?rank +: (\d)", text, re.DOTALL)
    assert blamed
    assert blamed[1] != "2", "PyTorch blames the right worker this time: make the picture again"


def test_any_page_can_show_the_picture() -> None:
    """It is small, and holds no script, nothing to load, and no path of the machine that it was made on."""
    text = PICTURE.read_text()
    assert len(text) < 300_000
    assert not re.search(r"<script|href=|url\(|@import", text)
    assert set(re.findall(r"/(?:home|root|tmp|work)/\w+", text)) <= {"/home/ann"}
    assert "prefers-reduced-motion" in text


def test_a_film_shows_each_state_of_a_line(picture: ModuleType) -> None:
    """A line that is written over is seen first as it was, then as it is; what does not fit scrolls up."""
    film = picture.Film(columns=40, rows=3)
    film.type("make it")
    film.write(iter([(0.1, "10 %"), (0.2, "\r\x1b[32m99 %\x1b[0m"), (9.0, "\r\nend\r\n"), (9.0, "")]))
    first, second = (piece for piece in film.pieces if piece.row == 1)
    assert ("".join(c for c, _ in first.cells), "".join(c for c, _ in second.cells)) == ("10 %", "99 %")
    assert first.until == second.since < film.now
    assert second.until is None
    assert film.now < 9, "pauses are shortened"
    assert [below for _, below in film.scrolls] == [0, 1]
    shown = lines(film.svg("<a & b>"))
    assert shown[0] == "<a & b>"
    assert {"10 %", "99 %", "end"} <= set(shown)
