"""Results of trials, stored with fsspec."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx.errors import MissingDependencyError, ParseError
from torchx.runtime.tracking import FsspecResultTracker, ResultTracker

pytest.importorskip("fsspec")


def test_put_and_get(tmp_path: Path) -> None:
    """Results are returned as they were stored, by number or name, and replaced by later ones."""
    tracker = FsspecResultTracker(f"file://{tmp_path}/new/dir/")
    assert isinstance(tracker, ResultTracker)
    tracker.put(1, accuracy=0.5, epochs=3, name="é")
    tracker.put("trial 2", loss=-1)
    assert tracker.get(1) == tracker.get("1") == {"accuracy": 0.5, "epochs": 3, "name": "é"}
    tracker.put(1, loss=2)
    assert FsspecResultTracker(str(tmp_path / "new/dir")).get(1) == {"loss": 2}


def test_no_half_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader gets old or new results during a replacement; nothing else stays in the directory."""
    import os

    tracker = FsspecResultTracker(str(tmp_path))
    tracker.put(1, loss=1)
    seen = []
    replace = os.replace

    def watched(src: str, dst: str) -> None:
        seen.append(tracker.get(1))
        replace(src, dst)
        seen.append(tracker.get(1))

    monkeypatch.setattr(os, "replace", watched)
    tracker.put(1, loss=2)
    assert seen == [{"loss": 1}, {"loss": 2}]
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_an_unknown_key_is_empty(tmp_path: Path) -> None:
    """Without stored results the answer is empty."""
    assert FsspecResultTracker(str(tmp_path / "none")).get(1) == {}


@pytest.mark.parametrize("key", ["", "..", ".", "a/../b", "a//b", "/etc", "a/"])
def test_keys_that_are_no_names(tmp_path: Path, key: str) -> None:
    """A key cannot lead out of the directory."""
    with pytest.raises(ValueError, match="is not a key"):
        FsspecResultTracker(str(tmp_path)).put(key, a=1)


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_broken_files(tmp_path: Path, text: str) -> None:
    """A foreign file is an error with its text."""
    FsspecResultTracker(str(tmp_path)).put(1, a=1)
    file = tmp_path / "1"
    file.write_text(text)
    with pytest.raises(ParseError, match="results of `1`") as e:
        FsspecResultTracker(str(tmp_path)).get(1)
    assert e.value.text == text


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1).filter(lambda name: name not in ("self", "key")),
        st.integers() | st.text() | st.floats(allow_nan=False),
    )
)
def test_any_results(results: dict[str, int | str | float]) -> None:
    """Any numbers and strings are returned unchanged."""
    tracker = FsspecResultTracker("memory://results")
    tracker.put("t", **results)
    assert tracker.get("t") == results


def test_fsspec_is_imported_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing is cheap; without fsspec the error says what to install."""
    code = "import sys, torchx.runtime.tracking; print('fsspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True).stdout == "False\n"
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingDependencyError) as e:
        FsspecResultTracker("/x").get(1)
    assert e.value.hint == "pip install fsspec"


def test_a_key_with_a_slash(tmp_path: Path) -> None:
    """It is a file in a folder."""
    tracker = FsspecResultTracker(str(tmp_path))
    tracker["a/b"] = {"x": 1}
    assert tracker["a/b"] == {"x": 1} and tracker["a/c"] == {}
    assert (tmp_path / "a" / "b").is_file()
