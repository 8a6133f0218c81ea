"""A tracker that writes to MLflow: one MLflow run for each torchx run, of the same name."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import ConfigError
from torchx.settings import ENV_JOB_ID
from torchx.tracker import mlflow_tags as tags
from torchx.tracker.api import Lineage, TrackerArtifact, TrackerBase, TrackerSource
from torchx.tracker.bounded import DEFAULT_TIMEOUT_S, Bounded
from torchx.tracker.configs import read_config, seconds
from torchx.tracker.mlflow_runs import Runs
from torchx.tracker.mlflow_tags import TAG_ARTIFACT_MD_PREFIX

if TYPE_CHECKING:
    from mlflow.entities import Run

__all__ = ["ENV_TORCHX_JOB_ID", "TAG_ARTIFACT_MD_PREFIX", "MLflowTracker", "create_tracker"]

ENV_TORCHX_JOB_ID = ENV_JOB_ID
_DEFAULT_URI = "file:///tmp/torchx/mlruns"
_DEFAULT_EXPERIMENT = "torchx"


class MLflowTracker(TrackerBase):
    """Stores runs on an MLflow server, or in MLflow's files.

    Metadata are tags, which can be replaced. Numbers are also metrics, with their history, and the first value of each
    name is also a parameter, because an MLflow parameter cannot change. Artifacts and sources are tags, too: the bytes
    of an artifact stay where they are.

    Args:
        experiment_name: created if missing; default :meth:`default_experiment_name`.
        tracking_uri: of the server, ``http://host:5000``; or a path or a database.
        artifact_location: for a new experiment; default: the server's.
        timeout_s: maximum duration of a write.

    Raises:
        MissingDependencyError: the package `mlflow` is not installed.
    """

    def __init__(
        self,
        experiment_name: str | None = None,
        tracking_uri: str = _DEFAULT_URI,
        artifact_location: str | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        name = experiment_name or self.default_experiment_name()
        self._runs = Runs(tracking_uri, name, artifact_location, search_all=experiment_name is None)
        self._bounded = Bounded(timeout_s)
        self._pid = 0

    @staticmethod
    def default_experiment_name() -> str:
        """Return ``$MLFLOW_EXPERIMENT_NAME``; else, in a job, the session it was launched in; else ``torchx``."""
        named = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        _, _, rest = (os.environ.get(ENV_TORCHX_JOB_ID) or "").partition("://")
        return named or rest.partition("/")[0] or _DEFAULT_EXPERIMENT

    @property
    def tracking_uri(self) -> str:
        """The tracking URI of the server."""
        return self._runs.uri

    @property
    def experiment_name(self) -> str:
        """The experiment that runs are written to."""
        return self._runs.experiment_name

    @property
    def experiment_id(self) -> str:
        """The id of the experiment, which is created if missing."""
        return self._runs.experiment_id()

    @property
    def artifact_location(self) -> str | None:
        """The artifact location given for the experiment."""
        return self._runs.artifact_location

    def get_run(self, run_name: str) -> Run:
        """Return the MLflow run of that name, which is created if missing."""
        return self._runs.client.get_run(self.get_run_id(run_name))

    def get_run_id(self, run_name: str) -> str:
        """Return MLflow's id for the run of that name, which is created if missing."""
        return self._runs.made(run_name)

    def close(self) -> None:
        """Mark the job's MLflow run as ended, in rank 0 of a job; it can still be written to.

        This also happens at the end of the process.
        """
        self._bounded.call(self._runs.end)

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Add or replaces values.

        Raises:
            ValueError: a value or a name is too long for MLflow. The others are written.
        """
        refused = []
        written = {}
        for name, value in kwargs.items():
            try:
                written[tags.METADATA + tags.safe(name)] = tags.encode(name, value)
            except ValueError as e:
                refused.append(str(e))
        kept = {name: kwargs[name] for name in kwargs if tags.METADATA + tags.safe(name) in written}
        self._write(run_id, lambda run: self._log(run, kept, written))
        if refused:
            raise ValueError("; ".join(refused))

    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return all values of a run, including parameters and metrics that a program logged to MLflow directly."""
        theirs: dict[str, object] = {}
        ours: dict[str, object] = {}
        for run in self._runs.found(run_id):
            theirs |= run.data.params | run.data.metrics
            ours |= dict(tags.decoded(run.data.tags, tags.METADATA))
        shadows = tuple(f"{tags.safe(name)}." for name in ours)  # `optim.lr` of our `optim`
        for name, value in theirs.items():
            if not f"{name}.".startswith(shadows):
                ours[tags.unsafe(name)] = value
        return ours

    def log_params_flat(self, run_name: str, cfg: Any, key: str = "") -> None:
        """Log a configuration (dictionaries, lists, data classes, OmegaConf) as parameters such as ``optim.lr``.

        Args:
            run_name: the torchx run.
            cfg: the configuration.
            key: prefix of the names.
        """
        flat = tags.flat(cfg, key)
        self._write(run_name, lambda run: self._params(run, flat))

    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        safe = tags.safe(name)
        written = {
            tags.ARTIFACT + safe: tags.encode(name, path),
            f"{TAG_ARTIFACT_MD_PREFIX}.{safe}": tags.encode(name, dict(metadata) if metadata else None),
        }
        self._write(run_id, lambda run: self._tags(run, written))

    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        found: dict[str, TrackerArtifact] = {}
        for run in self._runs.found(run_id):
            described = dict(tags.decoded(run.data.tags, f"{TAG_ARTIFACT_MD_PREFIX}."))
            for name, path in tags.decoded(run.data.tags, tags.ARTIFACT):
                metadata: Any = described.get(name)
                found[name] = TrackerArtifact(name, str(path), metadata)
        return found

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        source = json.dumps({"source_run_id": source_id, "artifact_name": artifact_name})
        written = {tags.SOURCE + tags.digest(source): source, tags.PARENT + tags.digest(source_id): source_id}
        self._write(run_id, lambda run: self._tags(run, written))

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        found: dict[str, TrackerSource] = {}
        for run in self._runs.found(run_id):
            for tag, text in sorted(run.data.tags.items()):
                if tag.startswith(tags.SOURCE):
                    found.setdefault(tag, TrackerSource(**json.loads(text)))
        return [s for s in found.values() if artifact_name is None or s.artifact_name == artifact_name]

    def lineage(self, run_id: str) -> Lineage:
        return Lineage(sources=list(self.sources(run_id)), descendants=self._children(run_id))

    def run_ids(self, **kwargs: str) -> Iterable[str]:
        parent = kwargs.get("parent_run_id")
        return self._runs.names() if parent is None else self._children(parent)

    def _children(self, run_id: str) -> list[str]:
        return self._runs.names(f"tags.`{tags.PARENT}{tags.digest(run_id)}` LIKE '%'")

    def _write(self, run_id: str, write: Callable[[str], None]) -> None:
        if self._pid != os.getpid():  # a forked process must not end the runs of its parent
            self._pid = os.getpid()
            self._runs.owned.clear()
            atexit.register(self._at_exit)
        self._bounded.call(lambda: self._runs.write(run_id, write))

    def _at_exit(self) -> None:
        # The interpreter sets `last_type` on an uncaught exception.
        status = "FAILED" if hasattr(sys, "last_type") else "FINISHED"
        try:
            if self._pid == os.getpid() and self._runs.owned:
                self._bounded.call(lambda: self._runs.end(status))
        except Exception:  # noqa: S110  # the job has ended, and its values are written
            pass

    def _log(self, run: str, values: Mapping[str, object], written: Mapping[str, str]) -> None:
        from mlflow.entities import Metric

        now_ms = time.time_ns() // 1_000_000
        numbers = {tags.safe(k): v for k, v in tags.numbers(values).items()}
        self._tags(run, written, [Metric(name, value, now_ms, 0) for name, value in numbers.items()])
        self._params(run, tags.flat(values, ""))

    def _tags(self, run: str, written: Mapping[str, str], metrics: Sequence[Any] = ()) -> None:
        from mlflow.entities import RunTag

        self._runs.log(run, metrics, [RunTag(name, text) for name, text in written.items()])

    def _params(self, run: str, flat: Mapping[str, str]) -> None:
        self._runs.log_new_params(run, {tags.safe(name): text for name, text in flat.items()})


