"""Data on the node: one copy for all jobs, complete or not there, within a bound."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchx.cli.main import main
from torchx.errors import SpecError
from torchx.schedulers.kit import stage_node
from torchx.specs.wishes.stages import parse_stage


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stage_node, "CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "sub" / "x").write_text("1")
    return tmp_path / "cache"


def entries(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.iterdir() if p.is_dir())


def test_a_second_job_finds_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder and a file; nothing is copied again until a file changes."""
    first = stage_node.stage("data")
    assert (Path(first) / "sub" / "x").read_text() == "1" and Path(first).name == "data"
    assert Path(stage_node.stage("data/sub/x")).read_text() == "1"
    monkeypatch.setattr(stage_node, "copy", lambda *_, **__: pytest.fail("it copies again"))
    assert stage_node.stage("./data/") == stage_node.stage(f"file://{Path('data').resolve()}") == first
    monkeypatch.undo()
    monkeypatch.chdir(cache.parent)
    monkeypatch.setattr(stage_node, "CACHE", str(cache))
    (cache.parent / "data" / "sub" / "x").write_text("22")
    assert stage_node.stage("data") != first


def test_an_interrupted_copy_is_made_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is never taken for the whole."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        assert stage_node.main(["data"]) == 1
    assert entries(cache) == []  # a copy that fails leaves nothing
    first = Path(stage_node.stage("data"))
    os.rename(first.parent, f"{first.parent}.part")  # that of one which was killed
    (Path(f"{first.parent}.part") / "data" / "junk").write_text("half")
    assert sorted(os.listdir(stage_node.stage("data"))) == ["sub"]
    (cache / "0.part").mkdir()
    Path("other").write_text("1")
    stage_node.stage("other")
    assert not [name for name in entries(cache) if name.endswith(".part")]


def test_a_copy_that_was_changed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a job, or by whatever cleans the node: it is made again, unless a job uses it."""
    first = Path(stage_node.stage("data"))
    (first / "sub" / "x").unlink()
    with open(f"{first.parent}.lock", encoding="ascii") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert stage_node.main(["data"]) == 1 and "lacks files, and running jobs use it" in capsys.readouterr().err
    assert stage_node.stage("data") == str(first) and (first / "sub" / "x").read_text() == "1"


def test_what_is_left_of_a_copy_is_not_the_copy(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder that cannot be removed whole, or not in time."""
    first = Path(stage_node.stage("data"))
    monkeypatch.setattr(stage_node, "remove", lambda _: None)
    assert stage_node.forget(first.parent.name) and not first.parent.exists()


def test_a_read_only_folder(cache: Path) -> None:
    """Is removed as any other, whoever the user is."""
    (cache.parent / "data" / "sub").chmod(0o555)
    code = f"import os, sys; sys.path[0] = ''\nfrom torchx.schedulers.kit import stage_node as s\ns.CACHE = {str(cache)!r}\n"
    code += "import codecs; codecs.lookup('ascii'); os.getuid() or os.setuid(65534)\nkey = os.path.basename(os.path.dirname(s.stage('data')))\n"
    code += "assert s.forget(key) and sorted(os.listdir(s.CACHE)) == [f'{key}.lock']"
    for folder in (cache.parent, *cache.parents[1:4]):
        if folder.stat().st_uid == os.getuid():
            folder.chmod(0o777)
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(Path(stage_node.__file__).parents[3])}
    )


