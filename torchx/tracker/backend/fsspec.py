"""A tracker that stores small files below one directory of any file system that fsspec supports: a disk, S3, GCS, ...

No two writers share a file, so writers on many machines never wait for each other nor overwrite anything::

    ROOT/runs/RUN/metadata/TIME-RANDOM.json     one call of add_metadata; the newest value of a name counts
    ROOT/runs/RUN/artifacts/TIME-RANDOM.json    one call of add_artifact
    ROOT/runs/RUN/sources/TIME-RANDOM.json      one call of add_source
    ROOT/children/SOURCE/RUN.json               the same call, to find RUN from its source without reading all runs

``RUN`` is the percent-encoded id. On a disk each process instead appends a line per call to its own
``TIME-RANDOM.jsonl`` in each folder. Older versions: see :mod:`torchx.tracker.backend.old_layout`.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from torchx.errors import ConfigError, MissingDependencyError
from torchx.tracker.api import Lineage, TrackerArtifact, TrackerBase, TrackerSource
from torchx.tracker.backend.old_layout import OldRuns
from torchx.tracker.bounded import DEFAULT_TIMEOUT_S, Bounded
from torchx.tracker.configs import read_config, seconds
from torchx.tracker.values import plain
from torchx.util.foreign import loads
from torchx.util.notices import logger

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_LONGEST_NAME = 200  # file systems take 255 bytes, and the ending needs some
_ENDING = ".json"
_LINES_ENDING = ".jsonl"
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "ocilake", "hf"}
_CONFIG_HINT = "for example `fsspec = s3://bucket/runs` in section `[torchx:tracker]` of `.torchxconfig`"


class FsspecTracker(TrackerBase):
    """Stores runs below a directory.

    Args:
        fs: the file system.
        root_dir: the directory on it; created on the first write.
        timeout_s: maximum duration of a write, except on a local disk.

    >>> import fsspec
    >>> tracker = FsspecTracker(fsspec.filesystem("memory"), "/example")
    >>> tracker.add_metadata("local_cwd://me/train-1", lr=0.1, epochs=2)
    >>> tracker.add_metadata("local_cwd://me/train-1", lr=0.2)
    >>> tracker.metadata("local_cwd://me/train-1")
    {'lr': 0.2, 'epochs': 2}
    """

    def __init__(self, fs: AbstractFileSystem, root_dir: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._fs = fs
        self._root = str(fs._strip_protocol(str(root_dir))).rstrip("/")
        self._bounded = None if _is_local(fs) else Bounded(timeout_s)
        self._appender = Appender()
        self._pid = os.getpid()

    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        self._add(run_id, "artifacts", {"name": name, "path": path, "metadata": dict(metadata) if metadata else None})

    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        found = {}
        for record in self._records(run_id, "artifacts"):
            name, path, metadata = record.get("name"), record.get("path"), record.get("metadata")
            found[str(name)] = TrackerArtifact(str(name), str(path), metadata)
        return found

    def add_metadata(self, run_id: str, **metadata: object) -> None:
        """Add or replaces values. Scalars of NumPy and PyTorch become numbers; other non-JSON values strings."""
        if metadata:
            self._add(run_id, "metadata", {"metadata": metadata})

    def metadata(self, run_id: str) -> Mapping[str, object]:
        found: dict[str, object] = {}
        for record in self._records(run_id, "metadata"):
            found.update(record.get("metadata") or {})
        return found

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        # The back reference first: readers check it against the source, so an incomplete write has no effect.
        back = f"{self._root}/children/{_key(source_id)}"
        self._write(back, {"run_id": run_id, "source_run_id": source_id}, name=_key(run_id))
        self._add(run_id, "sources", {"source_run_id": source_id, "artifact_name": artifact_name})

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        found: dict[tuple[str, str | None], TrackerSource] = {}
        for record in self._records(run_id, "sources"):
            name = record.get("artifact_name")
            if artifact_name is None or name == artifact_name:
                source = str(record.get("source_run_id"))
                found.setdefault((source, name), TrackerSource(source, name))
        return list(found.values())

    def lineage(self, run_id: str) -> Lineage:
        return Lineage(sources=list(self.sources(run_id)), descendants=self._children(run_id))

    def run_ids(self, parent_run_id: str | None = None) -> Iterable[str]:  # type: ignore[override]  # promised so
        if parent_run_id is not None:
            return self._children(parent_run_id)
        found = (self._run_id(name) for name in self._names(f"{self._root}/runs"))
        return list(dict.fromkeys([*self._old.folders, *(run_id for run_id in found if run_id)]))

    @cached_property
    def _old(self) -> OldRuns:
        def read(folder: str, names: list[str]) -> list[bytes | None]:
            return self._contents([f"{folder}/{name}" for name in names])

        return OldRuns(self._root, self._names, read, _record)

    def _children(self, run_id: str) -> list[str]:
        folder = f"{self._root}/children/{_key(run_id)}"
        ids = sorted({str(r.get("run_id")) for r in self._read(folder) if r.get("source_run_id") == run_id})
        new = [child for child in ids if any(s.source_run_id == run_id for s in self.sources(child))]
        return sorted({*new, *self._old.children(run_id)})

    def _add(self, run_id: str, kind: str, record: dict[str, object]) -> None:
        self._write(f"{self._root}/runs/{_key(run_id)}/{kind}", {"run_id": run_id, **record})

    def _records(self, run_id: str, kind: str) -> list[dict[str, Any]]:
        # Two ids may share a folder if the file system ignores case.
        new = [r for r in self._read(f"{self._root}/runs/{_key(run_id)}/{kind}") if r.get("run_id") == run_id]
        return [*self._old.records(run_id, kind), *new]

    def _run_id(self, name: str) -> str:
        """Return the run id of a folder; empty if the folder is not ours."""
        if "~" not in name:
            return unquote(name)
        for kind in ("metadata", "artifacts", "sources"):  # the id was too long for a name: any record has it
            for record in self._read(f"{self._root}/runs/{name}/{kind}", most=1):
                return str(record.get("run_id") or "")
        return ""

    def _write(self, folder: str, record: Mapping[str, object], *, name: str = "") -> None:
        """Store a record in a folder: on a disk as a line of this process's file, else as an object of that name."""
        if self._bounded is None:
            self._appender.add(folder, _encoded({"at": _now(), **record}))
        else:
            path, data = f"{folder}/{name or generate_filename()}{_ENDING}", _encoded(record)
            self._bounded.call(lambda: self._put(path, data))

    def _put(self, path: str, data: bytes) -> None:
        self._own_file_system()
        try:
            self._fs.pipe_file(path, data)
        except FileNotFoundError:
            if _protocols(self._fs) & _OBJECT_STORES:  # these have no folders: the bucket is missing; do not create it
                raise
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(path, data)

    def _read(self, folder: str, *, most: int | None = None) -> list[dict[str, Any]]:
        """Return the records in a folder, oldest first, of at most ``most`` files."""
        endings = (_ENDING, _LINES_ENDING)
        names = [n for n in self._names(folder) if n.endswith(endings) and not n.startswith(".")][:most]
        found: list[tuple[int, dict[str, Any]]] = []
        for name, data in zip(names, self._contents([f"{folder}/{name}" for name in names]), strict=True):
            if data is not None:
                several = name.endswith(_LINES_ENDING)
                for one in split_lines(data) if several else (data,):
                    record = _record(f"{folder}/{name}", one)
                    if record is not None:
                        found.append((_time_of(record, name), record))
        found.sort(key=lambda pair: pair[0])
        return [record for _, record in found]

    def _names(self, folder: str) -> list[str]:
        self._own_file_system()
        self._fs.invalidate_cache(folder)  # other processes write, too
        try:
            return sorted(str(path).rstrip("/").rpartition("/")[2] for path in self._fs.ls(folder, detail=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _contents(self, paths: list[str]) -> list[bytes | None]:
        """Return the contents of the files; None for a missing one."""
        whole: list[None] = [None] * len(paths)
        answers = self._fs.cat_ranges(paths, whole, whole, on_error="return")  # concurrently in object stores
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, FileNotFoundError):
                raise answer
        return [answer if isinstance(answer, bytes) else None for answer in answers]

    def _own_file_system(self) -> None:
        """Create a new file system in a forked process, which does not inherit connections and event loops."""
        if self._pid != os.getpid():
            self._fs = type(self._fs)(*self._fs.storage_args, **self._fs.storage_options)
            self._pid = os.getpid()


class Appender:
    """Appends records as lines to one file per folder on a disk.

    This is several times faster than creating and renaming a file for each record, and faster to read. The file is
    closed after each record, so that other machines see it over NFS.
    """

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}
        self._pid = os.getpid()

    def add(self, folder: str, record: bytes) -> None:
        """Append a record, which has no line ends; create the folder if needed.

        Raises:
            OSError: the record could not be written; readers ignore an incomplete one.
        """
        if self._pid != os.getpid():  # a forked process uses its own files
            self._paths, self._pid = {}, os.getpid()
        path = self._paths.get(folder)
        if path is None:
            path = self._paths[folder] = f"{folder}/{generate_filename()}{_LINES_ENDING}"
        try:
            fd = os.open(path, _APPEND, 0o666)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            fd = os.open(path, _APPEND, 0o666)
        try:
            # The leading line end separates it from an incomplete record that a full disk has left.
            left = memoryview(b"\n" + record + b"\n")
            while left:
                left = left[os.write(fd, left) :]
        finally:
            os.close(fd)


