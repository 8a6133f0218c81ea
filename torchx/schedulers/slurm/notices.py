"""Notices of the end of a Slurm job, and of its alarms, sent on the node by its script: a laptop may be closed by then.

The addresses are in a file of the job's folder that nobody else can read, as secrets are, and go when all is sent. What
was sent is noted beside it, and whoever watches the job sends the rest. The modules that are needed lie there as an
archive, :data:`torchx.schedulers.batch.attempts.PROGRAM_FILE`.
"""

from __future__ import annotations

import fcntl
import json
import os
import posixpath
import re
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from torchx.schedulers.batch import attempts
from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.kit.verdict import describe
from torchx.schedulers.notices import FAR, Notice, deliver
from torchx.schedulers.slurm.answers import facts_of
from torchx.schedulers.slurm.attempts import look_into, seen_from_inside
from torchx.schedulers.slurm.events import EVENTS_FILE, parse_events
from torchx.specs.api import NONE, AppDef, AppStatus
from torchx.specs.notices import NOTIFY, hang_event, wish_of
from torchx.supervisor.watchdog import seen

NOTICES_FILE = "notices.json"
SENT_FILE = "notices.sent"
_DONE = "."
_PAUSES_S = (1.0, 5.0)
_MOST_S = 60  # the nodes are kept meanwhile; what is not sent by then is sent by whoever watches
_PATIENCE_S = 75.0  # of others, until the script has sent, or never will


def is_wanted(app: AppDef) -> bool:
    """Whether the batch script shall send something when the job ends, or is silent."""
    if NOTIFY not in app.metadata:
        return False
    channels, events = wish_of(app.metadata)
    return bool({*channels} & {*FAR} and {*events} & {"end", "fail", "hang"})


def content(plan: Mapping[str, Any] | None, session: str) -> str:
    """The file with the addresses; empty when nobody is to hear of the job."""
    channels = {c: settings for c, settings in (plan or {}).get("channels", {}).items() if c in FAR}
    return json.dumps({**plan, "channels": channels, "session": session}) if plan and channels else ""


def taken(folder: JobFolder) -> dict[str, str] | None:
    """What the script of a job that has ended has sent, by way (of an alarm ``EVENT/WAY``): empty, or why it could not;
    then it sends no more.

    None: it may be at it.
    """
    paths = [posixpath.join(folder.path, name) for name in (NOTICES_FILE, SENT_FILE, EVENTS_FILE)]
    addresses, noted, events = (folder.files.read(path) for path in paths)
    sent: dict[str, str] = {}
    for line in (noted or b"").decode("utf-8", "replace").split("\n")[:-1]:
        way, _, why = line.partition(" ")
        sent[way] = why
    ended = parse_events((events or b"").decode("utf-8", "replace")).ended
    if addresses and _DONE not in sent and ended and abs(time.time() - ended) < _PATIENCE_S:  # by the node's clock
        return None
    if addresses:
        folder.files.remove(paths[0])
    sent.pop(_DONE, None)
    return sent


def main() -> None:
    """Sends what is due, in the job's folder: ``CODE TERMINATED`` are how its script ends, ``hang``: it is silent."""
    signal.alarm(_MOST_S)  # which ends this process
    try:
        with open(NOTICES_FILE, encoding="utf-8") as file:
            plan = json.load(file)
    except OSError:
        return
    over = sys.argv[1] != "hang"
    text = "" if over else seen(".")
    if over:
        code, terminated = int(sys.argv[1]), sys.argv[2] != "0"
        state = _why_terminated(os.environ["SLURM_JOB_ID"]) if terminated else "FAILED" if code else "COMPLETED"
        status = status_here(state, code)
        due = "end" in plan["on"] or ("fail" in plan["on"] and str(status.state) == "FAILED")
    else:
        status, due = status_here("RUNNING", hang=text), "hang" in plan["on"]
    with open(SENT_FILE, "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the end comes after an alarm that is being told
        if due:
            handle = f"slurm://{plan['session']}/{os.environ['SLURM_JOB_ID']}"
            notice = Notice.of("end" if over else "hang", handle, plan["name"], status)
            for channel, settings in plan["channels"].items():
                way = channel if over else f"{hang_event(text)}/{channel}"
                _note(way, deliver(channel, settings, notice, _PAUSES_S))
        if over:
            _note(_DONE, "")
            os.unlink(NOTICES_FILE)


def status_here(state: str, code: int | None = None, *, hang: str = "") -> AppStatus:
    """The job whose folder is the current one, as its script sees it.

    Args:
        state: in Slurm's words.
        hang: what was seen just now.
    """
    ended = None if code is None else time.time()
    job, folder = seen_from_inside(os.getcwd(), state, ended=ended, exit_code=code)
    found = describe(facts_of(job), look_into(folder))
    return AppStatus(
        found.state,
        num_restarts=found.num_restarts,
        msg="" if found.msg == NONE else found.msg,
        structured_error_msg=found.structured_error_msg,
        roles=found.roles_statuses,
        started_at=found.started_at,
        ended_at=found.ended_at,
        attempts=found.attempts,
        hang=hang or found.hang,
    )


def _why_terminated(job_id: str) -> str:
    """Slurm's word for the end of a job that it ends: its time is over, or somebody has cancelled it."""
    text = " ".join(attempts.said("scontrol", "show", "job", "--oneliner", job_id))
    times = [re.search(rf"\b{name}=((\d+)-)?(\d+):(\d+):(\d+)", text) for name in ("RunTime", "TimeLimit")]
    ran, limit = (
        0 if t is None else int(t[2] or 0) * 86400 + int(t[3]) * 3600 + int(t[4]) * 60 + int(t[5]) for t in times
    )
    return "TIMEOUT" if times[1] is not None and ran >= limit else "CANCELLED"


def _note(way: str, why: str) -> None:
    with open(SENT_FILE, "a", encoding="utf-8") as file:
        file.write(f"{way} {' '.join(why.split())}\n")


if __name__ == "__main__":
    main()