def test_urls(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever fsspec reads, a folder or a file; what is not there is an error that names it."""
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.pipe({"/bucket/a/x": b"1", "/bucket/a/b/y": b"2"})
    try:
        found = Path(stage_node.stage("memory://bucket/a"))
        assert (found / "b" / "y").read_text() == "2" and (found / "x").read_text() == "1"
        assert Path(stage_node.stage("memory://bucket/a/x")).read_text() == "1"
        assert stage_node.main(["memory://bucket/none"]) == 1
        assert "`memory://bucket/none` cannot be staged: there is no such object" in capsys.readouterr().err
        assert stage_node.main(["none"]) == 1 and "no such file" in capsys.readouterr().err
        os.mkfifo("data/pipe")
        assert stage_node.main(
            ["data"]
        ) == 1 and "staged: `data/pipe` is a named pipe" in capsys.readouterr().err.replace(f"{cache.parent}/", "")
    finally:
        fs.rm("/bucket", recursive=True)


def test_the_bound(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy that was not used for the longest time goes, unless a job holds it; a source that never fits is refused."""
    monkeypatch.setattr(stage_node, "MAX_GB", "25e-9")
    copies = {}
    for number, name in enumerate("abc"):
        Path(name).write_text("x" * 10)
        copies[name] = stage_node.stage(name) if name != "c" else ""
        if name != "c":
            os.utime(Path(copies[name]).parent / "size", (number, number))
    with open(f"{Path(copies['a']).parent}.lock", encoding="ascii") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        Path("d").write_text("y" * 12)
        copies["d"] = stage_node.stage("d")
    assert os.path.exists(copies["a"]) and not os.path.exists(copies["b"]) and os.path.exists(copies["d"])
    Path("e").write_text("z" * 30)
    with pytest.raises(stage_node.StageError, match="TORCHX_STAGE_GB"):
        stage_node.stage("e")


def test_one_maker(cache: Path) -> None:
    """Of five processes at once, one copies."""
    code = (
        "import sys, time; from torchx.schedulers.kit import stage_node as s; s.CACHE = sys.argv[2]\n"
        "real = s.copy\ndef slow(*a, **k):\n  open('copies', 'a').write('x'); time.sleep(0.3); real(*a, **k)\n"
        "s.copy = slow; sys.exit(s.main(sys.argv[1:2]))"
    )
    argv = [sys.executable, "-c", code, "data", str(cache)]
    env = {**os.environ, "PYTHONPATH": str(Path(stage_node.__file__).parents[3])}
    started = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) for _ in range(5)]
    assert len({one.communicate()[0] for one in started}) == 1
    assert Path("copies").read_text() == "x"


def test_a_job_has_it_at_the_path(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program holds the copy while it runs; what is in the way is not replaced."""
    monkeypatch.setenv("TORCHX_STAGE_DIR", str(cache))
    words = ["run", "--wait", "--log", "--stage", "data=in/my data", "--", "sh", "-c"]
    main([*words, "cat in/*/sub/x; ls -l /proc/$$/fd >fds"])
    assert "1" in capsys.readouterr().err and f"{cache}/" in Path("fds").read_text()
    os.unlink("in/my data")
    Path("in/my data").write_text("mine")
    with pytest.raises(SystemExit):
        main([*words, "true"])
    assert "`in/my data` exists already" in capsys.readouterr().err and Path("in/my data").read_text() == "mine"


@pytest.mark.parametrize("wrong", ["a", "=b", "a=", "a=/", "a=."])
def test_what_is_no_pair(wrong: str) -> None:
    """The message has an example."""
    with pytest.raises(SpecError, match="--stage"):
        parse_stage(wrong)


@pytest.mark.parametrize("contained", [False, True])
def test_a_source_that_is_missing(
    contained: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a container, a folder of the node may only not be mounted."""
    (tmp_path / "mark").touch()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(stage_node, "_CONTAINED", (str(tmp_path / ("mark" if contained else "none")),))
    assert stage_node.main([f"{tmp_path}/nosuch"]) == 1
    where = "in this container: mount it, or give a URL" if contained else "on this node"
    said = f"torchx: `{tmp_path}/nosuch` cannot be staged: there is no such file or folder {where}\n"
    assert capsys.readouterr().err == said


def test_data_that_was_sent(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A file and a folder that arrived whole are taken; what is missing, cut or of somebody else is copied."""
    monkeypatch.setattr(stage_node, "LEAST", 1)
    (cache.parent / "link").symlink_to("sub/x")
    (cache.parent / "data" / "link").symlink_to("sub/x")
    sources = [str(cache.parent / "data"), str(cache.parent / "data" / "sub" / "x"), "memory://a", "none"]
    for spoil in (None, "cut", "link"):
        assert stage_node.main(["--send", *sources]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 4 and lines[2] == sources[1]
        for packed, sent in zip(lines[::2], lines[1::2], strict=True):
            whole = Path(packed).read_bytes()
            Path(sent).write_bytes(whole[: len(whole) // 2] if spoil == "cut" else whole)
            if spoil == "link":
                Path(sent).rename(f"{sent}.real")
                Path(sent).symlink_to(f"{sent}.real")
        with monkeypatch.context() as patch:
            if spoil is None:
                patch.setattr(stage_node, "copy", lambda *_, **__: pytest.fail("it copies"))
            assert {p.name for p in Path(stage_node.stage(sources[0])).iterdir()} == {"sub", "link"}
            assert Path(stage_node.stage(sources[1])).read_text() == "1"
        assert stage_node.main(["--send", *sources]) == 0 and capsys.readouterr().out == ""  # they are here
        stage_node.main(["--sent", *sources])
        assert [p.name for p in cache.parent.glob("cache-*") if not p.name.endswith(".real")] == []
        shutil.rmtree(cache)
