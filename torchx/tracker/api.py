"""The contract of a tracker backend, and the run that a job's code writes to.

A tracker never fails a job: one that cannot be loaded or written to is warned about, and the job goes on.
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
}  # name -> "module:factory"; plugins come beside them

_SLOW_S = 1.0  # a write that fails after longer than this has cost the job something
_PAUSE = 20  # so many times as long the tracker is let alone then: a job loses at most a twentieth of its time
_LEAST_PAUSE_S = 60.0


@dataclass
class TrackerSource:
    """A run, or one artifact of it, that another run was made from."""

    source_run_id: str
    artifact_name: str | None


@dataclass
class TrackerArtifact:
    """A named thing that a run made, and where it is."""

    name: str
    path: str
    metadata: Mapping[str, object] | None


@dataclass
class Lineage:
    """What a run was made from, and the runs that were made from it."""

    sources: list[TrackerSource] = field(default_factory=list)
    descendants: list[str] = field(default_factory=list)


class TrackerBase(ABC):
    """A place where runs are written down. A run is known by its id: the handle of the job."""

    @abstractmethod
    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Adds an artifact by its path (a file path or any URL); its bytes are not touched."""

    @abstractmethod
    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        """The artifacts of a run by name."""

    @abstractmethod
    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Adds or replaces values under these names."""

    @abstractmethod
    def metadata(self, run_id: str) -> Mapping[str, object]:
        """All values of a run by name."""

    @abstractmethod
    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Writes down that the run was made from another run, or from one artifact of it."""

    @abstractmethod
    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        """What the run was made from; with ``artifact_name`` only sources that name that artifact."""

    @abstractmethod
    def lineage(self, run_id: str) -> Lineage:
        """Sources and descendants of a run."""

    @abstractmethod
    def run_ids(self, **kwargs: str) -> Iterable[str]:
        """Ids of the runs; with ``parent_run_id`` only of those that have this run as a source."""


@dataclass
class AppRunTrackableSource:
    """A source of a run, as a run of its own."""

    parent: AppRun
    artifact_name: str | None


@dataclass
class AppRun:
    """A run and the trackers that it is written to; reads ask the first one that answers.

    A tracker that fails never fails the job: it is warned about once, and one that takes long to fail is let alone
    for a while.

    >>> AppRun(id="local://me/job", backends=[]).job_id()
    'local://me/job'
    """

    id: str
    backends: Iterable[TrackerBase]

    def __post_init__(self) -> None:
        """By the identity of a backend, what is remembered of its failures."""
        self._troubles: dict[int, _Trouble] = {}

    @staticmethod
    def run_from_env() -> AppRun:
        """The run that this process is part of, by the environment variables that torchx sets in a job.

        The same object for the same environment. In a process that torchx did not launch, the id is
        ``<UNDEFINED>``. A parent run is written down as a source, by rank 0 only.
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
        """The handle of the job."""
        return self.id

    def add_metadata(self, **kwargs: object) -> None:
        """Adds or replaces values under these names, in every tracker."""
        self._write(lambda backend: backend.add_metadata(self.id, **kwargs))

    def add_artifact(self, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Adds an artifact by its path, in every tracker."""
        self._write(lambda backend: backend.add_artifact(self.id, name, path, metadata))

    def add_source(self, source_id: str, artifact_name: str | None = None) -> None:
        """Writes down, in every tracker, that this run was made from another one."""
        self._write(lambda backend: backend.add_source(self.id, source_id, artifact_name))

    def sources(self) -> Iterable[AppRunTrackableSource]:
        """The runs that this one was made from, as the first tracker that answers has it."""
        found = self._read(lambda backend: backend.sources(self.id))
        return [AppRunTrackableSource(AppRun(s.source_run_id, self.backends), s.artifact_name) for s in found]

    def children(self) -> Iterable[AppRun]:
        """The runs that were made from this one, as the first tracker that answers has it."""
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
            trouble = self._troubles.setdefault(id(backend), _Trouble())
            started = time.monotonic()
            if started < trouble.let_alone_until:
                continue
            try:
                write(backend)
            except Exception as e:
                trouble.met(type(backend).__name__, e, time.monotonic() - started)


class _Trouble:
    """What a run remembers of a tracker that fails: that it has said so, and until when it is let alone."""

    def __init__(self) -> None:
        self.let_alone_until = 0.0
        self._told = False

    def met(self, name: str, error: Exception, took_s: float) -> None:
        if took_s > _SLOW_S:
            self.let_alone_until = time.monotonic() + max(took_s * _PAUSE, _LEAST_PAUSE_S)
        if not self._told:
            self._told = True
            text = "tracker `%s` could not be written to: %s: %s (the job goes on; said once, whatever else is lost)"
            _warn(text, name, type(error).__name__, error)


def tracker_config_env_var_name(entrypoint_key: str) -> str:
    """The variable that carries a tracker's configuration into a job.

    >>> tracker_config_env_var_name("my-tracker")
    'TORCHX_TRACKER_MY_TRACKER_CONFIG'
    """
    name = "".join(c if c.isalnum() else "_" for c in entrypoint_key.upper())
    return f"TORCHX_TRACKER_{name}_CONFIG"


def trackers_from_environ() -> Iterable[TrackerBase]:
    """The trackers named in ``TORCHX_TRACKERS`` (separated by commas), each with its configuration."""
    return build_trackers(trackers_in_environ())


def trackers_in_environ() -> dict[str, str | None]:
    """The names in ``TORCHX_TRACKERS``, each with its configuration."""
    return {name: os.environ.get(tracker_config_env_var_name(name)) for name in _tracker_names()}


def build_trackers(factory_and_config: Mapping[str, str | None]) -> Iterable[TrackerBase]:
    """Makes trackers by their names in the entry-point group ``torchx.tracker``.

    Args:
        factory_and_config: name -> what its factory is given.

    Returns:
        Those that could be made; each of the others is warned about.
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
    """One tracker by its name: a built-in one, or one in the entry-point group ``torchx.tracker``.

    Raises:
        NotFoundError: there is none of that name.
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
