"""Notices about a Slurm job's end and alarms, sent on its node by its script, because the user's laptop may be off.

The addresses are in a file of the job's folder with mode 0600, as secrets are, which is removed when everything is
sent. Sent notices are recorded next to it, so that watchers of the job send the others. The required modules are in the
archive :data:`torchx.schedulers.batch.attempts.PROGRAM_FILE`.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from torchx.schedulers.batch.attempts import output_lines
from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.kit.notices import FAR, Notice, deliver
from torchx.schedulers.kit.verdict import describe
from torchx.schedulers.slurm.answers import facts_of
from torchx.schedulers.slurm.attempts import left_in, seen_from_inside
from torchx.schedulers.slurm.events import EVENTS_FILE, parse_events
from torchx.schedulers.slurm.scripts.sbatch import seconds
from torchx.specs.api import NONE, AppStatus
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.notices import hang_event
from torchx.supervisor.layout import private
from torchx.supervisor.watchdog import seen

NOTICES_FILE = "notices.json"
SENT_FILE = "notices.sent"
_DONE = "."
_PAUSES_S = (1.0, 5.0)
_MAX_S = 60  # the job holds its nodes meanwhile; watchers send what is left
_PATIENCE_S = 75.0  # of watchers, before they assume that the script sends nothing more


def is_wanted(wishes: Wishes) -> bool:
    """Whether the batch script has to send notices when the job ends or is silent."""
    return bool({*wishes.notify} & {*FAR} and {*wishes.notify_on} & {"end", "fail", "hang"})


def content(plan: Mapping[str, Any] | None, session: str) -> str:
    """Return the file with the addresses; empty if there are none."""
    channels = {c: settings for c, settings in (plan or {}).get("channels", {}).items() if c in FAR}
    return json.dumps({**plan, "channels": channels, "session": session}) if plan and channels else ""


def taken(folder: JobFolder) -> dict[str, str] | None:
    """Return the notices that the script of an ended job has sent; stops it from sending more.

    Returns:
        Error by way (``EVENT/WAY`` for alarms), empty for success. None: the script may still be sending.
    """
    addresses, noted, events = map(folder.text, (NOTICES_FILE, SENT_FILE, EVENTS_FILE))
    sent: dict[str, str] = {}
    for line in noted.split("\n")[:-1]:
        way, _, why = line.partition(" ")
        sent[way] = why
    ended = parse_events(events).ended
    if addresses and _DONE not in sent and ended and abs(time.time() - ended) < _PATIENCE_S:  # by the node's clock
        return None
    if addresses:
        folder.files.remove(folder.file(NOTICES_FILE))
    sent.pop(_DONE, None)
    return sent


def main() -> None:
    """Send the due notices. Arguments: ``CODE TERMINATED`` at the script's end, ``hang`` for an alarm."""
    signal.alarm(_MAX_S)  # kills this process
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
    with open(SENT_FILE, "a", encoding="utf-8", opener=private) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # an alarm may still be being sent
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
    """Return the job in the current folder, as its script sees it:
    with Slurm's ``state`` and the watchdog's new finding.
    """
    ended = None if code is None else time.time()
    job, folder = seen_from_inside(os.getcwd(), state, ended=ended, exit_code=code)
    found = describe(facts_of(job), functools.partial(left_in, folder))
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
    """Slurm's state for a job that it ends: ``TIMEOUT`` or ``CANCELLED``."""
    text = " ".join(output_lines("scontrol", "show", "job", "--oneliner", job_id))
    ran_s, limit_s = (
        seconds(found[1]) if (found := re.search(rf"\b{name}=(\S+)", text)) else None
        for name in ("RunTime", "TimeLimit")
    )
    return "TIMEOUT" if limit_s and (ran_s or 0) >= limit_s else "CANCELLED"


def _note(way: str, why: str) -> None:
    with open(SENT_FILE, "a", encoding="utf-8", opener=private) as file:
        file.write(f"{way} {' '.join(why.split())}\n")
