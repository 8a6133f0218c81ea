"""Plans of notices: which notices of a job (start, end, hang) are due, and who sends each of them exactly once.

When a job with notices is submitted, a plan with the channels is written below torchx's home, readable only by its
owner. A process that sees that a notice is due starts the program ``torchx.runner.notices`` with the handle: the
supervisor of a local job, the watcher of containers, or a poller. It takes a lock, sends, and records in the plan what
it sent. The plan is removed after the last notice; only failures are kept, for ``torchx status``.

A Slurm job sends the notices of its end and of hangs itself, from its node; those that fail are sent from here.
"""

from __future__ import annotations

import binascii
import contextlib
import fcntl
import glob
import json
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

from torchx.runs import RunRegistry
from torchx.settings import make_private, torchx_home
from torchx.specs.api import AppDef, AppState, is_terminal
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.notices import hang_event
from torchx.specs.wishes.watchdog import ALARMS
from torchx.supervisor.at_end import ALARM
from torchx.util.notices import logger
from torchx.util.procs import own_program

_KEPT = (
    *("HOME", "PATH", "PYTHONPATH", "TORCHX_HOME", "VIRTUAL_ENV", "LANG"),
    *("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR"),
    *("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_CONTEXT", "SLURM_CONF", "KUBECONFIG"),
)
_KEPT_SERVERS = ("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_STARTED = (AppState.RUNNING, AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED)


class Plan:
    """The notices of a job that is being submitted."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content
        self._handle = ""

    @classmethod
    def of(cls, app: AppDef) -> Plan | None:
        """Return the plan of a job before it is submitted; None if the job has no notices.

        Raises SpecError for an invalid channel or event, and ConfigError if ``[notify]`` lacks a setting.
        """
        from torchx.runner.notices.channels import settings_of

        wishes = Wishes.of(app)
        ways = {channel: settings_of(channel) for channel in wishes.notify}
        return cls({"name": app.name, "on": [*wishes.notify_on], "channels": ways, "sent": {}}) if ways else None

    def arm(self, handle: str) -> bytes:
        """Write the plan. Returns the command that sends notices, in the form that a supervisor takes.

        If the plan cannot be written, the job has no notices, and a warning says so.
        """
        self._handle = handle
        try:
            make_private(torchx_home("notices"))
            argv, env = command(handle)
            words = b"".join(
                os.fsencode(word) + b"\0" for word in (*argv, "", *(f"{name}={value}" for name, value in env.items()))
            )
            write(plan_path(handle), {**self._content, "handle": handle, "program": os.fsdecode(words)})
        except OSError as e:
            logger("torchx.runner").warning("nobody will be notified of `%s`: %s", handle, e)
            return b""
        return words

    def for_job(self) -> dict[str, Any]:
        """Return the plan for a job that sends the notices of its end itself; other notices are sent from here."""
        self._content["job"] = True
        return self._content

    def disarm(self) -> None:
        """Remove the plan, because the submission failed."""
        if self._handle:
            forget(self._handle)

    def submitted(self, handle: str) -> None:
        """Store the plan under the handle and send the notice of the start, after the submission."""
        if handle != self._handle:
            self.disarm()
            self.arm(handle)
        if "start" in self._content["on"]:
            start_sender(handle)


def forget(handle: str) -> None:
    """Remove the plan of a job that was not submitted, or was deleted."""
    remove(plan_path(handle))


def remove(path: str, *, keep: bool = False) -> None:
    """Remove a plan (unless ``keep``), its lock, and drafts of processes that were killed while they wrote."""
    for name in glob.glob(f"{glob.escape(path)}*"):
        if name != path or not keep:
            with contextlib.suppress(OSError):
                os.unlink(name)


def plan_path(handle: str) -> str:
    """Return the path of the plan of a job."""
    name = re.sub(r"[^\w.-]+", "_", handle)[:150]
    return torchx_home("notices", f"{name}-{binascii.crc32(handle.encode()):08x}.json")


def problems(handle: str) -> list[str]:
    """Return the notices of a job that could not be sent, with the reasons, for its status page."""
    failed = read(plan_path(handle)).get("failed", {})
    return [f"{channel.partition(':')[0]} was not sent: {why}" for channel, why in failed.items()]


def due_events(plan: dict[str, Any], state: AppState, hang: str = "") -> list[str]:
    """Return the events of which not all notices were sent."""
    events = []
    if "start" in plan["on"] and state in _STARTED:
        events.append("start")
    if "hang" in plan["on"] and hang.startswith(ALARMS) and not plan.get("job"):
        events.append(_alarm(plan, hang_event(hang)))
    if is_terminal(state) and ("end" in plan["on"] or ("fail" in plan["on"] and state is AppState.FAILED)):
        events.append("end")
    return [event for event in events if set(plan["sent"].get(event, ())) < set(plan["channels"])]


def _alarm(plan: dict[str, Any], event: str) -> str:
    """Return the name under which the plan records an alarm:
    the process that an alarm starts counts it as a new one.
    """
    alarm = os.environ.get(ALARM, "")
    known = [e for e in plan["sent"] if e.startswith(event)]
    if alarm and event not in known:  # otherwise a process that was already running has sent it
        return f"{event}-{alarm}"
    return known[-1] if known else event


def command(handle: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that sends the due notices of a job, and its environment."""
    kept = (*_KEPT, *_KEPT_SERVERS, *map(str.lower, _KEPT_SERVERS))  # proxies are named in both ways
    env = {name: os.environ[name] for name in kept if name in os.environ}
    env["TORCHX_HOME"] = torchx_home()
    return own_program("torchx.runner.notices.__main__", handle), env


def send_due(scheduler: str, registry: RunRegistry) -> None:
    """Start a sender for each job of a scheduler that has due notices, or has ended, according to the run registry.

    A job that has ended still has a plan if the process that sent its last notice died before it removed the plan.
    """
    for path in _plans(scheduler):
        plan = read(path)
        run = registry.get(str(plan.get("handle", ""))) if plan.get("channels") else None
        if run is not None and (run.is_terminal() or due_events(plan, run.state)) and not is_held(path):
            start_sender(run.handle)


def start_sender(handle: str) -> None:
    argv, env = command(handle)
    null = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        # The child needs the environment by which this process finds the scheduler.
        process = subprocess.Popen(
            argv, env={**os.environ, **env}, stdin=null, stdout=null, stderr=null, start_new_session=True
        )
        _senders[:] = [p for p in _senders if p.poll() is None]
        _senders.append(process)


_senders: list[Any] = []


def _plans(scheduler: str) -> list[str]:
    folder = torchx_home("notices")
    start = re.sub(r"[^\w.-]+", "_", f"{scheduler}://")
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder) if name.startswith(start) and name.endswith(".json")]
    except OSError:
        return []


def read(path: str) -> dict[str, Any]:
    """Read a plan; empty if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(path: str, plan: dict[str, Any]) -> None:
    draft = f"{path}.{os.getpid()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        json.dump(plan, file)
        file.flush()
        os.fsync(fd)
    os.replace(draft, path)


@contextlib.contextmanager
def held(path: str) -> Iterator[bool]:
    """Locks a plan; yields whether this process got the lock."""
    try:
        lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)


def is_held(path: str) -> bool:
    with held(path) as ours:
        return not ours
