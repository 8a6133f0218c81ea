"""The contract of a tracker backend, and the run that a job's code writes to.

A tracker never fails a job: one that cannot be loaded or written to is warned about, and the job goes on.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

from torchx.settings import ENV_JOB_ID, ENV_PARENT_RUN_ID, ENV_TRACKERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from dataclasses import dataclass, field
else:
    from torchx.util.records import dataclass, field

ENV_TORCHX_JOB_ID = ENV_JOB_ID
ENV_TORCHX_PARENT_RUN_ID = ENV_PARENT_RUN_ID
ENV_TORCHX_TRACKERS = ENV_TRACKERS

UNDEFINED = "<UNDEFINED>"
"""The id of a run that torchx did not launch."""

_BUILTIN_TRACKERS: dict[str, str] = {}  # name -> "module:factory"; plugins come beside them


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
    """A run and the trackers that it is written to; reads ask the first one.

    >>> AppRun(id="local://me/job", backends=[]).job_id()
    'local://me/job'
    """

    id: str
    backends: Iterable[TrackerBase]

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
        """The runs that this one was made from."""
        for backend in self._first():
            for source in backend.sources(self.id):
                yield AppRunTrackableSource(AppRun(source.source_run_id, self.backends), source.artifact_name)

    def children(self) -> Iterable[AppRun]:
        """The runs that were made from this one."""
        for backend in self._first():
            for run_id in backend.run_ids(parent_run_id=self.id):
                yield AppRun(run_id, self.backends)

    def _first(self) -> Iterator[TrackerBase]:
        for backend in self.backends:
            yield backend
            return

    def _write(self, write: Callable[[TrackerBase], None]) -> None:
        for backend in self.backends:
            try:
                write(backend)
            except Exception as e:
                _warn("tracker `%s` could not be written to: %s: %s", type(backend).__name__, type(e).__name__, e)


def tracker_config_env_var_name(entrypoint_key: str) -> str:
    """The variable that carries a tracker's configuration into a job.

    >>> tracker_config_env_var_name("my-tracker")
    'TORCHX_TRACKER_MY_TRACKER_CONFIG'
    """
    name = "".join(c if c.isalnum() else "_" for c in entrypoint_key.upper())
    return f"TORCHX_TRACKER_{name}_CONFIG"


def trackers_from_environ() -> Iterable[TrackerBase]:
    """The trackers named in ``TORCHX_TRACKERS`` (separated by commas), each with its configuration."""
    return build_trackers({name: os.environ.get(tracker_config_env_var_name(name)) for name in _tracker_names()})


def build_trackers(factory_and_config: Mapping[str, str | None]) -> Iterable[TrackerBase]:
    """Makes trackers by their names in the entry-point group ``torchx.tracker``.

    Args:
        factory_and_config: name -> what its factory is given.

    Returns:
        Those that could be made; each of the others is warned about.
    """
    if not factory_and_config:
        return []
    from torchx.plugins import Registry

    registry: Registry[Callable[[str | None], TrackerBase]] = Registry("torchx.tracker", _BUILTIN_TRACKERS)
    trackers = []
    for name, config in factory_and_config.items():
        try:
            trackers.append(registry.get(name)(config))
        except Exception as e:
            hint = getattr(e, "hint", "")
            _warn("tracker `%s` is not used: %s%s", name, e or type(e).__name__, f" ({hint})" if hint else "")
    return trackers


_runs: dict[tuple[str | None, ...], AppRun] = {}


def _tracker_names() -> list[str]:
    return [name for part in os.environ.get(ENV_TORCHX_TRACKERS, "").split(",") if (name := part.strip())]


def _warn(message: str, *args: object) -> None:
    import logging

    logging.getLogger("torchx.tracker").warning(message, *args)
