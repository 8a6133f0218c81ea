"""Finds MLflow runs by name, and creates each only once even if all ranks of a job start at the same time."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from torchx.errors import BackendError, MissingDependencyError
from torchx.settings import ENV_JOB_ID

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

TAG_JOB = "torchx.job_id"
TAG_DUPLICATE_OF = "torchx.duplicate_of"
TAG_TURN = "torchx.turn"  # if several ranks have created a run, the lowest turn wins
_CHOOSING = "choosing"
_CHOOSING_S = 10.0  # maximum wait for a rank that is choosing its turn: it may have died
_PAGE = 1000
_ENV_SILENT = "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"
_PROBE_TIMEOUT_S = 5.0
_BATCH = 100  # of tags, or of parameters: https://mlflow.org/docs/latest/rest-api.html#log-batch
_CONFLICT = "INVALID_PARAMETER_VALUE"
_GONE = (_CONFLICT, "INVALID_STATE", "RESOURCE_DOES_NOT_EXIST")  # error codes for a deleted run


class Runs:
    """The runs of one experiment, which is created if missing; ``search_all`` also searches the other experiments."""

    def __init__(self, uri: str, experiment_name: str, artifact_location: str | None, *, search_all: bool) -> None:
        try:
            from mlflow import MlflowClient
        except ImportError as e:
            hint = "pip install mlflow, where the job runs; mlflow-skinny is enough to write to a server"
            raise MissingDependencyError("the tracker `mlflow` needs the package `mlflow`", hint=hint) from e
        self.client: MlflowClient = MlflowClient(tracking_uri=uri)
        self.experiment_name = experiment_name
        self.artifact_location = artifact_location
        self.owned: set[str] = set()
        self.uri = uri
        self._search_all = search_all
        self._experiment_id = ""
        self._reached = False
        self._ids: dict[str, str] = {}
        self._params: set[tuple[str, str]] = set()

    def experiment_id(self) -> str:
        """Return the experiment's id, created if missing; raise BackendError if MLflow reserves a deleted name."""
        from mlflow.exceptions import MlflowException

        if self._experiment_id:
            return self._experiment_id
        experiment = self.client.get_experiment_by_name(self.experiment_name)
        if experiment is None:
            try:
                self._experiment_id = self.client.create_experiment(self.experiment_name, self.artifact_location)
            except MlflowException:
                experiment = self.client.get_experiment_by_name(self.experiment_name)
                if experiment is None:  # else another rank was faster
                    raise
        if experiment is not None:
            if experiment.lifecycle_stage != "active":
                raise BackendError(
                    f"the MLflow experiment `{self.experiment_name}` was deleted",
                    hint="restore it, or give the tracker another `experiment_name`",
                )
            self._experiment_id = experiment.experiment_id
        return self._experiment_id

    def made(self, name: str) -> str:
        """Return MLflow's id for the run of that name, which is created if missing.

        Several ranks may find none and create one each. They then elect one of them; the others are marked as
        duplicates and deleted. :meth:`found` still reads values written to duplicates.
        """
        if name not in self._ids:
            chosen = self._first(name) or self._elected(name)
            self._ids[name] = chosen.info.run_id
            self._own(chosen)
        return self._ids[name]

    def _elected(self, name: str) -> Run:
        """Create a run, and elects one of the runs that ranks create at the same time; all ranks elect the same.

        Start times cannot decide, because clocks differ and a rank that searched first may create its run last. With
        Lamport's bakery algorithm, each rank announces that it chooses a turn, takes the next free turn that it sees,
        and waits for ranks that are still choosing. A rank that begins after another has chosen gets a later turn.
        """
        tags = {TAG_JOB: name, TAG_TURN: _CHOOSING}
        mine = self.client.create_run(self.experiment_id(), run_name=name, tags=tags)
        taken = [_turn(run) for run in self._active(name) if not _is_choosing(run)]
        self.client.set_tag(mine.info.run_id, TAG_TURN, str(int(max(taken, default=0)) + 1))
        first = self._first(name) or mine
        if first.info.run_id != mine.info.run_id:
            self.client.set_tag(mine.info.run_id, TAG_DUPLICATE_OF, first.info.run_id)
            self.client.delete_run(mine.info.run_id)
        return first

    def _first(self, name: str) -> Run | None:
        """Return the elected active run, once no rank is choosing its turn."""
        deadline, pause = time.monotonic() + _CHOOSING_S, 0.05
        while any(map(_is_choosing, active := self._active(name))) and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 1.0)  # there may be a thousand ranks
        return min(active, key=lambda run: (_turn(run), *_age(run)), default=None)

    def found(self, name: str) -> list[Run]:
        """Return the MLflow runs with the values of a run, oldest first; empty if there is no such run."""
        runs = [r for r in self._search(_named(name)) if r.info.run_name == name]
        return sorted(runs, key=_age) if any(_is_active(r) for r in runs) else []

    def names(self, condition: str = "") -> list[str]:
        """Return the names of all runs created by torchx, or of those that match a condition, oldest first."""
        text = f"tags.`{TAG_JOB}` LIKE '%'"
        runs = self._search(f"{text} and {condition}" if condition else text)
        return list(dict.fromkeys(str(r.info.run_name) for r in sorted(runs, key=_age)))

    def write(self, name: str, write: Callable[[str], None]) -> None:
        """Call ``write`` with MLflow's id of the run; raise ConnectionError if the server does not answer."""
        from mlflow.exceptions import MlflowException

        self._reach()
        try:
            try:
                return write(self.made(name))
            except MlflowException:
                known = self._ids.pop(name, "")
                if not known or self._is_writable(known):
                    raise
            # The run was a duplicate, or somebody has deleted it. Not in the handler, whose error would be the context
            # of a further one.
            write(self.made(name))
        except Exception:
            self._reached = False
            raise

    def log(self, run: str, metrics: Sequence[Any], tags: Sequence[Any]) -> None:
        """Write metrics and tags, in several requests if there are many."""
        for i in range(0, max(len(tags), len(metrics)), _BATCH):
            self.client.log_batch(run, metrics=metrics[i : i + _BATCH], tags=tags[i : i + _BATCH])

    def log_new_params(self, run: str, params: Mapping[str, str]) -> None:
        """Write the parameters that have no value yet, because an MLflow parameter cannot change."""
        from mlflow.entities import Param

        new = [Param(name, text) for name, text in params.items() if (run, name) not in self._params]
        for i in range(0, len(new), _BATCH):
            some = new[i : i + _BATCH]
            if not self._log_params(run, some):
                for param in some:  # one of them has another value already: write the others
                    self._log_params(run, [param])
            self._params.update((run, param.key) for param in some)

    def end(self, status: str = "FINISHED") -> None:
        """Mark the runs that this process owns as ended."""
        from mlflow.exceptions import MlflowException

        with _silent_mlflow():
            while self.owned:
                try:
                    self.client.set_terminated(self.owned.pop(), status)
                except MlflowException as e:
                    if e.error_code not in _GONE:
                        raise

    def _own(self, run: Run) -> None:
        """Lets rank 0 of a job own its run; reopens a run that ended before the job was restarted."""
        if os.environ.get(ENV_JOB_ID) != run.info.run_name or os.environ.get("RANK", "0") != "0":
            return
        self.owned.add(run.info.run_id)
        if run.info.status != "RUNNING":
            self.client.update_run(run.info.run_id, status="RUNNING")

    def _reach(self) -> None:
        if not self._reached:
            probe(self.uri)
            self._reached = True

    def _log_params(self, run: str, params: list[Any]) -> bool:
        """Write parameters; return False if one of them has another value already."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.log_batch(run, params=params)
        except MlflowException as e:
            cause = getattr(e.__context__, "error_code", "")  # MLflow's file store wraps the error
            if _CONFLICT not in (e.error_code, cause):
                raise
            return False
        return True

    def _active(self, name: str) -> list[Run]:
        runs = self._search(_named(name), experiments=[self.experiment_id()])
        return [r for r in runs if r.info.run_name == name and _is_active(r)]

    def _is_writable(self, run: str) -> bool:
        return _is_active(self.client.get_run(run))

    def _search(self, condition: str, *, experiments: list[str] | None = None) -> list[Run]:
        """Return active runs, and deleted duplicates of active runs."""
        from mlflow.entities import ViewType

        self._reach()
        if experiments is None:
            experiments = self._readable()
        found: list[Run] = []
        token = None
        while experiments:
            page = self.client.search_runs(experiments, condition, ViewType.ALL, _PAGE, page_token=token)
            found += [r for r in page if _is_active(r) or self._counts(r)]
            token = page.token
            if not token:
                break
        return found

    def _counts(self, deleted: Run) -> bool:
        original = deleted.data.tags.get(TAG_DUPLICATE_OF)
        return bool(original) and self._is_writable(original)

    def _readable(self) -> list[str]:
        """Return the ids of the experiments to search; create none."""
        if self._search_all:
            return [e.experiment_id for e in self.client.search_experiments()]
        experiment = self.client.get_experiment_by_name(self.experiment_name)
        return [experiment.experiment_id] if experiment is not None else []


@contextmanager
def _silent_mlflow() -> Iterator[None]:
    """Keep MLflow from printing URLs to the job's output when a run ends."""
    before = os.environ.get(_ENV_SILENT)
    os.environ[_ENV_SILENT] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ENV_SILENT]
        else:
            os.environ[_ENV_SILENT] = before


def probe(uri: str) -> None:
    """Raise ConnectionError if the server accepts no connections: MLflow's client would retry for minutes."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return
    if parts.scheme in getproxies() and not proxy_bypass(parts.hostname):
        return  # a connection would only test the proxy

    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), _PROBE_TIMEOUT_S).close()
    except OSError as e:
        raise ConnectionError(f"`{parts.hostname}:{port}` does not answer: {e.strerror or e}") from e


def _named(name: str) -> str:
    if "'" not in name:
        return f"attributes.run_name = '{name}'"
    # A filter cannot contain a quote; `_` matches any character, and the caller checks the names.
    return f"attributes.run_name LIKE '{name.replace(chr(39), '_')}'"


def _age(run: Run) -> tuple[int, str]:
    return run.info.start_time or 0, run.info.run_id


def _is_choosing(run: Run) -> bool:
    return bool(run.data.tags.get(TAG_TURN) == _CHOOSING)


def _turn(run: Run) -> float:
    """Return the turn of a run; run without one (of other programs and earlier versions) come first."""
    return float("inf") if _is_choosing(run) else float(run.data.tags.get(TAG_TURN, 0))


def _is_active(run: Run) -> bool:
    return bool(run.info.lifecycle_stage == "active")
