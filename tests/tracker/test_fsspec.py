"""Runs in small files: every process reads what any process wrote, at once, and nothing is lost."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx.errors import ConfigError, MissingDependencyError
from torchx.tracker.api import Lineage, TrackerArtifact, TrackerBase, TrackerSource
from torchx.tracker.backend.fsspec import FsspecTracker, create, generate_filename

fsspec = pytest.importorskip("fsspec")
RUN = "slurm://torchx/train-1"


@pytest.fixture(params=["local", "memory"])
def tracker(request: pytest.FixtureRequest, tmp_path: Path) -> FsspecTracker:
    """Runs each test on a disk, and on a file system that is not local."""
    if request.param == "local":
        return FsspecTracker(fsspec.filesystem("file"), str(tmp_path / "runs"))
    return FsspecTracker(fsspec.filesystem("memory"), f"/{tmp_path.name}-{os.urandom(4).hex()}")


def test_metadata(tracker: FsspecTracker) -> None:
    """Values keep their types; the newer value of a name wins; others stay."""
    tracker.add_metadata(RUN, lr=0.1, name="é", layers=[1, 2], nested={"a": None}, ok=True)
    tracker.add_metadata(RUN, lr=0.2)
    tracker.add_metadata(RUN)
    assert tracker.metadata(RUN) == {"lr": 0.2, "name": "é", "layers": [1, 2], "nested": {"a": None}, "ok": True}
    assert tracker.metadata("another") == {}


def test_artifacts(tracker: FsspecTracker) -> None:
    """Artifacts have a name, and their path unchanged; the newer one of a name wins."""
    tracker.add_artifact(RUN, "model", "s3://b/old.pt")
    tracker.add_artifact(RUN, "model", "s3://b/new.pt", {"step": 7})
    tracker.add_artifact(RUN, "log/a b", "relative/path")
    assert tracker.artifacts(RUN) == {
        "model": TrackerArtifact("model", "s3://b/new.pt", {"step": 7}),
        "log/a b": TrackerArtifact("log/a b", "relative/path", None),
    }


def test_lineage(tracker: FsspecTracker) -> None:
    """Sources and descendants are found from both ends; a repeated source counts once."""
    for _ in range(2):
        tracker.add_source("eval", RUN, "model")
    tracker.add_source("eval", "s3://data/set")
    tracker.add_source("finetune", RUN)
    assert tracker.sources("eval") == [TrackerSource(RUN, "model"), TrackerSource("s3://data/set", None)]
    assert tracker.sources("eval", "model") == [TrackerSource(RUN, "model")]
    tracker.add_source("distill", RUN)
    assert tracker.lineage(RUN).descendants == ["distill", "eval", "finetune"]
    assert tracker.lineage("finetune") == Lineage(sources=[TrackerSource(RUN, None)], descendants=[])
    assert tracker.lineage("s3://data/set").descendants == ["eval"]


def test_run_ids(tracker: FsspecTracker) -> None:
    """All runs that wrote something are listed, and no others. With a parent, only its children."""
    assert list(tracker.run_ids()) == []
    tracker.add_metadata(RUN, a=1)
    tracker.add_source("eval", "s3://data/set")
    assert sorted(tracker.run_ids()) == ["eval", RUN]
    assert tracker.run_ids(parent_run_id="s3://data/set") == ["eval"]
    assert tracker.run_ids(parent_run_id=RUN) == []


def test_half_a_source_is_none(tracker: FsspecTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that dies between the two files of a source leaves no descendant without a source."""

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tracker, "_add", dies)
    with pytest.raises(KeyboardInterrupt):
        tracker.add_source("eval", RUN)
    assert tracker.lineage(RUN).descendants == []


@pytest.mark.parametrize("run_id", ["..", ".", "a/../b", "~", "x" * 300, "x" * 300 + "é", "a%2Fb", "a:b\n*?["])
def test_ids_of_any_form(tracker: FsspecTracker, run_id: str) -> None:
    """An id is never a path: it stays below the directory, and is listed unchanged."""
    tracker.add_metadata(run_id, a=1)
    tracker.add_metadata("x" * 299, a=2)
    assert tracker.metadata(run_id) == {"a": 1}
    assert set(tracker.run_ids()) == {run_id, "x" * 299}