def split_lines(content: bytes) -> list[bytes]:
    r"""Return the records in a file, oldest first, without one that is still being written.

    >>> split_lines(b'\n{"a": 1}\n\n{"b": 2}\n\n{"c"')
    [b'{"a": 1}', b'{"b": 2}']
    """
    return [line for line in content.split(b"\n")[:-1] if line]


def create(config_file: str | None) -> TrackerBase:
    """Return the factory behind the name ``fsspec``.

    Args:
        config_file: a directory or URL (``/shared/runs``, ``s3://bucket/runs``); or the path of an INI file with a
            section ``[fsspec]``, or a JSON object: ``protocol``, ``root_path``, ``timeout_s``, and options of
            the file system.

    Raises:
        ConfigError: it has no directory or URL.
        MissingDependencyError: fsspec, or a package that the file system needs, is not installed.
    """
    if not config_file or not config_file.strip():
        raise ConfigError("the tracker `fsspec` has no directory to store runs", hint=_CONFIG_HINT)
    found = read_config(config_file, "fsspec")
    settings = {"root_path": config_file.strip()} if found is None else dict(found)
    timeout_s = seconds(settings.pop("timeout_s", DEFAULT_TIMEOUT_S), "timeout_s")
    root, protocol = settings.pop("root_path", None), settings.pop("protocol", None)
    if not isinstance(root, str) or not root:
        raise ConfigError(
            "the tracker `fsspec` has no directory to store runs: `root_path` is missing", hint=_CONFIG_HINT
        )
    url = root if protocol is None or "://" in root else f"{protocol}://{root}"
    try:
        from fsspec.core import url_to_fs

        fs, path = url_to_fs(os.path.expanduser(url), **settings)
    except ImportError as e:
        raise MissingDependencyError(
            f"the tracker `fsspec` cannot reach `{root}`: {e}",
            hint="install the package named above where the job runs",
        ) from e
    except ValueError as e:
        raise ConfigError(f"the tracker `fsspec` cannot use `{root}`: {e}", hint=_CONFIG_HINT) from e
    return FsspecTracker(fs, path, timeout_s=timeout_s)


