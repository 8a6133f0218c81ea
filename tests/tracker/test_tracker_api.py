"""The run that a job's code writes to; a tracker never fails the job."""

import logging
import subprocess
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from torchx.testing import Site
from torchx.testing.fixtures import torchx_site_fixture  # noqa: F401  # pytest finds fixtures by name
from torchx.tracker import AppRun, app_run_from_env
from torchx.tracker.api import (
    AppRunTrackableSource,
    Lineage,
    TrackerArtifact,
    TrackerBase,
    TrackerSource,
    build_trackers,
    tracker_config_env_var_name,
    trackers_from_environ,
)


class MemoryTracker(TrackerBase):
    """A tracker in dictionaries."""

    def __init__(self, config: str | None = None) -> None:
        self.config = config
        self._artifacts: dict[str, dict[str, TrackerArtifact]] = {}
        self._metadata: dict[str, dict[str, object]] = {}
        self._sources: dict[str, list[TrackerSource]] = {}

    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        self._artifacts.setdefault(run_id, {})[name] = TrackerArtifact(name, path, metadata)

    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        return self._artifacts.get(run_id, {})

    def add_metadata(self, run_id: str, **kwargs: Any) -> None:
        self._metadata.setdefault(run_id, {}).update(kwargs)

    def metadata(self, run_id: str) -> Mapping[str, object]:
        return self._metadata.get(run_id, {})

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        self._sources.setdefault(run_id, []).append(TrackerSource(source_id, artifact_name))

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        return self._sources.get(run_id, [])

    def lineage(self, run_id: str) -> Lineage:
        return Lineage(
            sources=list(self.sources(run_id)), descendants=[r.id for r in AppRun(run_id, [self]).children()]
        )

    def run_ids(self, **kwargs: str) -> Iterable[str]:
        parent = kwargs.get("parent_run_id")
        return [r for r, s in self._sources.items() if parent is None or parent in {x.source_run_id for x in s}]


class DownTracker(MemoryTracker):
    """A tracker that cannot be written to."""

    def add_metadata(self, run_id: str, **kwargs: Any) -> None:
        raise ConnectionError("refused")

    add_artifact = add_source = add_metadata  # type: ignore[assignment]  # each refuses alike


def test_writes_go_to_every_tracker() -> None:
    """Metadata, artifacts and sources reach all trackers under the run's id."""
    trackers = [MemoryTracker(), MemoryTracker()]
    run = AppRun("r1", trackers)
    run.add_metadata(lr=0.1, model="resnet")
    run.add_artifact("model", "s3://b/m.pt", {"step": 7})
    run.add_source("r0", artifact_name="data")
    for tracker in trackers:
        assert tracker.metadata("r1") == {"lr": 0.1, "model": "resnet"}
        assert tracker.artifacts("r1")["model"] == TrackerArtifact("model", "s3://b/m.pt", {"step": 7})
        assert tracker.sources("r1") == [TrackerSource("r0", "data")]


def test_reads_ask_the_first_tracker() -> None:
    """Sources and children come from the first tracker, each as an AppRun."""
    trackers = [MemoryTracker(), MemoryTracker()]
    AppRun("child", trackers).add_source("parent", "model")
    assert list(AppRun("child", trackers).sources()) == [AppRunTrackableSource(AppRun("parent", trackers), "model")]
    assert [r.id for r in AppRun("parent", trackers).children()] == ["child"]
    assert trackers[0].lineage("parent").descendants == ["child"]
    assert list(AppRun("x", []).children()) == []


def test_a_tracker_that_is_down_never_fails_the_job(caplog: pytest.LogCaptureFixture) -> None:
    """A failing tracker gives a warning with its name; the others are still written to."""
    good = MemoryTracker()
    run = AppRun("r", [DownTracker(), good])
    with caplog.at_level(logging.WARNING, "torchx.tracker"):
        run.add_metadata(a=1)
        run.add_artifact("x", "/x")
        run.add_source("s")
    assert good.metadata("r") == {"a": 1}
    assert [r.getMessage() for r in caplog.records] == [
        "tracker `DownTracker` could not be written to: ConnectionError: refused"
        " (the job goes on; later failures are not logged)"
    ]