def test_no_id(tracker: FsspecTracker) -> None:
    """An empty id is an error."""
    with pytest.raises(ValueError, match="needs an id"):
        tracker.add_metadata("", a=1)


@settings(deadline=None, max_examples=50)
@given(
    st.text(min_size=1),
    st.dictionaries(
        st.text().filter(lambda name: name not in ("self", "run_id")),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        ),
        min_size=1,
    ),
)
def test_whatever_json_knows_comes_back(run_id: str, values: dict[str, Any]) -> None:
    """Any id and any values are returned unchanged."""
    tracker = FsspecTracker(fsspec.filesystem("memory"), f"/any-{os.urandom(8).hex()}")
    try:
        run_id.encode()
    except UnicodeEncodeError:
        return  # half of a surrogate pair: no text
    tracker.add_metadata(run_id, **values)
    assert tracker.metadata(run_id) == values
    assert list(tracker.run_ids()) == [run_id]


def test_values_that_json_does_not_know(tracker: FsspecTracker) -> None:
    """Unknown types become strings, numbers of other libraries numbers: a result is never lost for its type."""

    class Scalar:
        def item(self) -> float:
            return 0.5

    tracker.add_metadata(RUN, path=Path("/a"), loss=Scalar(), pair=(1, {2}))
    assert tracker.metadata(RUN) == {"path": "/a", "loss": 0.5, "pair": [1, [2]]}


WRITER = """
import sys
from torchx.tracker.backend.fsspec import create
root, run, rank = sys.argv[1:]
tracker = create(root)
for step in range(25):
    tracker.add_metadata(run, **{f"rank{rank}_step{step}": step, "shared": int(rank)})
tracker.add_artifact(run, f"rank{rank}", f"/ckpt/{rank}")
tracker.add_source(run, f"data-{rank}")
"""


def test_many_writers(tmp_path: Path) -> None:
    """Processes write concurrently without a lock: everything is there, and no incomplete file is left."""
    ranks = range(4)
    argv = [sys.executable, "-c", WRITER, str(tmp_path), RUN]
    writers = [subprocess.Popen([*argv, str(rank)]) for rank in ranks]
    assert [writer.wait() for writer in writers] == [0] * len(ranks)
    tracker = create(str(tmp_path))
    found = dict(tracker.metadata(RUN))
    assert found.pop("shared") in ranks
    assert found == {f"rank{rank}_step{step}": step for rank in ranks for step in range(25)}
    assert len(tracker.artifacts(RUN)) == len(ranks)
    assert len(list(tracker.sources(RUN))) == len(ranks)
    assert not list(tmp_path.rglob(".*"))


def test_a_writer_that_was_killed(tmp_path: Path) -> None:
    """A run that was killed while it recorded its parent records it when it is restarted."""
    tracker = create(str(tmp_path))
    tracker.add_source(RUN, "data")
    (complete,) = tmp_path.glob("children/*/*")
    complete.rename(complete.parent / f".{complete.name}")
    assert tracker.lineage("data").descendants == []
    tracker.add_source(RUN, "data")
    assert tracker.lineage("data").descendants == [RUN]


# Python 3.12 and later warn of a fork beside threads: this is the case that is tested.
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_writes_too(tmp_path: Path) -> None:
    """A forked worker can write through the tracker of its parent."""
    tracker = FsspecTracker(fsspec.filesystem("dir", path=str(tmp_path), target_protocol="file"), "runs")
    tracker._fs.makedirs("runs", exist_ok=True)
    tracker.add_metadata(RUN, parent=1)
    pid = os.fork()
    if pid == 0:
        try:
            tracker.add_metadata(RUN, child=2)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert tracker.metadata(RUN) == {"parent": 1, "child": 2}


