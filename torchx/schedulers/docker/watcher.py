"""The watcher process of a job in containers: stops the other replicas after a failure, and restarts gangs.

:mod:`watchers` runs it as ``python -I -S watcher.py APP_ID SAMPLE_S DELAY_S``, with the engine's address in the
environment: SAMPLE_S is the interval of resource samples (0: none), and DELAY_S the delay before it starts. It detaches
from the caller's session at once. The caller writes ``go`` to its stdin once the job is submitted; if stdin is closed
without it, the submission was killed, and the watcher cancels the job. The program that sends the job's notices, if
any, follows ``go``: the watcher executes it at the end.

It has no state of its own: the engine's list and the containers' names decide (:mod:`gangs`), so another watcher can
continue at any point. A lock that the kernel releases with the process ensures that there is only one. It checks the
job after each event of the engine and at intervals, survives restarts of the engine, and exits when the job is over.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    if os.fork():  # detach before anything else: the caller waits for the parent
        os._exit(0)
    os.setsid()
    import time

    time.sleep(float(sys.argv[3]))  # before the other imports, for most jobs are over by then
    # `-I -S` leaves only the standard library on the path. Append torchx last, so that it cannot shadow any of it.
    _root = os.path.abspath(__file__)
    for _ in range(4):
        _root = os.path.dirname(_root)
    sys.path.append(_root)

import signal
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from torchx.schedulers.docker import gangs
from torchx.schedulers.docker.containers import LABEL_APP_ID, Container, Job, Mark, join_name, list_jobs
from torchx.schedulers.docker.plain_http import EngineHttp, Events, RefusedError, target
from torchx.schedulers.docker.sigterm import sigterm_is_lost
from torchx.schedulers.docker.watchers import GO, hold
from torchx.settings import FIRST_SAMPLE_S
from torchx.specs.api import AppState, is_terminal
from torchx.util.records import replace

if TYPE_CHECKING:
    from torchx.schedulers.docker.hangs import ContainersWatchdog
    from torchx.schedulers.docker.metrics import ContainersSampler
    from torchx.schedulers.docker.order import Readiness

LOOK_S = 30.0
"""Interval of checks without events."""
GIVE_UP_S = 600.0
"""The watcher exits if the engine has not answered for this long. A later ``status`` starts another one."""

_LAG_S = 10.0  # an engine reports an exit, disconnects the container from its network, and only then lists it as exited
_SETTLE_S = 2.0  # Podman lists a container as exited that it is about to restart
_ANSWER_S = 60.0
_ENDS = ("die", "died", "destroy", "remove")


def may_start_again(app_id: str) -> bool:
    """Evaluate the retry policy of a failed job, in a process that has all installed packages."""
    from torchx.supervisor import at_end
    from torchx.util.procs import own_program

    return at_end.may_start_again(own_program("torchx.schedulers.docker.attempts", app_id), dict(os.environ))


class Watcher:
    """Watches one job until it is over.

    Args:
        may_start_again: evaluates the retry policy of a failed job.
        at_end: the program that sends the job's notices; it also runs when the job becomes silent.
        sample_s: seconds between two samples of resource usage, after shorter intervals at first; 0: no samples.
        first_s: seconds until the first sample; None: :data:`FIRST_SAMPLE_S`, or ``sample_s`` if that is less.
    """

    def __init__(
        self,
        engine: EngineHttp,
        app_id: str,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        may_start_again: Callable[[str], bool] = may_start_again,
        at_end: bytes = b"",
        sample_s: float = 0.0,
        first_s: float | None = None,
    ) -> None:
        self.engine = engine
        self.app_id = app_id
        self.sleep = sleep
        self.clock = clock
        self.may_start_again = may_start_again
        self.at_end = at_end
        self._sample_s = sample_s
        self._sample_pause_s = min(FIRST_SAMPLE_S, sample_s)
        wait_s = self._sample_pause_s if first_s is None else first_s
        self._sample_due = clock() + wait_s if sample_s else sys.maxsize
        self._sampler: ContainersSampler | None = None
        self._watchdogs: list[ContainersWatchdog] | None = None
        self._label = f"{LABEL_APP_ID}={app_id}"
        self._ended: dict[str, float] = {}  # container id -> when an event reported its exit
        self._began: dict[int, float] = {}  # attempt with a time limit -> when it began, by our clock
        self._starts: dict[str, float] = {}  # container id -> Unix time of its last start, by an event
        self._readiness: Readiness | None = None
        self._failed: dict[str, float] = {}  # container id -> when we saw that it failed
        self._marked: dict[str, float] = {}  # name of a container that another process stops -> when we saw that

    def run(self) -> None:
        """Return when the job is over, or when the engine is gone."""
        heard = self.clock()
        attempt = 0
        while True:
            try:
                job = self._job()
                if job is None:
                    return
                with closing(self._listen(job)) as events:
                    attempt = 0
                    self._watch(events)
                    return
            except (OSError, RefusedError, ValueError):
                now = self.clock()
                heard = now if attempt == 0 else heard
                if self.engine.is_gone() or now - heard > GIVE_UP_S:
                    return
            self.sleep(min(0.1 * 1.5**attempt, 5.0))
            attempt += 1

    def end_all(self) -> None:
        """Cancel the job."""
        for attempt in range(10):
            with suppress(OSError, RefusedError, ValueError):
                job = self._job()
                if job is None or self._stop(job, cancelled=True):
                    return
            self.sleep(0.2 * 1.5**attempt)

    def _listen(self, job: Job) -> Events:
        # Since the job's creation: an engine answers some time before it begins to record events for the stream.
        since = min(c.created for c in job.containers)
        return self.engine.events({"type": ["container"], "event": [*_ENDS, "start"], "label": [self._label]}, since)

    def _job(self) -> Job | None:
        return list_jobs(self.engine, self._label).get(self.app_id)

    def _watch(self, events: Events) -> None:
        before: object = None
        repeats = 0
        while True:
            job = self._job()
            if job is None:
                return
            wait_s = self._lag_s(job)
            step = gangs.next_step(job)
            if step:
                wait_s = min(wait_s, self._settle_s(job))
                if wait_s == LOOK_S:
                    self._do(job, step)
                    task = [(c.id, c.mark) for c in step.stop or step.end or step.again or job.containers]
                    repeats = repeats + 1 if task == before else 0
                    before = task
                    if not repeats:
                        continue
                    # The engine refuses the step, or has not completed it yet.
                    wait_s = min(0.05 * 1.5 ** min(repeats, 20), LOOK_S)
            elif all(is_terminal(c.state) for c in job.containers):
                return
            elif (left_s := self._time_left_s(job)) <= 0:
                self._stop(job, late=True)
                continue
            elif (silence_s := self._watch_silence(job)) <= 0 or (probe_s := self._probe(job)) <= 0:
                continue
            else:
                wait_s = min(wait_s, left_s, silence_s, probe_s, self._sample(job))
            self._take(events.wait(wait_s))

    def _take(self, events: Iterable[dict[str, object]]) -> None:
        for event in events:
            actor = event.get("Actor")
            container = str(event.get("id") or (actor.get("ID") if isinstance(actor, dict) else ""))
            if str(event.get("status") or event.get("Action")) in _ENDS:
                self._ended[container] = self.clock()
            else:
                self._ended.pop(container, None)
                self._starts[container] = float(str(event.get("time") or 0))

    def _lag_s(self, job: Job) -> float:
        """Seconds until the next check: few, while the list does not show an exit that an event has reported."""
        now = self.clock()
        running = {c.id for c in job.containers if c.raw == "running"}
        self._ended = {c: at for c, at in self._ended.items() if c in running and now - at < _LAG_S}
        return min((0.02 + (now - at) / 4 for at in self._ended.values()), default=LOOK_S)

    def _time_left_s(self, job: Job) -> float:
        """Seconds until the attempt reaches its time limit."""
        limit = gangs.rules_of(job).timeout
        if not limit:
            return LOOK_S
        from torchx.schedulers.kit.timed_lines import split_stamp
        from torchx.specs.wishes.timeouts import parse_timeout

        attempt = max(c.mark.app for c in job.containers)
        if attempt not in self._began:
            details = self.engine.get(f"/containers/{job.first().id}/json")
            started = split_stamp(str(details["State"]["StartedAt"]).encode())[0] / 1e9
            self._began[attempt] = self.clock() - max(time.time() - started, 0.0)
        return self._began[attempt] + parse_timeout(limit) - self.clock()

    def _watch_silence(self, job: Job) -> float:
        """Stop the attempt if it is silent or idle. Returns the seconds until the next check; 0 if it was stopped."""
        rules, wait_s = gangs.rules_of(job), LOOK_S
        if not rules.watchdog and not rules.idle:
            return wait_s
        if self._watchdogs is None:
            self._watchdogs = self._watching(rules)
        _reap()
        for watchdog in self._watchdogs:
            finding, due = watchdog.look(job, self.clock())
            if finding and watchdog.silent:
                if self.at_end:
                    from torchx.supervisor.at_end import spawn

                    spawn(self.at_end, f"{self.clock():.0f}")  # it checks whether a notice of a hang is due
                if watchdog.action in ("cancel", "retry"):
                    self._stop(job, late=True, silent=True, final=watchdog.action == "cancel")
                    return 0.0
            wait_s = min(wait_s, max(due - self.clock(), 0.01))
        return wait_s

    def _probe(self, job: Job) -> float:
        """Probe what others wait for. Returns the seconds until the next look; 0 if something has changed."""
        if not gangs.orders_of(job):
            return LOOK_S
        if self._readiness is None:
            from torchx.schedulers.docker.order import Readiness

            self._readiness = Readiness(self.engine)
        marks, why, due = self._readiness.look(job, self._starts, self.clock())
        if why:
            from torchx.schedulers.docker.evidence import LATE_FILE, put_files

            put_files(self.engine, job.first().id, {LATE_FILE: why})
            self._stop(job, late=True)
            return 0.0
        if marks:
            return 0.0 if self._rename(marks) else 0.2
        return max(due - self.clock(), 0.01)

    def _watching(self, rules: gangs.Rules) -> list[ContainersWatchdog]:
        from torchx.schedulers.docker.hangs import ContainersWatchdog

        found = [ContainersWatchdog(self.engine, self.app_id, rules.watchdog)] if rules.watchdog else []
        if rules.idle:
            from torchx.schedulers.docker.idle import ContainersIdle
            from torchx.schedulers.docker.metrics import ContainersSampler

            self._sampler = self._sampler or ContainersSampler(self.engine)
            idle = ContainersIdle(self.engine, self._sampler, rules.idle, self._sample_s, plain=bool(rules.plain))
            found.append(idle)
        return found

    def _sample(self, job: Job) -> float:
        """Sample the resource usage if it is due. Returns the seconds until the next sample."""
        if self.clock() >= self._sample_due:
            from torchx.schedulers.docker.metrics import ContainersSampler

            self._sampler = self._sampler or ContainersSampler(self.engine)
            self._sample_due = self.clock() + max(self._sample_pause_s, self._sampler.look(job))
            self._sample_pause_s = min(2 * self._sample_pause_s, self._sample_s)
        return max(self._sample_due - self.clock(), 0.01)

    def _settle_s(self, job: Job) -> float:
        """Seconds until the next check: few, while the engine may restart a failed replica by itself."""
        now = self.clock()
        retries = gangs.rules_of(job).retries
        failed = [c for c in job.containers if c.state is AppState.FAILED and not c.mark.cancelled]
        self._failed = {c.id: self._failed.get(c.id, now) for c in failed}
        for container in failed:
            most, policy = retries.get(container.role, (0, ""))
            since = self._failed[container.id]
            if policy == gangs.REPLICA and most > 0 and now - since < _SETTLE_S and self._restarts(container) < most:
                return 0.2
        return LOOK_S

    def _restarts(self, container: Container) -> int:
        try:
            return int(self.engine.get(f"/containers/{container.id}/json").get("RestartCount") or 0)
        except RefusedError:  # it was removed
            return sys.maxsize

    def _do(self, job: Job, step: gangs.Step) -> None:
        if step.stop:
            self._stop(job, self._unsignalled(job, step.stop), cancelled=True)
        elif step.end:
            self._stop(job, self._unsignalled(job, step.end), ended=True)
        elif step.again:
            self._again(job, step)
        elif self.may_start_again(self.app_id):
            self._again(job, gangs.another_attempt(job))
        else:
            self._rename((c, replace(c.mark, final=True)) for c in job.containers)

    def _unsignalled(self, job: Job, which: list[Container]) -> list[Container]:
        """Without those that another process has marked and is stopping: their handlers need no second SIGTERM."""
        now, grace = self.clock(), gangs.rules_of(job).grace_s
        others = [c for c in which if c.mark.cancelled or c.mark.ended or c.mark.late]
        waiting = {c.id for c in others if now - self._marked.setdefault(_full_name(c), now) <= grace}
        return [c for c in which if c.id not in waiting]

    def _stop(self, job: Job, which: list[Container] | None = None, **mark: bool) -> bool:
        """Mark containers, or all that run, and stop them. Returns whether all were stopped."""
        which = [c for c in job.containers if not is_terminal(c.state)] if which is None else which
        mark["due"] = False  # what waits never starts
        self._rename((c, replace(c.mark, **mark)) for c in which)
        self._marked |= {
            join_name(c.name, replace(c.mark, **mark)): -sys.maxsize for c in which
        }  # if it fails, at once
        return self._end(job, which)

    def _again(self, job: Job, step: gangs.Step) -> None:
        """Stop and restarts containers, as far as the engine lets it: the next step repeats the rest."""
        by_failure = sorted(step.again, key=lambda c: c.state is not AppState.FAILED)
        # The first mark makes the decision final, whichever watcher carries it out.
        if not self._rename((c, step.mark(c, due=True)) for c in by_failure[:1]):
            return
        self._rename((c, step.mark(c, due=True)) for c in by_failure[1:])
        # A policy restarts only what has ended: what runs was started by a watcher that was killed since.
        begun = {c.id for c in step.again if gangs.rules_of(job).policy and c.mark.due and c.raw == "running"}
        if begun:
            self._remove_due(step, begun)
        ids = {c.id for c in step.again} - begun
        if not self._end(job, [c for c in step.again if c.id in ids and not is_terminal(c.state)]):
            return
        for first in (True, False):  # replicas 0 first: the others resolve their names as soon as they start
            fresh = self._job()
            if fresh is None or any(c.mark.cancelled for c in fresh.containers):
                return
            held = gangs.waiting(fresh)
            due = [c for c in fresh.containers if c.id in ids and c.mark.due and (c.k == 0) is first]
            due = [c for c in due if c.role not in held]
            answers = self.engine.post((f"/containers/{_full_name(c)}/start" for c in due), timeout_s=_ANSWER_S)
            for container in due:
                self._ended.pop(container.id, None)
            # A container that the engine refuses to start has failed; retry only if there was no response.
            answered = {c.id for c, answer in zip(due, answers, strict=True) if answer}
            self._remove_due(step, answered)
            if len(answered) < len(due):
                return

    def _remove_due(self, step: gangs.Step, started: set[str]) -> None:
        fresh = self._job()
        found = fresh.containers if fresh else []
        if not any(c.mark.cancelled for c in found):
            self._rename((c, step.mark(c, due=False)) for c in found if c.id in started)

    def _rename(self, which: Iterable[tuple[Container, Mark]]) -> bool:
        """Change marks. Returns whether all were changed: a concurrent cancel, for example, prevents it."""
        wanted = [(c, join_name(c.name, mark)) for c, mark in which if mark != c.mark]
        answers = self.engine.post(target(f"/containers/{_full_name(c)}/rename", {"name": name}) for c, name in wanted)
        return all(answer == 204 for answer in answers)

    def _end(self, job: Job, which: list[Container]) -> bool:
        grace = gangs.rules_of(job).grace_s
        targets = [target(f"/containers/{c.id}/stop", {"t": 0 if self._sigterm_is_lost(c) else grace}) for c in which]
        answers = self.engine.post(targets, timeout_s=grace + _ANSWER_S)
        return all(answer in (204, 304, 404) for answer in answers)

    def _sigterm_is_lost(self, container: Container) -> bool:
        try:
            return sigterm_is_lost(self.engine.get(f"/containers/{container.id}/json"))
        except (RefusedError, ValueError):  # it was removed
            return False


def _reap() -> None:
    """Reaps child processes that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _full_name(container: Container) -> str:
    """Its name when it was listed. A request by this name fails if its marks have changed since, unlike one by id."""
    return join_name(container.name, container.mark)


def main() -> None:
    """Watches the job named on the command line."""
    app_id = sys.argv[1]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # inherited from the caller
    lock = hold(app_id)
    for _ in range(2):  # `watchers.lives` may hold it for a moment
        if lock is None:
            time.sleep(0.05)
            lock = hold(app_id)
    if lock is None:
        return
    with open(0, "rb", closefd=False) as pipe:
        message = pipe.read()
    os.dup2(1, 0)
    at_end = message[len(GO) :]
    sample_s, delay_s = map(float, sys.argv[2:4])
    first_s = 0.0 if delay_s else None
    watcher = Watcher(EngineHttp(os.environ), app_id, at_end=at_end, sample_s=sample_s, first_s=first_s)
    if not message.startswith(GO):
        job = watcher._job()
        if job is None or not gangs.is_complete(job) or any(c.state is AppState.SUBMITTED for c in job.containers):
            watcher.end_all()
            return
    watcher.run()
    if at_end:
        from torchx.supervisor.at_end import become

        become(at_end)


if __name__ == "__main__":
    main()
