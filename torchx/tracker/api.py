"""The contract of a tracker backend, and the run that a job's code writes to.

A tracker never fails a job: if it cannot be loaded or written to, the job logs a warning and goes on.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod

from torchx.settings import ENV_JOB_ID, ENV_PARENT_RUN_ID, ENV_TRACKERS
from torchx.util.notices import logger
from torchx.util.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeVar

    T = TypeVar("T")

ENV_TORCHX_JOB_ID = ENV_JOB_ID
ENV_TORCHX_PARENT_RUN_ID = ENV_PARENT_RUN_ID
ENV_TORCHX_TRACKERS = ENV_TRACKERS

UNDEFINED = "<UNDEFINED>"
"""The id of a run that torchx did not launch."""

_BUILTIN_TRACKERS = {
    "fsspec": "torchx.tracker.backend.fsspec:create",
    "mlflow": "torchx.tracker.mlflow:create_tracker",
}  # name -> "module:factory"

_SLOW_S = 1.0  # a write that fails after more than this time delays the job
_PAUSE = 20  # skip the tracker for this multiple of the delay, so that a job loses at most a twentieth of its time
_LEAST_PAUSE_S = 60.0


@dataclass
class TrackerSource:
    """A run, or one artifact of it, that another run was made from."""

    source_run_id: str
    artifact_name: str | None


@dataclass
class TrackerArtifact:
    """A named output of a run, and its path."""

    name: str
    path: str
    metadata: Mapping[str, object] | None


@dataclass
class Lineage:
    """The sources of a run, and the runs that were made from it."""

    sources: list[TrackerSource] = field(default_factory=list)
    descendants: list[str] = field(default_factory=list)


class TrackerBase(ABC):
    """A store of runs. The id of a run is the handle of the job."""

    @abstractmethod
    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Add or replaces an artifact by its path (a file path or any URL); the bytes stay where they are."""

    @abstractmethod
    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        """Return the artifacts of a run by name."""

    @abstractmethod
    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Add or replaces values under these names."""

    @abstractmethod
    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return all values of a run by name."""

    @abstractmethod
    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Record that the run was made from another run, or from one of its artifacts."""

    @abstractmethod
    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        """Return the distinct sources of the run; with ``artifact_name`` only those with that artifact."""

    @abstractmethod
    def lineage(self, run_id: str) -> Lineage:
        """Return the direct sources and descendants of a run."""

    @abstractmethod
    def run_ids(self, **kwargs: str) -> Iterable[str]:
        """Return the ids of all runs; with ``parent_run_id`` only of those that have this run as a source."""


@dataclass
class AppRunTrackableSource:
    """A source of a run, as an :class:`AppRun`."""

    parent: AppRun
    artifact_name: str | None


@dataclass
class AppRun:
    """A run and its trackers. Writes go to all trackers; reads use the first one that answers.

    A failing tracker never fails the job: the first failure is logged, and after a slow failure the tracker is skipped
    for a while.

    >>> AppRun(id="local://me/job", backends=[]).job_id()
    'local://me/job'
    """

    id: str
    backends: Iterable[TrackerBase]

    def __post_init__(self) -> None:
        self._skip_until: dict[int, float] = {}  # of each backend that has failed, by its identity

    @staticmethod
    def run_from_env() -> AppRun:
        """Return the run that this process is part of, from the environment variables that torchx sets in a job.

        The same environment gives the same object. In a process that torchx did not launch, the id is
        ``<UNDEFINED>``. Rank 0 records a parent run as a source.
        """
        names = [ENV_TORCHX_JOB_ID, ENV_TORCHX_PARENT_RUN_ID, ENV_TORCHX_TRACKERS]
        names += [tracker_config_env_var_name(n) for n in _tracker_names()]
        key = tuple(os.environ.get(name) for name in names)
        if key not in _runs:
            run = AppRun(id=key[0] or UNDEFINED, backends=trackers_from_environ())
            if key[1] and os.environ.get("RANK", "0") == "0":
                run.add_source(key[1])
            _runs[key] = run
        return _runs[key]

    def job_id(self) -> str:
        """Return the handle of the job."""
        return self.id

    def add_metadata(self, **kwargs: object) -> None:
        """Add or replaces values under these names, in every tracker."""
        self._write(lambda backend: backend.add_metadata(self.id, **kwargs))

    def add_artifact(self, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Add an artifact by its path, in every tracker."""
        self._write(lambda backend: backend.add_artifact(self.id, name, path, metadata))

    def add_source(self, source_id: str, artifact_name: str | None = None) -> None:
        """Record in every tracker that this run was made from another one."""
        self._write(lambda backend: backend.add_source(self.id, source_id, artifact_name))

    def sources(self) -> Iterable[AppRunTrackableSource]:
        """Return the runs that this one was made from, according to the first tracker that answers."""
        found = self._read(lambda backend: backend.sources(self.id))
        return [AppRunTrackableSource(AppRun(s.source_run_id, self.backends), s.artifact_name) for s in found]

    def children(self) -> Iterable[AppRun]:
        """Return the runs that were made from this one, according to the first tracker that answers."""
        found = self._read(lambda backend: backend.run_ids(parent_run_id=self.id))
        return [AppRun(run_id, self.backends) for run_id in found]

    def _read(self, read: Callable[[TrackerBase], Iterable[T]]) -> list[T]:
        for backend in self.backends:
            try:
                return list(read(backend))
            except Exception as e:
                _warn("tracker `%s` could not be read: %s: %s", type(backend).__name__, type(e).__name__, e)
        return []

    def _write(self, write: Callable[[TrackerBase], None]) -> None:
        for backend in self.backends:
            started = time.monotonic()
            if started < self._skip_until.get(id(backend), 0.0):
                continue
            try:
                write(backend)
            except Exception as e:
                self._failed(backend, e, time.monotonic() - started)

    def _failed(self, backend: TrackerBase, error: Exception, took_s: float) -> None:
        if id(backend) not in self._skip_until:
            text = "tracker `%s` could not be written to: %s: %s (the job goes on; later failures are not logged)"
            _warn(text, type(backend).__name__, type(error).__name__, error)
        pause = max(took_s * _PAUSE, _LEAST_PAUSE_S) if took_s > _SLOW_S else 0.0
        self._skip_until[id(backend)] = time.monotonic() + pause