def test_foreign_files_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged record gives a warning with its path; a file that is still being written is ignored."""
    tracker = create(str(tmp_path))
    tracker.add_metadata(RUN, a=1)
    (record,) = tmp_path.rglob("metadata/*.jsonl")
    (record.parent / "zz.json").write_text("{")
    (record.parent / f".{record.name}").write_text("{")
    (record.parent / "README").write_text("hello")
    with record.open("a") as f:
        f.write('{"metadata": {"b": 2')
    with caplog.at_level(logging.WARNING):
        assert tracker.metadata(RUN) == {"a": 1}
    assert [r.getMessage() for r in caplog.records] == [f"`{record.parent}/zz.json` is not a record of a run: skipped"]


def test_a_full_disk_damages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An incomplete record on a full disk is ignored, and records before and after it are intact."""
    tracker = create(str(tmp_path))
    tracker.add_metadata(RUN, a=1)
    real, room = os.write, [20, 0]

    def full(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, bytes(data)[: room.pop(0)])

    monkeypatch.setattr("torchx.tracker.backend.fsspec.os.write", full)
    with pytest.raises(OSError, match="No space left"):
        tracker.add_metadata(RUN, b=1)
    monkeypatch.undo()
    with caplog.at_level(logging.WARNING):
        assert tracker.metadata(RUN) == {"a": 1}
    assert caplog.records == [], "it may be one that is being written"
    tracker.add_metadata(RUN, c=1)
    assert tracker.metadata(RUN) == {"a": 1, "c": 1}


def test_a_process_has_one_file(tmp_path: Path) -> None:
    """A process uses one file per folder; other trackers and forked processes use others. Newer values win across files."""
    first, second = create(str(tmp_path)), create(str(tmp_path))
    for step in range(3):
        first.add_metadata(RUN, step=step, first=step)
        second.add_metadata(RUN, step=step + 10)
    first.add_metadata(RUN, step=5)
    assert len(list(tmp_path.rglob("metadata/*.jsonl"))) == 2
    assert first.metadata(RUN) == {"step": 5, "first": 2}


def test_records_of_earlier_versions(tmp_path: Path) -> None:
    """A file for each record, as in object stores and earlier versions, is read together with the others."""
    tracker = create(str(tmp_path))
    tracker.add_metadata(RUN, a="new", b="new")
    (folder,) = tmp_path.rglob("metadata")
    for name, value in ((f"{1:020d}-aa", "old"), (f"{2**62:020d}-bb", "newest")):
        (folder / f"{name}.json").write_text(json.dumps({"run_id": RUN, "metadata": {"a": value, name[-2:]: 1}}))
    assert tracker.metadata(RUN) == {"a": "newest", "b": "new", "aa": 1, "bb": 1}


def test_descendants_of_earlier_versions(tmp_path: Path) -> None:
    """A file for each back reference, as in object stores and earlier versions, is read together with the others."""
    tracker = create(str(tmp_path))
    for run in ("eval", "2024-eval", "distill"):
        tracker.add_source(run, RUN)
    for lines in tmp_path.glob("children/*/*.jsonl"):
        lines.unlink()
    (folder,) = tmp_path.glob("children/*")
    for run in ("eval", "2024-eval", "never-wrote-its-source"):
        (folder / f"{run}.json").write_text(json.dumps({"run_id": run, "source_run_id": RUN}))
    tracker.add_source("finetune", RUN)
    tracker.add_source("eval", RUN)
    assert tracker.lineage(RUN).descendants == ["2024-eval", "eval", "finetune"]


