"""The files of LSF jobs, read for many jobs at once."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Mapping, Sequence

from torchx.schedulers.batch.folders import JOB_FILE, JobFolder, read_whole, roles_of
from torchx.schedulers.batch.queries import Known
from torchx.schedulers.kit.attempts import ATTEMPTS_FILE, begins_of
from torchx.schedulers.kit.failures import SHELL
from torchx.schedulers.kit.files import Files
from torchx.schedulers.lsf.answers import NO_PROGRAM, Exit, facts_of, left_row, nothing_left
from torchx.schedulers.lsf.ends import NOTE, Ends
from torchx.schedulers.lsf.order import Marks, mark_files, read_marks
from torchx.schedulers.lsf.parse import Row, report_end, whole
from torchx.schedulers.lsf.replicas import (
    CANCELLED_FILE,
    ENDED_FILE,
    EXIT_FILE,
    REPORTS,
    RESTARTS_FILE,
    SILENT_FILE,
    STARTED_FILE,
    SUBMITTED_FILE,
)
from torchx.schedulers.lsf.sweeps import SWEEP_FILE, describe, ends_of, report_name, size_of, tasks_of
from torchx.specs.api import AppDef, Role
from torchx.specs.ready import has_order
from torchx.specs.wishes.retries import read_attempts
from torchx.supervisor.layout import HANG_FILE
from torchx.util.records import replace

Position = tuple[int, int]

_SMALL = (
    *(JOB_FILE, ATTEMPTS_FILE, RESTARTS_FILE, SUBMITTED_FILE, STARTED_FILE, ENDED_FILE, SWEEP_FILE),
    *(HANG_FILE, SILENT_FILE, CANCELLED_FILE),
)
_KNOWN_AFTER_S = 120.0


def jobs_of(
    files: Files, found: Mapping[str, list[Row]], folders: Mapping[str, JobFolder], ends: Ends
) -> dict[str, Known]:
    """Many jobs with the contents of their folders, by two queries for all of them; unknown jobs are left out.

    ``folders`` are the recorded ones; those of other jobs are taken from LSF's answer.
    """
    folders = {**{i: JobFolder(files, of[0].folder) for i, of in found.items() if of and of[0].folder}, **folders}
    texts = read_whole(files, [f.file(name) for f in folders.values() for name in _SMALL])
    roles = {app_id: roles_of(texts.get(f.file(JOB_FILE))) for app_id, f in folders.items()}
    sweeps = {i: size_of(texts.get(f.file(SWEEP_FILE), b"").decode()) for i, f in folders.items()}
    exits = {app_id: ends_of(folder) if sweeps[app_id][1] else {} for app_id, folder in folders.items()}
    packed = {app_id: pack for app_id, (_, _, pack) in sweeps.items() if pack > 1}
    found = {**found, **{i: tasks_of(found[i], exits[i], folders[i], roles[i], pack) for i, pack in packed.items()}}
    reports = _ends(files, found, folders, roles, sweeps=sweeps, exits=exits)
    orders = _marks(files, folders, roles)
    jobs = {}
    for app_id, members in found.items():
        folder = folders.get(app_id)
        if folder is None:
            if members:
                jobs[app_id] = Known(facts_of(app_id, [ends.settled(row) for row in members]))
            continue

        def text(name: str, folder: JobFolder = folder) -> str:
            return texts.get(folder.file(name), b"").decode("utf-8", "replace")

        marks = orders.get(app_id)
        young = time.time() - whole(text(SUBMITTED_FILE).strip()) < _KNOWN_AFTER_S
        told = [_with_report(row, reports[app_id].get((row.role, row.k), "")) for row in members]
        over = text(CANCELLED_FILE) or (marks is not None and marks.is_over)
        shown = told if over else [_settled(row, exits[app_id], ends) for row in told]
        rest = [
            left_row(app_id, *position, left=exits[app_id].get(position), report=reports[app_id].get(position, ""))
            or nothing_left(app_id, *position, young=young)
            for position in sorted(_forgotten(members, roles[app_id]))
        ]
        attempts = read_attempts(text(ATTEMPTS_FILE).splitlines())
        folder.begins = begins_of(attempts)
        if shown or rest:
            facts = facts_of(
                app_id,
                [*shown, *rest],
                roles=roles[app_id],
                exits=exits[app_id],
                restarts=text(RESTARTS_FILE).count("\n"),
                attempts=attempts,
                hang=text(HANG_FILE).strip(),
                silent=bool(text(SILENT_FILE)),
                marks=marks,
                times=(whole(text(STARTED_FILE).strip()), whole(text(ENDED_FILE).strip())),
            )
            facts = facts if shown == told else replace(facts, notes=[NOTE], ended=None)
            width, size, _ = sweeps[app_id]
            jobs[app_id] = Known(facts, folder, describe(facts, width) if size else None)
    return jobs


def _marks(files: Files, folders: Mapping[str, JobFolder], roles: Mapping[str, Sequence[Role]]) -> dict[str, Marks]:
    """Return what the replicas of jobs with an order have recorded, by one query."""
    names = {i: mark_files(of) for i, of in roles.items() if of and has_order(AppDef("", [*of]))}
    texts = read_whole(files, [folders[i].file(name) for i, of in names.items() for name in of]) if names else {}
    return {
        i: read_marks(roles[i], {name: texts.get(folders[i].file(name), b"").decode("utf-8", "replace") for name in of})
        for i, of in names.items()
    }


def _with_report(row: Row, report: str) -> Row:
    """With the reason from LSF's report, if ``bjobs`` has none."""
    ended = report_end(report) if row.stat == "EXIT" and not row.exit_reason else None
    return replace(row, exit_reason=ended[1]) if ended and ended[0] == row.exit_code else row


