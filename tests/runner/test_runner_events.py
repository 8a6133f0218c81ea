"""Events: off by default at no cost; when on, each call is an event, with secrets masked."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from torchx.errors import BackendError, ConfigError, ParseError
from torchx.runner import Runner, events
from torchx.runner.events import SourceType, TorchxEvent, get_logging_handler, log_event, record
from torchx.schedulers.kit.logs import LogQuery

from .memory_backend import MemoryScheduler, echo_app


@pytest.fixture
def heard(monkeypatch):
    """The events that a handler of the logger receives."""
    found = []

    class Listener(logging.Handler):
        def emit(self, record):
            found.append(TorchxEvent.deserialize(record.getMessage()))

    logger = logging.getLogger(events.LOGGER)
    monkeypatch.setenv("TORCHX_INTERNAL_SESSION_ID", "session-1")
    monkeypatch.setattr(logger, "handlers", [*logger.handlers, Listener()])
    monkeypatch.setattr(events, "_loggers", {})
    level = logger.level
    logger.setLevel(logging.INFO)
    yield found
    logger.setLevel(level)


def test_a_run_is_told_verb_by_verb(heard):
    """run, dryrun and schedule send one event each, innermost first, with job, image and options."""
    with Runner("s", {"memory": MemoryScheduler}) as runner:
        handle = runner.run(echo_app(), "memory", {"queue": "gpu", "api_key": "s3cret"})
        runner.status(handle)
    assert [event.api for event in heard] == ["dryrun", "schedule", "run", "status"]
    run = heard[2]
    assert (run.session, run.scheduler, run.app_id, run.app_image) == ("session-1", "memory", "echo-1", "/tmp")
    assert run.app_metadata == {"team": "a"}
    assert json.loads(run.runcfg)["queue"] == "gpu"
    assert "s3cret" not in run.serialize()
    assert run.wall_time_usec > 0
    assert run.cpu_time_usec >= 0
    assert run.start_epoch_time_usec > 1_600_000_000_000_000
    assert run.exception_type is None
    assert (heard[3].scheduler, heard[3].app_id) == ("memory", "echo-1")


def test_a_directory_that_is_removed_meanwhile(heard, runner, monkeypatch, tmp_path):
    """The event does not need it: a job that was submitted is not discarded, and its handle is returned."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("TORCHXCONFIG", os.devnull)
    backend = runner._scheduler("memory")
    schedule = backend.schedule

    def removed(info: Any) -> str:
        here.rmdir()
        return schedule(info)

    monkeypatch.setattr(backend, "schedule", removed)
    handle = runner.run(echo_app(), "memory")
    assert runner.recorded(handle).cwd == str(here)
    runner.dryrun(echo_app(), "memory")
    assert [event.api for event in heard] == ["dryrun", "schedule", "run", "dryrun"]


def test_a_failure_is_told_with_its_place(heard):
    """The event has the error's type, message and location, and the error is raised; passwords in URLs are masked."""
    with pytest.raises(BackendError), log_event("my_api", "slurm", runcfg="{}"):
        raise BackendError("cannot reach https://me:s3cret@host/")
    [event] = heard
    assert (event.api, event.scheduler, event.runcfg) == ("my_api", "slurm", "{}")
    assert event.exception_type == "BackendError"
    assert event.exception_message == "cannot reach https://me:********@host/"
    assert "Traceback" in event.raw_exception
    assert "s3cret" not in event.serialize()
    place = json.loads(event.exception_source_location)
    assert place["name"] == "test_a_failure_is_told_with_its_place"
    assert place["filename"] == __file__


def test_a_secret_of_the_command_line_is_masked(heard, monkeypatch):
    """A secret of the command line is masked in error messages."""
    monkeypatch.setattr("sys.argv", ["torchx", "run", "x.py:f", "--token", "s3cret"])
    with pytest.raises(ValueError, match="s3cret"), log_event("my_api"):
        raise ValueError("s3cret is refused")
    assert heard[0].exception_message == "******** is refused"