def test_a_store_that_hangs(tmp_path: Path) -> None:
    """A write to a store that hangs times out, and the next fails at once, until the store has answered."""
    answer = threading.Event()
    memory = fsspec.filesystem("memory")

    class Hanging(type(memory)):  # type: ignore[misc]  # a class that is known at run time only
        cachable = False

        def pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:
            answer.wait()
            super().pipe_file(path, value, **kwargs)

    tracker = FsspecTracker(Hanging(), f"/{tmp_path.name}-hang", timeout_s=0.01)
    with pytest.raises(TimeoutError, match=r"no answer within 0.01 s"):
        tracker.add_metadata(RUN, a=1)
    with pytest.raises(TimeoutError, match="an earlier call"):
        tracker.add_metadata(RUN, b=1)
    stuck = tracker._bounded._stuck
    assert stuck is not None
    answer.set()
    assert wait([stuck], 300).done
    tracker._bounded._timeout_s = 300
    tracker.add_metadata(RUN, c=1)
    assert tracker.metadata(RUN) == {"a": 1, "c": 1}


def test_a_missing_bucket_is_not_made() -> None:
    """An object store has no folders: a missing bucket is an error."""
    made: list[str] = []
    memory = fsspec.filesystem("memory")

    class Bucketless(type(memory)):  # type: ignore[misc]  # a class that is known at run time only
        cachable = False
        protocol = ("s3", "s3a")

        def pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:
            raise FileNotFoundError("The specified bucket does not exist")

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            made.append(path)

    with pytest.raises(FileNotFoundError, match="bucket"):
        FsspecTracker(Bucketless(), "/bucket/runs").add_metadata(RUN, a=1)
    assert made == []


# What the factory is given


def test_create_by_address(tmp_path: Path) -> None:
    """A path and a URL of the same directory are the same place."""
    create(str(tmp_path / "runs")).add_metadata(RUN, a=1)
    assert create(f" file://{tmp_path}/runs/ ").metadata(RUN) == {"a": 1}
    assert isinstance(create("memory://x"), TrackerBase)


def test_create_by_file(tmp_path: Path) -> None:
    """An INI file names the file system, its options, the directory and the timeout."""
    config = tmp_path / "tracker"
    config.write_text(f"[fsspec]\nprotocol = file\nroot_path = {tmp_path}/100%\nauto_mkdir = True\ntimeout_s = 5\n")
    create(str(config)).add_metadata(RUN, a=1)
    assert (tmp_path / "100%" / "runs").is_dir()
    assert create(json.dumps({"protocol": "file", "root_path": f"{tmp_path}/100%"})).metadata(RUN) == {"a": 1}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "has no directory to store runs"),
        ("  ", "has no directory to store runs"),
        ("{}", "`root_path` is missing"),
        ("{no json", "begins with a brace and is not a JSON object"),
        ("/no/such/file.ini", "`/no/such/file.ini` cannot be read: No such file or directory"),
        ("nosuch://x", "cannot use `nosuch://x`"),
        ('{"root_path": "/x", "timeout_s": "soon"}', "`timeout_s` of the tracker's config must be a number of seconds"),
        ('{"root_path": "/x", "timeout_s": true}', "must be a number of seconds, not `True`"),
        ('{"root_path": "/x", "timeout_s": 0}', "must be a number of seconds, not `0`"),
    ],
)
def test_wrong_configs(config: str | None, words: str) -> None:
    """Each mistake is one error that names the problem."""
    with pytest.raises(ConfigError) as e:
        create(config)
    assert words in str(e.value)


@pytest.mark.parametrize("text", ["root_path\n", "[other]\nroot_path = /x\n"])
def test_files_that_are_no_config(tmp_path: Path, text: str) -> None:
    """A file without the section is an error that names it."""
    path = tmp_path / "t.ini"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"t\.ini` (is not an INI file|has no section `\[fsspec\]`)"):
        create(str(path))


@pytest.mark.parametrize("head", ["", "[fsspec]\n", "[tracker:fsspec]\n"])
def test_files_of_earlier_versions(tmp_path: Path, head: str) -> None:
    """A file may consist of `key = value` only, or name its section as in `.torchxconfig`."""
    path = tmp_path / "fsspec.config"
    path.write_text(f"{head}root_path = {tmp_path}/runs\nprotocol = file\nauto_mkdir = True\n")
    create(str(path)).add_metadata("r", a=1)
    assert (tmp_path / "runs").is_dir()


