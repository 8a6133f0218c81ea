"""The process that stays beside a job in containers: ends the others when a replica has failed, starts gangs again.

Run as ``python -I -S watcher.py APP_ID SECONDS WAIT``, with the engine's address in the environment and a pipe as
stdin; see :mod:`watchers` for the other end. Between two samples of what containers use lie so many seconds (0: none
are taken), and so many pass until it begins. The pipe says ``go`` when the job is submitted; if it is closed without
that, the submission was killed, and what there is of the job is ended. Behind ``go`` stands the program that sends the
job's notices, if somebody wants to hear of its end: the watcher becomes it. It leaves the caller's session at once.

It owns nothing: what the engine lists and what the containers' names say decides (:mod:`gangs`), so another one may
take its work up at any point. A name in the kernel, which goes with the process, sees to it that there is but one. It
holds no secret and no file, looks at the job after each event that the engine reports, and now and then, outlives
restarts of the engine, and is gone when nothing of the job runs any more.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if __name__ == "__main__":
    if os.fork():  # nobody is to wait for us; first of all, for the caller waits for this one
        os._exit(0)
    os.setsid()
    import time

    time.sleep(float(sys.argv[3]))  # until it is due, nothing more is loaded: most jobs are over by then
    # Isolated as it runs, it sees only the standard library: this package comes last, so that it can hide none of it.
    _root = os.path.abspath(__file__)
    for _ in range(4):
        _root = os.path.dirname(_root)
    sys.path.append(_root)

import json
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import closing

from torchx.schedulers.docker import gangs
from torchx.schedulers.docker.container_names import Mark, join
from torchx.schedulers.docker.containers import LABEL_APP_ID, Container, Job, jobs_of
from torchx.schedulers.docker.plain_http import EngineHttp, Events, RefusedError, target
from torchx.schedulers.docker.sigterm import sigterm_is_lost
from torchx.schedulers.docker.watchers import hold
from torchx.specs.api import AppState, is_terminal
from torchx.util.records import replace

if TYPE_CHECKING:
    from torchx.schedulers.docker.hangs import ContainersWatchdog
    from torchx.schedulers.docker.metrics import ContainersSampler

LOOK_S = 30.0
"""The job is looked at this often even when the engine reports no event."""
GIVE_UP_S = 600.0
"""An engine that has not answered for so long has ended its containers; who asks for the job starts another watcher."""

_LAG_S = 10.0  # an engine reports an end, takes the container off its network, and lists it as ended only then
_SETTLE_S = 2.0  # Podman lists a container as ended that it is about to start again
_ANSWER_S = 60.0
_ENDS = ("die", "died", "destroy", "remove")


def may_start_again(app_id: str) -> bool:
    """Asks the policy of a job that has failed, in a process that has all of Python's packages."""
    from torchx.schedulers.kit.attempts import program
    from torchx.supervisor import again

    return again.may_start_again(program("torchx.schedulers.docker.attempts", app_id), dict(os.environ))