def _settled(row: Row, exits: dict[Position, Exit], ends: Ends) -> Row:
    """See :meth:`Ends.settled`. A program's own end is final: its script recorded it."""
    left = exits.get((row.role, row.k))
    by_itself = left.failed if left is not None else whole(row.exit_code) <= SHELL
    if row.stat == "DONE" or (row.stat == "EXIT" and by_itself):
        return row
    settled = ends.settled(row, left.at if left is not None else None)
    if settled is not row:
        exits.pop((row.role, row.k), None)
    return settled


def _forgotten(members: Sequence[Row], roles: Sequence[Role]) -> set[Position]:
    """Replicas that LSF no longer knows: it forgets them, usually an hour after their end."""
    everybody = {(index, k) for index, role in enumerate(roles) for k in range(role.num_replicas)}
    return everybody - {(row.role, row.k) for row in members}


def _ends(
    files: Files,
    found: Mapping[str, Sequence[Row]],
    folders: Mapping[str, JobFolder],
    roles: Mapping[str, Sequence[Role]],
    *,
    sweeps: Mapping[str, tuple[int, int, int]],
    exits: dict[str, dict[Position, Exit]],
) -> dict[str, dict[Position, str]]:
    """How failed and forgotten replicas ended, from the records of their scripts, added to ``exits``, and from LSF's
    reports. ``sweeps``: see :func:`size_of`; tasks share one record per host, which has been read.
    """
    places: dict[str, list[tuple[str, Position]]] = {}
    for app_id, folder in folders.items():
        _, size, pack = sweeps[app_id]
        if size:
            for position in _forgotten(found[app_id], roles[app_id]):
                left = exits[app_id].get(position)
                if left is None or left.killed:
                    report = report_name(position[1] // pack, size)
                    places.setdefault(posixpath.join(folder.path, REPORTS, report), []).append((app_id, position))
            continue
        failed = {(row.role, row.k) for row in found[app_id] if row.stat == "EXIT" and row.role < len(roles[app_id])}
        forgotten = _forgotten(found[app_id], roles[app_id])
        for index, k in failed | forgotten:
            result = posixpath.join(folder.replica(roles[app_id][index].name, k), EXIT_FILE)
            places[result] = [(app_id, (index, k))]
        unread = {(row.role, row.k) for row in found[app_id] if row.exit_code == NO_PROGRAM}
        for index, k in forgotten | (failed & unread):
            places[posixpath.join(folder.path, REPORTS, f"{index}.{k}")] = [(app_id, (index, k))]
    reports: dict[str, dict[Position, str]] = {app_id: {} for app_id in folders}
    for path, data in read_whole(files, places).items():
        text = data.decode("utf-8", "replace")
        for app_id, position in places[path]:
            if posixpath.basename(path) != EXIT_FILE:
                reports[app_id][position] = text
            elif (left := Exit.parse(text)) is not None:
                exits[app_id][position] = left
    return reports
