"""Writes runs into a registry, and lists them."""

from __future__ import annotations

import logging

from torchx.runs import NewRun


def add(registry, app_id, *, scheduler="local_cwd", name="", state=None, session="torchx", **fields):
    """A submitted run that was observed in `state`."""
    handle = f"{scheduler}://{session}/{app_id}"
    run_id = registry.begin(NewRun(scheduler=scheduler, session=session, name=name or app_id, handle=handle, **fields))
    registry.submitted(run_id, handle)
    if state is not None:
        registry.saw(handle, state)
    return handle


def ids(runs):
    return [run.app_id for run in runs]


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
