"""`scripts/release` gathers the changelog's fragments, which are named so that it can."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from torchx.version import __version__

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/release"
script = runpy.run_path(str(SCRIPT))
release, ReleaseError = script["release"], script["ReleaseError"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a release and four fragments."""
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\nWords.\n\n## 0.7.0 (2026-01-02)\n\n### Added\n\n- Old.\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "0.7.0"\n')
    (tmp_path / "torchx").mkdir()
    (tmp_path / "torchx/version.py").write_text('"""The version."""\n\n__version__ = "0.7.0"\n')
    folder = tmp_path / "changelog.d"
    folder.mkdir()
    (folder / "README.md").write_text("How.\n")
    (folder / "two-lines.fixed.md").write_text("First line\nsecond line.\n")
    (folder / "a-list.fixed.md").write_text("- One.\n- Two.\n")
    (folder / "slurm.added.md").write_text("`slurm`.\n")
    (folder / "keys.security.md").write_text("Keys.\n")
    return tmp_path


def test_fragments_are_named_by_change_and_kind() -> None:
    """Each file is WORDS.KIND.md with words, not numbers, and says something; so the next release can be made."""
    files = [file for file in (ROOT / "changelog.d").iterdir() if file.name != "README.md"]
    for file in files:
        assert script["FRAGMENT"].fullmatch(file.name), file.name
        assert len(file.read_text().split()) > 3, file.name


def test_fragments_become_a_section(project: Path) -> None:
    """By kind, each an item, above the release before; the fragments are gone and the version is set."""
    release(project, "0.8.0", "2026-11-30")
    assert (project / "CHANGELOG.md").read_text() == (
        "# Changelog\n\nWords.\n\n## 0.8.0 (2026-11-30)\n\n### Added\n\n- `slurm`.\n\n"
        "### Fixed\n\n- One.\n- Two.\n- First line\n  second line.\n\n### Security\n\n- Keys.\n\n"
        "## 0.7.0 (2026-01-02)\n\n### Added\n\n- Old.\n"
    )
    assert [file.name for file in (project / "changelog.d").iterdir()] == ["README.md"]
    assert 'version = "0.8.0"' in (project / "pyproject.toml").read_text()
    assert (project / "torchx/version.py").read_text().endswith('\n__version__ = "0.8.0"\n')


@pytest.mark.parametrize(
    ("version", "made", "says"),
    [
        ("v1", "", "`v1` is not a version"),
        ("0.7.0", "", "has 0.7.0 already"),
        ("0.8.0", "words.nonsense.md", "words.nonsense.md"),
        ("0.8.0", "5.fixed.2.md", "5.fixed.2.md"),
    ],
    ids=["no-version", "released-already", "no-kind", "a-number"],
)
def test_a_release_that_cannot_be_made_changes_nothing(project: Path, version: str, made: str, says: str) -> None:
    """The text says why."""
    if made:
        (project / "changelog.d" / made).write_text("Text.\n")
    before = contents(project)
    with pytest.raises(ReleaseError, match=re.escape(says)):
        release(project, version, "2026-11-30")
    assert contents(project) == before


def test_without_fragments_there_is_no_release(project: Path) -> None:
    """A heading with nothing below it helps nobody."""
    release(project, "0.8.0", "2026-11-30")
    with pytest.raises(ReleaseError, match="nothing to release"):
        release(project, "0.9.0", "2026-12-30")


def test_a_changelog_that_nobody_reads(project: Path) -> None:
    """More than one screen of fragments is refused, and nothing is changed."""
    for number in range(30):
        (project / f"changelog.d/fix-a{number}.fixed.md").write_text("It works now.\n")
    before = contents(project)
    with pytest.raises(ReleaseError, match="34 fragments are more than a person reads"):
        release(project, "0.8.0", "2026-11-30")
    assert contents(project) == before


def test_a_dry_run_prints_the_section_of_this_project() -> None:
    """It can be looked at before it is made; right after a release there is nothing to see."""
    there = any(file.name != "README.md" for file in (ROOT / "changelog.d").iterdir())
    argv = [sys.executable, str(SCRIPT), "99.0.0", "--dry-run", "--date", "2026-11-30"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if there else 1), done.stderr
    assert done.stdout.startswith("## 99.0.0 (2026-11-30)\n" if there else "")
    assert "99.0.0" not in (ROOT / "CHANGELOG.md").read_text()


def test_recorded_files_do_not_name_the_version() -> None:
    """What tests compare with stays true when the next version is set."""
    recorded = contents(ROOT / "tests" / "golden")
    assert recorded and not [name for name, text in recorded.items() if __version__ in text]


def contents(folder: Path) -> dict[str, str]:
    return {str(file): file.read_text() for file in folder.rglob("*") if file.is_file()}
