"""The program that sends the due notices of a job: ``python -m torchx.runner.notices HANDLE``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import Any

from torchx.runner import get_runner
from torchx.runner.notices.plans import due_events, forget, held, plan_path, read, remove, write
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.abilities import SendsNotices
from torchx.specs.api import AppStatus, is_terminal
from torchx.supervisor.at_end import ALARM

_TAKE_S = 1.0


def send(handle: str, *, pauses_s: Iterable[float] | None = None) -> None:
    """Send the due notices of a job, each once, even if several processes call this at the same time.

    Transient failures are retried after ``pauses_s``, or after the default pauses of each channel.
    """
    path = plan_path(handle)
    if not os.path.exists(path):
        return
    with held(path) as ours:
        plan = read(path) if ours else {}
        if not plan.get("channels"):
            return
        with get_runner() as runner:
            status = runner.status(handle)
            while status is not None:
                if plan.get("job") and is_terminal(status.state):
                    _take(path, plan, *runner._locate(handle)[1:])
                if not (due := due_events(plan, status.state, status.hang)):
                    break
                for event in due:
                    _send_all(path, plan, event, status, pauses_s)
                os.environ.pop(ALARM, None)
                status = runner.status(handle)  # if it has ended meanwhile, other senders have left that to this one
        if status is None:
            forget(handle)
            return
        if is_terminal(status.state) or status.gone:
            _finish(path, plan)


def _take(path: str, plan: dict[str, Any], backend: Scheduler[Any], app_id: str) -> None:
    """Record what the job has sent itself. What it could not send is sent from here."""
    assert isinstance(backend, SendsNotices), backend  # checked when the plan was made
    while (sent := backend.take_notices(app_id)) is None:
        time.sleep(_TAKE_S)
    _note(plan, sent)
    write(path, plan)


def _note(plan: dict[str, Any], sent: dict[str, str]) -> None:
    for way in (way for way, why in sent.items() if not why):
        event, _, channel = way.rpartition("/")
        plan["sent"].setdefault(event or "end", []).append(channel)
    plan["job"] = False


def _send_all(path: str, plan: dict[str, Any], event: str, status: AppStatus, pauses_s: Iterable[float] | None) -> None:
    from torchx.schedulers.kit.notices import Notice, deliver

    notice = Notice.of(event.partition("-")[0], plan["handle"], plan["name"], status)
    for channel, settings in plan["channels"].items():
        if channel in plan["sent"].get(event, ()):
            continue
        why = deliver(channel, settings, notice, pauses_s)
        if why:
            plan.setdefault("failed", {})[channel] = why
        plan["sent"].setdefault(event, []).append(channel)
        write(path, plan)


def _finish(path: str, plan: dict[str, Any]) -> None:
    """Remove the plan, because nothing is left to send; failures are kept, without the channels."""
    if plan.get("failed"):
        write(path, {"handle": plan["handle"], "failed": plan["failed"]})
    remove(path, keep="failed" in plan)


def main() -> None:
    send(sys.argv[1])


if __name__ == "__main__":
    main()