class Watcher:
    """Sees one job through to its end.

    Args:
        sleep: waits for so many seconds.
        clock: seconds, from wherever.
        may_start_again: asks the policy of a job that has failed.
        at_end: the program that sends the job's notices; it is also run when the job is silent.
        sample_s: seconds between two samples of what containers use; 0: none are taken.
        first_s: seconds until the first one; None: as many.
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
        self._sample_due = clock() + (sample_s if first_s is None else first_s) if sample_s else sys.maxsize
        self._sampler: ContainersSampler | None = None
        self._watchdog: ContainersWatchdog | None = None
        self._labels = [f"{LABEL_APP_ID}={app_id}"]
        self._ended: dict[str, float] = {}  # containers that are said to have ended -> when we heard of it
        self._began: dict[int, float] = {}  # the attempts that have a time limit -> when they began, by our clock
        self._failed: dict[str, float] = {}  # those that the engine may start again -> when we saw them ended

    def run(self) -> None:
        """Return when the job is over, or when there is no engine any more."""
        heard = self.clock()
        attempt = 0
        while True:
            try:
                job = self._job()
                if job is None:
                    return
                with closing(self._listen(job)) as events:
                    attempt = 0
                    self._see_through(events)
                    return
            except (OSError, RefusedError, ValueError):
                now = self.clock()
                heard = now if attempt == 0 else heard
                if self.engine.is_gone() or now - heard > GIVE_UP_S:
                    return
            self.sleep(min(0.1 * 1.5**attempt, 5.0))
            attempt += 1

    def end_all(self) -> None:
        """End the job as it is, and mark it as cancelled."""
        for attempt in range(10):
            try:
                job = self._job()
                if job is None or self._stop(job, [c for c in job.containers if not is_terminal(c.state)]):
                    return
            except (OSError, RefusedError, ValueError):
                pass
            self.sleep(0.2 * 1.5**attempt)

    # -- looking ---------------------------------------------------------------------------------

    def _listen(self, job: Job) -> Events:
        # From the job's beginning on: an engine begins to listen for us some time after it has answered.
        since = min(c.created for c in job.containers)
        return self.engine.events({"type": ["container"], "event": [*_ENDS, "start"], "label": self._labels}, since)

    def _job(self) -> Job | None:
        filters = json.dumps({"label": self._labels})
        return jobs_of(self.engine.get("/containers/json", {"all": 1, "filters": filters})).get(self.app_id)

    def _see_through(self, events: Events) -> None:
        before: object = None
        repeats = 0
        while True:
            job = self._job()
            if job is None:
                return
            patience = self._lag(job)
            step = gangs.next_step(job)
            if step:
                patience = min(patience, self._settling(job))
                if patience == LOOK_S:
                    self._do(job, step)
                    task = [(c.id, c.mark) for c in step.stop or step.end or step.again or job.containers]
                    repeats = repeats + 1 if task == before else 0
                    before = task
                    if not repeats:
                        continue
                    # The engine refuses, or has not got through with it yet.
                    patience = min(0.05 * 1.5 ** min(repeats, 20), LOOK_S)
            elif all(is_terminal(c.state) for c in job.containers):
                return
            elif (left := self._time_left(job)) <= 0:
                self._end_attempt(job, late=True)
                continue
            elif (due := self._silence(job)) <= 0:
                continue
            else:
                patience = min(patience, left, due, self._sampled(job))
            self._hear(events.wait(patience))

    def _hear(self, events: Iterable[dict[str, object]]) -> None:
        for event in events:
            actor = event.get("Actor")
            container = str(event.get("id") or (actor.get("ID") if isinstance(actor, dict) else ""))
            if str(event.get("status") or event.get("Action")) in _ENDS:
                self._ended[container] = self.clock()
            else:
                self._ended.pop(container, None)

    def _lag(self, job: Job) -> float:
        """How long to wait until looking again: soon, where the list does not say yet what an event has said."""
        now = self.clock()
        running = {c.id for c in job.containers if c.raw == "running"}
        self._ended = {c: at for c, at in self._ended.items() if c in running and now - at < _LAG_S}
        return min((0.02 + (now - at) / 4 for at in self._ended.values()), default=LOOK_S)

    def _time_left(self, job: Job) -> float:
        """Seconds until the attempt has reached its time limit."""
        limit = gangs.rules_of(job).timeout
        if not limit:
            return LOOK_S
        from torchx.schedulers.kit.follow import split_stamp
        from torchx.specs.timeouts import parse_timeout

        attempt = max(c.mark.app for c in job.containers)
        if attempt not in self._began:
            details = self.engine.get(f"/containers/{job.first().id}/json")
            started = split_stamp(str(details["State"]["StartedAt"]).encode())[0] / 1e9
            self._began[attempt] = self.clock() - max(time.time() - started, 0.0)
        return self._began[attempt] + parse_timeout(limit) - self.clock()

    def _silence(self, job: Job) -> float:
        """Seconds until somebody is to look whether the job is silent; none when it was, and is being ended for it."""
        wish = gangs.rules_of(job).watchdog
        if not wish:
            return LOOK_S
        if self._watchdog is None:
            from torchx.schedulers.docker.hangs import ContainersWatchdog

            self._watchdog = ContainersWatchdog(self.engine, self.app_id, wish)
        dog = self._watchdog
        _reap()
        said, due = dog.look(job, self.clock())
        if said and dog.silent:
            if self.at_end:
                from torchx.supervisor.at_end import spawn

                spawn(self.at_end, f"{self.clock():.0f}")  # who sends notices looks whether one of a hang is due
            if dog.action != "stacks":
                self._end_attempt(job, late=True, silent=True, final=dog.action == "cancel")
                return 0.0
        return max(due - self.clock(), 0.01)

    def _sampled(self, job: Job) -> float:
        """Takes samples of what containers use, if it is time to; seconds until it is again."""
        if self.clock() >= self._sample_due:
            from torchx.schedulers.docker.metrics import ContainersSampler

            self._sampler = self._sampler or ContainersSampler(self.engine)
            self._sample_due = self.clock() + max(self._sample_s, self._sampler.look(job))
        return max(self._sample_due - self.clock(), 0.01)

    def _settling(self, job: Job) -> float:
        """How long to wait until looking again, where the engine may yet start a failed replica by itself."""
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

    # -- doing -----------------------------------------------------------------------------------

    def _do(self, job: Job, step: gangs.Step) -> None:
        if step.stop:
            self._stop(job, step.stop)
        elif step.end:
            self._rename((c, replace(c.mark, ended=True)) for c in step.end)
            self._end(job, step.end)
        elif step.again:
            self._again(job, step)
        elif self.may_start_again(self.app_id):
            self._again(job, gangs.another_attempt(job))
        else:
            self._rename((c, replace(c.mark, final=True)) for c in job.containers)

    def _end_attempt(self, job: Job, **mark: bool) -> None:
        """Ends what runs, for a reason that is not the replicas'."""
        late = [c for c in job.containers if not is_terminal(c.state)]
        self._rename((c, replace(c.mark, **mark)) for c in late)
        self._end(job, late)

    def _stop(self, job: Job, which: list[Container]) -> bool:
        """Ends containers, and marks them as cancelled first. False: not all of them could be."""
        self._rename((c, replace(c.mark, cancelled=True)) for c in which)
        return self._end(job, which)

    def _again(self, job: Job, step: gangs.Step) -> bool:
        """Starts containers again once all have ended. False: it is to be tried again."""
        by_failure = sorted(step.again, key=lambda c: c.state is not AppState.FAILED)
        # From the first of these on the decision stands, and counts, whoever carries it out.
        if not self._rename((c, step.mark(c, due=True)) for c in by_failure[:1]):
            return False
        self._rename((c, step.mark(c, due=True)) for c in by_failure[1:])
        if not self._end(job, [c for c in step.again if not is_terminal(c.state)]):
            return False
        ids = {c.id for c in step.again}
        for first in (True, False):  # the others look for its name at once
            fresh = self._job()
            if fresh is None or any(c.mark.cancelled for c in fresh.containers):
                return True
            due = [c for c in fresh.containers if c.id in ids and c.mark.due and (c.k == 0) is first]
            answers = self.engine.post((f"/containers/{_called(c)}/start" for c in due), timeout_s=_ANSWER_S)
            for container in due:
                self._ended.pop(container.id, None)
            # One that could not be started has failed; only where nobody has answered it is tried again.
            answered = {c.id for c, answer in zip(due, answers, strict=True) if answer}
            self._settle(step, answered)
            if len(answered) < len(due):
                return False
        return True

    def _settle(self, step: gangs.Step, started: set[str]) -> None:
        fresh = self._job()
        found = fresh.containers if fresh else []
        if not any(c.mark.cancelled for c in found):
            self._rename((c, step.mark(c, due=False)) for c in found if c.id in started)

    def _rename(self, which: Iterable[tuple[Container, Mark]]) -> bool:
        """False: not all of them could be, as when somebody has cancelled the job since it was looked at."""
        wanted = [(c, join(c.name, mark)) for c, mark in which if mark != c.mark]
        answers = self.engine.post(target(f"/containers/{_called(c)}/rename", {"name": name}) for c, name in wanted)
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
    """Lets go of programs that have ended; others of this process wait for theirs themselves."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _called(container: Container) -> str:
    """What the engine calls it, unless its marks have changed since it was listed: then it does not find it."""
    return join(container.name, container.mark)


def main() -> None:
    """See to the job of the command line."""
    app_id = sys.argv[1]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # what the caller let us inherit
    lock = hold(app_id)
    for _ in range(2):  # somebody may just be asking whether there is one
        if lock is None:
            time.sleep(0.05)
            lock = hold(app_id)
    if lock is None:
        return
    with open(0, "rb", closefd=False) as pipe:
        said = pipe.read()
    os.dup2(1, 0)
    at_end = said[len(b"go") :]
    every_s, waited_s = map(float, sys.argv[2:4])
    first_s = 0.0 if waited_s else None
    watcher = Watcher(EngineHttp(os.environ), app_id, at_end=at_end, sample_s=every_s, first_s=first_s)
    if not said.startswith(b"go"):
        job = watcher._job()
        submitted = job is not None and len(job.containers) == sum(count for _, count, _ in job.sizes())
        if job is None or not submitted or any(c.state is AppState.SUBMITTED for c in job.containers):
            watcher.end_all()
            return
    watcher.run()
    if at_end:
        from torchx.supervisor.at_end import become

        become(at_end)


if __name__ == "__main__":
    main()