_last_ns = 0


def generate_filename() -> str:
    """Return a name that no other writer uses; names sort by creation time.

    >>> first, second = generate_filename(), generate_filename()
    >>> first < second
    True
    """
    return f"{_now():020d}-{os.urandom(8).hex()}"


def _now() -> int:
    """Return nanoseconds since the epoch, strictly increasing even if the clock goes back."""
    global _last_ns
    _last_ns = max(time.time_ns(), _last_ns + 1)
    return _last_ns


def _time_of(record: Mapping[str, Any], name: str) -> int:
    """Return the time of a record, which is in the record or in the name of its file."""
    at = record.get("at")
    if type(at) is int:
        return at
    digits = name.partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def _encoded(record: Mapping[str, object]) -> bytes:
    return json.dumps(plain(record)).encode()


def _key(run_id: str) -> str:
    """Return the name of the folder for a run id.

    >>> _key("local_cwd://me/train-1")
    'local_cwd%3A%2F%2Fme%2Ftrain-1'
    """
    if not run_id:
        raise ValueError("a run needs an id")
    name = quote(run_id, safe="").replace("~", "%7E")
    if not name.strip("."):
        name = name.replace(".", "%2E")
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:150]}~{hashlib.sha256(run_id.encode()).hexdigest()[:32]}"


def _record(path: str, data: bytes) -> dict[str, Any] | None:
    """Return the record in a file; None, with a warning, if it is not one of ours."""
    try:
        found = loads(data)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    logger("torchx.tracker").warning("`%s` is not a record of a run: skipped", path)
    return None


def _protocols(fs: AbstractFileSystem) -> set[str]:
    return {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)


def _is_local(fs: AbstractFileSystem) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)
