"""Reads the configured trackers, and passes them to a job through its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchx import config
from torchx.config.files import ConfigFiles
from torchx.errors import ConfigError, NotFoundError
from torchx.settings import ENV_TRACKERS
from torchx.util.strings import did_you_mean

if TYPE_CHECKING:
    from torchx.tracker.api import TrackerBase

_CONFIG_HINT = "name one in `.torchxconfig`: section `[torchx:tracker]`, for example `fsspec = /shared/runs`"


def get_configured_trackers(files: ConfigFiles | None = None) -> dict[str, str | None]:
    """Return the configured trackers by name, each with its config or None.

    ``TORCHX_TRACKERS`` names them, or else section ``[torchx:tracker]`` of the config files. In files, the config of
    a tracker is ``config`` in section ``[tracker:NAME]``, or else the value of its key.

    Args:
        files: the result of :func:`torchx.config.load_files`, if the caller has it.
    """
    if os.environ.get(ENV_TRACKERS):
        from torchx.tracker.api import trackers_in_environ

        return dict(trackers_in_environ())
    files = config.load_files() if files is None else files
    if not files:
        return {}
    profile = config.active_profile()
    found: dict[str, str | None] = {}
    for name, beside in files.section("torchx:tracker", profile).items():
        own = files.section(f"tracker:{name}", profile).get("config")
        found[name] = (own.text if own else "") or beside.text or None
    return found


def tracker_environment(trackers: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment variables that pass the trackers to a job: their names, and the config of each."""
    if not trackers:
        return {}
    from torchx.tracker.api import tracker_config_env_var_name

    env = {ENV_TRACKERS: ",".join(trackers)}
    for name, text in trackers.items():
        if text is not None:
            env[tracker_config_env_var_name(name)] = text
    return env


def choose_tracker(wanted: str | None = None) -> tuple[str, TrackerBase]:
    """Return one of the configured trackers, by default the first, and its name.

    Raises ConfigError or NotFoundError if no tracker, or none of the name ``wanted``, is configured.
    """
    from torchx.tracker.api import make_tracker

    configured = get_configured_trackers()
    if not configured:
        raise ConfigError("no tracker is configured", hint=_CONFIG_HINT)
    name = wanted or next(iter(configured))
    if name not in configured:
        known = list(configured)
        hint = did_you_mean(name, known) or f"configured: {', '.join(known)}"
        raise NotFoundError(f"no tracker `{name}` is configured", hint=hint)
    return name, make_tracker(name, configured[name])