def test_what_a_file_system_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the missing package of a file system."""
    import builtins

    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith("s3fs"):
            raise ImportError("Install s3fs to access S3")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match="cannot reach `s3://bucket/x`: Install s3fs to access S3"):
        create("s3://bucket/x")


def test_names_of_files_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names never repeat and never go back, even when the clock does."""
    monkeypatch.setattr("torchx.tracker.backend.fsspec.time.time_ns", lambda: 5)
    names = [generate_filename() for _ in range(100)]
    assert names == sorted(set(names))


OLD = "local_cwd://torchx/train-1"
OLD_FILES = {
    "NRXWGYLML5RXOZB2F4XXI33SMNUHQL3UOJQWS3RNGE======/metadata/1795967270243897090": b'{"metadata": {"lr": 0.1, "n": [1]}}',
    "NRXWGYLML5RXOZB2F4XXI33SMNUHQL3UOJQWS3RNGE======/metadata/1795967270244329101": b'{"metadata": {"lr": 0.2}}',
    "NRXWGYLML5RXOZB2F4XXI33SMNUHQL3UOJQWS3RNGE======/metadata/1795967270244329102": b"{broken",
    "NRXWGYLML5RXOZB2F4XXI33SMNUHQL3UOJQWS3RNGE======/metadata/readme": b"not a record",
    "NRXWGYLML5RXOZB2F4XXI33SMNUHQL3UOJQWS3RNGE======/artifacts/1795967270244710586": b'{"name": "model", "path": "/m.pt", "metadata": {"step": 1}}',
    "NRXWGYLML5RXOZB2F4XXI33SMNUHQL3FOZQWYLJR/sources/NRXWGYLML5RXOZB2F4XXI33SMNUHQL3UOJQWS3RNGE======": b"model\n",
    "NRXWGYLML5RXOZB2F4XXI33SMNUHQL3FOZQWYLJS/sources/NRXWGYLML5RXOZB2F4XXI33SMNUHQL3UOJQWS3RNGE======": b"\n",
    "OBWGC2LOL5UWI===/metadata/1795967270262955652": b'{"metadata": {"a": 1}}',
    "somebody's/notes": b"",
}


def test_what_older_versions_wrote_is_read(tracker: FsspecTracker) -> None:
    """Metadata, artifacts, sources, descendants; newer values are in the new layout beside it, and win."""
    for path, data in OLD_FILES.items():
        tracker._fs.makedirs(f"{tracker._root}/{path}".rpartition("/")[0], exist_ok=True)
        tracker._fs.pipe_file(f"{tracker._root}/{path}", data)
    names = ["eval-1", "eval-2", "train-1"]
    assert sorted(tracker.run_ids()) == [*(f"local_cwd://torchx/{name}" for name in names), "plain_id"]
    assert tracker.metadata(OLD) == {"lr": 0.2, "n": [1]}
    assert tracker.artifacts(OLD) == {"model": TrackerArtifact("model", "/m.pt", {"step": 1})}
    assert list(tracker.sources("local_cwd://torchx/eval-1")) == [TrackerSource(OLD, "model")]
    assert list(tracker.sources("local_cwd://torchx/eval-2")) == [TrackerSource(OLD, None)]
    assert list(tracker.lineage(OLD).descendants) == ["local_cwd://torchx/eval-1", "local_cwd://torchx/eval-2"]
    assert list(tracker.run_ids(parent_run_id=OLD)) == ["local_cwd://torchx/eval-1", "local_cwd://torchx/eval-2"]
    tracker.add_metadata(OLD, lr=0.3)
    tracker.add_source("new", OLD)
    assert tracker.metadata(OLD) == {"lr": 0.3, "n": [1]}
    assert "new" in tracker.lineage(OLD).descendants
    assert sorted(tracker.run_ids()) == [*(f"local_cwd://torchx/{name}" for name in names), "new", "plain_id"]
    for path, data in OLD_FILES.items():
        assert tracker._fs.cat_file(f"{tracker._root}/{path}") == data