def tracker_config_env_var_name(entrypoint_key: str) -> str:
    """Return the name of the environment variable with a tracker's configuration.

    >>> tracker_config_env_var_name("my-tracker")
    'TORCHX_TRACKER_MY_TRACKER_CONFIG'
    """
    name = "".join(c if c.isalnum() else "_" for c in entrypoint_key.upper())
    return f"TORCHX_TRACKER_{name}_CONFIG"


def trackers_from_environ() -> Iterable[TrackerBase]:
    """Create the trackers named in ``TORCHX_TRACKERS`` (separated by commas), each with its configuration."""
    return build_trackers(trackers_in_environ())


def trackers_in_environ() -> dict[str, str | None]:
    """Return the names in ``TORCHX_TRACKERS``, each with its configuration."""
    return {name: os.environ.get(tracker_config_env_var_name(name)) for name in _tracker_names()}


def build_trackers(factory_and_config: Mapping[str, str | None]) -> Iterable[TrackerBase]:
    """Create trackers by their names in the entry-point group ``torchx.tracker``.

    Args:
        factory_and_config: name -> configuration for the factory.

    Returns:
        The trackers that could be created; a warning is logged for each of the others.
    """
    trackers = []
    for name, config in factory_and_config.items():
        try:
            trackers.append(make_tracker(name, config))
        except Exception as e:
            hint = getattr(e, "hint", "")
            _warn("tracker `%s` is not used: %s%s", name, e or type(e).__name__, f" ({hint})" if hint else "")
    return trackers


def make_tracker(name: str, config: str | None) -> TrackerBase:
    """Create one tracker by its name: a built-in one, or one in the entry-point group ``torchx.tracker``.

    Raises:
        NotFoundError: there is no tracker of that name.
        PluginError: it cannot be imported.
        Exception: whatever its factory raises.
    """
    from torchx.plugins import Registry

    registry: Registry[Callable[[str | None], TrackerBase]] = Registry("torchx.tracker", _BUILTIN_TRACKERS)
    return registry.get(name)(config)


_runs: dict[tuple[str | None, ...], AppRun] = {}


def _tracker_names() -> list[str]:
    return [name for part in os.environ.get(ENV_TORCHX_TRACKERS, "").split(",") if (name := part.strip())]


def _warn(message: str, *args: object) -> None:
    logger("torchx.tracker").warning(message, *args)