def create_tracker(config: str | None) -> MLflowTracker:
    """Return the factory behind the name ``mlflow``.

    Args:
        config: a tracking URI (``http://host:5000``); or the path of an INI file with a section ``[mlflow]``, or a JSON
            object: ``tracking_uri``, ``experiment_name``, ``artifact_location``, ``timeout_s``. The defaults are
            ``$MLFLOW_TRACKING_URI`` and ``$MLFLOW_EXPERIMENT_NAME``.

    Raises:
        ConfigError: the config has an unknown key or a wrong value, or there is no tracking URI.
        MissingDependencyError: the package `mlflow` is not installed.
    """
    text = (config or "").strip()
    found = read_config(text, "mlflow")
    settings: dict[str, Any] = {"tracking_uri": text} if found is None else dict(found)
    timeout_s = seconds(settings.pop("timeout_s", DEFAULT_TIMEOUT_S), "timeout_s")
    uri = settings.pop("tracking_uri", None) or os.environ.get("MLFLOW_TRACKING_URI")
    name, location = settings.pop("experiment_name", None), settings.pop("artifact_location", None)
    if settings:
        raise ConfigError(
            f"the tracker `mlflow` has no setting `{next(iter(settings))}`",
            hint="there are: tracking_uri, experiment_name, artifact_location, timeout_s",
        )
    if not uri:  # a default on the local disk would be lost with the job's container
        raise ConfigError(
            "the tracker `mlflow` has no tracking URI",
            hint="for example `mlflow = http://host:5000` in section `[torchx:tracker]` of `.torchxconfig`",
        )
    return MLflowTracker(name and str(name), str(uri), location and str(location), timeout_s=timeout_s)