def test_off_by_default_and_free():
    """Without a handler, no event is created, and `logging` is not imported."""
    code = (
        "import sys\n"
        "from torchx.runner import events\n"
        "with events.log_event('x') as event: pass\n"
        "assert event._event is None\n"
        "assert 'logging' not in sys.modules and 'json' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with log_event("x") as event:
        assert not events.is_on()
    assert event._event is None


@pytest.mark.parametrize("destination", ["console", "file"])
def test_the_environment_switches_events_on(tmp_path, destination):
    """`TORCHX_EVENTS` writes one JSON object per line to stderr or a file, and nothing to stdout."""
    import os

    path = tmp_path / "events"
    code = "from torchx.runner.events import log_event\nwith log_event('x', 'slurm'): pass"
    env = {**os.environ, "TORCHX_EVENTS": "console" if destination == "console" else f"file:{path}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    text = done.stderr if destination == "console" else path.read_text()
    assert TorchxEvent.deserialize(text.strip()).api == "x"
    assert done.stdout == ""


def test_a_program_may_replace_record(monkeypatch):
    """A program that patches `record` receives all events without logging."""
    seen = []
    monkeypatch.setenv("TORCHX_INTERNAL_SESSION_ID", "s")
    monkeypatch.setattr(events, "record", seen.append)
    with log_event("x", app_id="a") as event:
        event._torchx_event.source = SourceType.EXTERNAL
    assert [(e.api, e.app_id, e.source) for e in seen] == [("x", "a", SourceType.EXTERNAL)]


def test_an_event_survives_its_json():
    """serialize and deserialize are inverse; an event is returned unchanged."""
    event = TorchxEvent("s", "slurm", "run", app_metadata={"a": "ü"}, source=SourceType.INTERNAL, cpu_time_usec=3)
    assert TorchxEvent.deserialize(event.serialize()) == event
    assert TorchxEvent.deserialize(event) is event
    assert str(event) == event.serialize()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nonsense": 1}', "3"])
def test_what_is_no_event(text):
    """Other text raises a ParseError with that text."""
    with pytest.raises(ParseError) as e:
        TorchxEvent.deserialize(text)
    assert e.value.text == text


def test_a_further_destination(tmp_path, monkeypatch):
    """It gets the event that is sent there, although events are off otherwise."""
    monkeypatch.setattr(events, "_loggers", {})
    path = tmp_path / "events"
    record(TorchxEvent("s", "slurm", "run"), f"file:{path}")
    (handler,) = events._loggers[f"file:{path}"].handlers
    handler.close()
    assert TorchxEvent.deserialize(path.read_text()).scheduler == "slurm"


def test_destinations(capsys, tmp_path):
    """Destinations by name; an unknown one is rejected with a list of the valid ones."""
    assert isinstance(get_logging_handler(), logging.NullHandler)
    assert isinstance(get_logging_handler("console"), logging.StreamHandler)
    with pytest.raises(ConfigError, match="`nowhere`") as e:
        get_logging_handler("nowhere")
    assert "console" in e.value.hint
    path = tmp_path / "events"
    assert isinstance(get_logging_handler(f"file:{path}"), logging.FileHandler)
    assert not path.exists(), "before there is an event"
    record(TorchxEvent("s", "slurm", "run"))
    assert capsys.readouterr() == ("", "")


def test_how_long_it_took(heard, monkeypatch):
    """Wall clock and CPU time in microseconds, and the start time."""
    import time

    ticks = {
        "perf_counter_ns": [5_000, 7_005_500],
        "process_time_ns": [1_000_000, 9_001_999],
        "time_ns": [1_700_000_000_123_456_789],
    }
    for name, values in ticks.items():
        monkeypatch.setattr(time, name, lambda values=values: values.pop(0))
    with events.log_event("status"):
        pass
    [event] = heard
    assert (event.wall_time_usec, event.cpu_time_usec) == (7_000, 8_001)
    assert event.start_epoch_time_usec == 1_700_000_000_123_456


def test_every_verb_tells_which_job(heard):
    """Scheduler and app id; for a dry run, which has no job yet, the image."""
    jobs = {}
    factories: Any = {"memory": lambda session: MemoryScheduler(session, jobs=jobs)}
    with Runner("s", factories) as runner:
        handle = runner.run(echo_app(), "memory")
        heard.clear()
        runner.dryrun(echo_app(), "memory")
        assert heard[0].app_image == "/tmp"
        heard.clear()
        runner.status(handle)
        runner.describe(handle)
        list(runner.log_lines(handle, "echo"))
        runner.open_logs(
            handle, [("echo", 0)], LogQuery.of(regex=None, since=None, until=None, should_tail=False, streams=None)
        )
        runner.cancel(handle)
        runner.wait(handle)
        runner.delete(handle)
    told = {(event.api, event.scheduler, event.app_id) for event in heard}
    apis = {"status", "describe", "log_lines", "cancel", "wait", "delete"}
    assert told == {(api, "memory", handle.rpartition("/")[2]) for api in apis}
    assert [event.api for event in heard].count("log_lines") == 2