def test_a_tracker_that_fails_slowly_is_let_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker that takes 30 s to fail is tried again after ten minutes, not at every write; others are not delayed."""
    now = [1000.0]
    monkeypatch.setattr("torchx.tracker.api.time", types.SimpleNamespace(monotonic=lambda: now[0]))
    tries: list[float] = []

    class Slow(MemoryTracker):
        def add_metadata(self, run_id: str, **kwargs: Any) -> None:
            tries.append(now[0])
            now[0] += 30
            raise TimeoutError("no answer")

    good = MemoryTracker()
    run = AppRun("r", [Slow(), good])
    for step in range(100):
        run.add_metadata(step=step)
        now[0] += 10
    assert tries == [1000.0, 1630.0]
    assert good.metadata("r") == {"step": 99}


def test_reads_go_on_to_the_next_tracker(caplog: pytest.LogCaptureFixture) -> None:
    """If the first tracker fails, the second is used; if all fail, the result is empty, with a warning."""

    class Mute(MemoryTracker):
        def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
            raise ConnectionError("refused")

    good = MemoryTracker()
    good.add_source("r", "s")
    assert [s.parent.id for s in AppRun("r", [Mute(), good]).sources()] == ["s"]
    assert list(AppRun("r", [Mute()]).sources()) == []
    assert "tracker `Mute` could not be read: ConnectionError: refused" in caplog.text


@pytest.fixture
def plugin(torchx_site: Site) -> None:
    torchx_site.install(
        "track-pkg",
        entry_points="[torchx.tracker]\nmem = track_mod:create\nbad = track_mod:no_such\nraises = track_mod:raises\n",
        files={
            "track_mod.py": """
            import test_tracker_api
            def create(config): return test_tracker_api.MemoryTracker(config)
            def raises(config): raise ValueError(f"bad config {config}")
            """
        },
    )


@pytest.mark.usefixtures("plugin")
def test_build_trackers(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each named tracker is created with its configuration; those that fail are skipped with a warning."""
    monkeypatch.setitem(sys.modules, "test_tracker_api", sys.modules[__name__])
    with caplog.at_level(logging.WARNING, "torchx.tracker"):
        made = list(build_trackers({"mem": "c1", "bad": None, "raises": "c2", "mme": None}))
    assert [type(t).__name__ for t in made] == ["MemoryTracker"]
    assert made[0].config == "c1"  # type: ignore[attr-defined]  # it is a MemoryTracker
    warnings = [r.getMessage() for r in caplog.records]
    assert "tracker `bad` is not used: tracker `bad` of package `track_pkg` failed to load" in warnings[0]
    assert warnings[1] == "tracker `raises` is not used: bad config c2"
    assert "did you mean `mem`?" in warnings[2]


@pytest.mark.usefixtures("plugin")
def test_run_from_env(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a job the id, the trackers and their configuration come from the environment; each environment has one object."""
    monkeypatch.setitem(sys.modules, "test_tracker_api", sys.modules[__name__])
    monkeypatch.setenv("TORCHX_JOB_ID", "local://me/job-1")
    monkeypatch.setenv("TORCHX_TRACKERS", "mem, ,")
    monkeypatch.setenv(tracker_config_env_var_name("mem"), "the config")
    monkeypatch.setenv("TORCHX_PARENT_RUN_ID", "local://me/parent")
    run = app_run_from_env()
    (tracker,) = run.backends
    assert isinstance(tracker, MemoryTracker)
    assert (run.id, run.job_id(), tracker.config) == ("local://me/job-1", "local://me/job-1", "the config")
    assert tracker.sources(run.id) == [TrackerSource("local://me/parent", None)]
    assert AppRun.run_from_env() is run
    monkeypatch.setenv("TORCHX_JOB_ID", "local://me/job-2")
    assert app_run_from_env().id == "local://me/job-2"


def test_built_in_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fsspec` needs only its own package: a job with that tracker can write at once."""
    pytest.importorskip("fsspec")
    monkeypatch.setenv("TORCHX_JOB_ID", "local://me/job-3")
    monkeypatch.setenv("TORCHX_TRACKERS", "fsspec")
    monkeypatch.setenv(tracker_config_env_var_name("fsspec"), str(tmp_path))
    run = app_run_from_env()
    run.add_metadata(a=1)
    run.add_source("local://me/job-1", "model")
    (tracker,) = run.backends
    assert tracker.metadata("local://me/job-3") == {"a": 1}
    assert [s.parent.id for s in run.sources()] == ["local://me/job-1"]
    assert [r.id for r in AppRun("local://me/job-1", run.backends).children()] == ["local://me/job-3"]


@pytest.mark.usefixtures("plugin")
def test_only_rank_zero_writes_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rank 0 records the parent run."""
    monkeypatch.setitem(sys.modules, "test_tracker_api", sys.modules[__name__])
    monkeypatch.setenv("TORCHX_JOB_ID", "local://me/job-rank1")
    monkeypatch.setenv("TORCHX_TRACKERS", "mem")
    monkeypatch.setenv("TORCHX_PARENT_RUN_ID", "p")
    monkeypatch.setenv("RANK", "1")
    (tracker,) = app_run_from_env().backends
    assert tracker.sources("local://me/job-rank1") == []


def test_outside_of_a_job() -> None:
    """Code that torchx did not launch gets a run without trackers, and continues."""
    run = app_run_from_env()
    assert run.id == "<UNDEFINED>"
    run.add_metadata(a=1)
    assert list(trackers_from_environ()) == []


def test_cheap_to_import() -> None:
    """A job that imports the tracker does not load the launcher: no specs, no runner, no slow standard modules."""
    code = "import sys; from torchx.tracker import app_run_from_env; app_run_from_env(); print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(eval(done.stdout))
    assert {m for m in loaded if m.startswith("torchx.")} <= {
        "torchx.settings",
        "torchx.tracker",
        "torchx.tracker.api",
        "torchx.util",
        "torchx.util.notices",
        "torchx.util.records",
        "torchx.util.reexports",
        "torchx.version",
    }
    assert not loaded & {"dataclasses", "inspect", "typing", "logging", "re", "importlib.metadata", "fsspec"}
