"""Files of replicas that have ended: real local jobs, and a backend that only has archives."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchx.cli.main import main
from torchx.errors import BackendError, NotFoundError, SpecError
from torchx.runner.inside.copy import download_archive
from torchx.runner.inside.ended import download_kept
from torchx.schedulers.kit.inside import STDOUT, InsideProcess, not_running
from torchx.schedulers.kit.inside.kept import Kept, folders
from torchx.specs.wishes.fetch import parse_fetch
from torchx.workspace.private import is_private_name

MAKE = "mkdir -p runs/a; echo 1 >runs/a/x; echo k >runs/id_rsa; echo out"


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the last job, which has ended; the current folder is another one."""
    (tmp_path / "job").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "job")
    main(["run", "--wait", "--fetch", f"runs/={tmp_path}/fetched", "--", "sh", "-c", MAKE])
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_results_are_fetched_at_the_end(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without private files, which are named; once more, nothing is copied."""
    assert [p.name for p in (ended / "fetched").rglob("*")] == ["a", "x"]
    main(["fetch", "@last"])
    said = capsys.readouterr().err
    assert "fetched runs/: 0 files" in said and "1 were there" in said
    assert "`id_rsa` was left out: it may contain credentials" in said


def test_several_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A second copy goes to where the first one went, also of a folder without a slash; one that is missing keeps none back."""
    for name in ("job", "here", "here/new"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "job")
    names = ["runs", "runs=again", "none", "runs/a/x=new", "lr=1/y=y"]
    make = f"{MAKE}; mkdir lr=1; echo 2 >lr=1/y"
    main(["run", *(word for name in names for word in ("--fetch", name)), "--wait", "--", "sh", "-c", make])
    assert "some results of" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path / "here")
    for _ in range(2):
        with pytest.raises(SystemExit) as e:
            main(["fetch", "@last"])
        assert e.value.code == 3 and "there is no `none`" in capsys.readouterr().err
        found = {str(p.relative_to(tmp_path / "here")) for p in Path().resolve().rglob("*") if p.is_file()}
        assert found == {"runs/a/x", "again/a/x", "new/x", "y"}


@pytest.mark.parametrize(
    ("path", "text"), [("runs/a/x", "1\n"), ("stdout.log", "out\n"), ("{job}/runs/a/x", "1\n"), ("runs/id_rsa", "k\n")]
)
def test_cp_finds_files(ended: Path, path: str, text: str) -> None:
    """In the folder where it ran, in that of its logs, or by an absolute path; whoever names a private file gets it."""
    main(["cp", f"@last:{path.format(job=ended / 'job')}", "mine"])
    assert Path("mine").read_text() == text


def test_what_is_nowhere(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says where it was looked for, and the exit code is that of what is not found."""
    with pytest.raises(SystemExit) as e:
        main(["cp", "@last:nope", "."])
    said = capsys.readouterr().err
    assert e.value.code == 3
    assert "there is no `nope`" in said and str(ended / "job") in said and "is SUCCEEDED" in said


def test_a_folder_that_is_gone(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its logs are still found."""
    os.rename(ended / "job", ended / "moved")
    main(["cp", "@last:stdout.log", "mine"])
    assert Path("mine").read_text() == "out\n"


def test_a_job_without_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Is told so; the end of a job is unchanged, also in JSON, if its results cannot be fetched."""
    monkeypatch.chdir(tmp_path)
    main(["run", "--wait", "utils.echo"])
    with pytest.raises(SystemExit):
        main(["fetch", "@last"])
    assert "names no results" in capsys.readouterr().err
    main(["run", "--wait", "--json", "--fetch", "none/=there", "utils.echo"])
    out, err = capsys.readouterr()
    assert json.loads(out)["state"] == "SUCCEEDED" and "were not fetched" in err


@pytest.mark.parametrize("wrong", ["../a", "/a", "a/../../b", "=b", "a="])
def test_paths_that_lead_out_need_a_target(wrong: str) -> None:
    """A copy lands in the current folder unless its user says where."""
    with pytest.raises(SpecError, match="--fetch"):
        parse_fetch(wrong)


def test_on_itself(tmp_path: Path) -> None:
    """A job that ran in the folder to which the copy goes has its files there: nothing is copied, nothing is lost."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "x").write_text("1")
    places = folders([str(tmp_path)])
    backend: Any = _Backend(places)
    for target in (str(tmp_path / "runs"), str(tmp_path)):
        ends = ("runs", target)
        done = download_kept(
            backend, "a", ("r", 0), ends, cwd="", progress=lambda _: None, private=is_private_name, running=_ENDED
        )
        assert (done.files, (tmp_path / "runs" / "x").read_text()) == (0, "1")


_ENDED = not_running("a", "r", 0, "FAILED")


class _Backend:
    def __init__(self, places: list[Kept]) -> None:
        self._places = places

    def kept(self, app_id: str, role: str, k: int, cwd: str) -> list[Kept]:
        return self._places


class _Tar(InsideProcess):
    """A tar stream of a folder or a file, as an engine sends it."""

    def __init__(self, root: Path, path: str) -> None:
        found = root / path.removesuffix("/.").lstrip("/")
        if not found.exists() or (path.endswith("/.") and not found.is_dir()):
            raise BackendError("the engine refused: 404 Could not find the file")
        data = io.BytesIO()
        with tarfile.open(mode="w", fileobj=data) as tar:
            tar.add(found, "." if path.endswith("/.") else found.name)
        self._data: bytes | None = data.getvalue()

    def read(self) -> tuple[int, bytes] | None:
        data, self._data = self._data, None
        return (STDOUT, data) if data else None

    def wait(self) -> int:
        return 0

    def _nothing(self, *_: object) -> None: ...

    write = close_stdin = close = resize = send_signal = _nothing  # type: ignore[assignment]


@pytest.fixture
def archive(tmp_path: Path) -> Callable[[str], InsideProcess]:
    work = tmp_path / "container" / "work" / "runs"
    work.mkdir(parents=True)
    (work / "x").write_text("1")
    (work / ".env").write_text("s")
    return lambda path: _Tar(tmp_path / "container", path)


@pytest.mark.parametrize(
    ("source", "target", "arrives"),
    [
        ("/work/runs/", "new", ["x"]),
        ("/work/runs", "new", ["x"]),
        ("/work/runs", ".", ["runs/x"]),
        ("/work/runs/x", "mine", []),
    ],
)
def test_archives_of_a_container(
    archive: Callable[[str], InsideProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    target: str,
    arrives: list[str],
) -> None:
    """The same names as for a running one; private files stay there."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    done = download_archive(archive, source, target, private=is_private_name)
    found = Path(target)
    if not arrives:
        assert found.read_text() == "1"
    assert [str(p.relative_to(found)) for p in found.rglob("*") if p.is_file()] == arrives
    assert done.files == 1 and done.left_out == ([".env"] if arrives else [])
    backend: Any = _Backend([Kept("its container", "/work", archive=archive)])
    with pytest.raises(NotFoundError, match="where its files are: its container"):
        download_kept(
            backend, "a", ("r", 0), ("no", "."), cwd="", progress=lambda _: None, private=is_private_name,
            running=_ENDED,
        )  # fmt: skip


@pytest.mark.parametrize("option", ["--fetch", "--stage"])
def test_an_option_without_a_value(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty variable of the user's shell is told, not dropped."""
    with pytest.raises(SystemExit) as e:
        main(["run", "--dryrun", option, "", "utils.echo"])
    assert e.value.code == 2 and f"`{option}` is given nothing" in capsys.readouterr().err
