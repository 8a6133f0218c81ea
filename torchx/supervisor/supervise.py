"""The process that owns one local job: starts its replicas, applies the gang's rules, and ends leftover processes."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from torchx.supervisor import at_end, proctree
from torchx.supervisor import gang as rules
from torchx.supervisor.follow import Follower
from torchx.supervisor.gang import Gang, RoleRules
from torchx.supervisor.idle import Idle
from torchx.supervisor.layout import CONTROL_FIFO, STATE_FILE, STEPS_FILE
from torchx.supervisor.limit import Limit
from torchx.supervisor.metrics import Sampler
from torchx.supervisor.replica import Ending, Replica, owner_of, spawn, why_not_started
from torchx.supervisor.starts import Starts
from torchx.supervisor.statefile import CANCELLED, FAILED, PENDING, RUNNING, SUCCEEDED, JobState, StateWriter
from torchx.supervisor.watchdog import Watchdog, put_down

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.supervisor.layout import JobRequest

_STARTS_PER_TURN = 16  # replicas started between two polls of the control FIFO
_SWEEP_S = 0.02
_SHORT_S = 0.05  # the supervisor of a longer job releases what it would need to take another one
# A process in uninterruptible sleep does not even die of SIGKILL. This is a count, ten seconds at least, and not a
# deadline, which might have passed before the first SIGKILL if this process or the machine was suspended.
_MAX_KILLS = 500
_QUIET_LOOKS = 2  # the kernel's list of children may miss one while another exits


class Supervisor:
    """Owns one job until it has ended.

    Args:
        request: see :class:`torchx.supervisor.layout.JobRequest`.
        guardian: pid and start ticks of the process that ends the job if this one is killed.
        lasting: called once when the job runs longer than a short one.
    """

    def __init__(
        self, request: JobRequest, guardian: tuple[int, int], lasting: Callable[[], None] | None = None
    ) -> None:
        self.folder: str = request["job"]
        self.env: dict[str, str] = request["env"]
        self.grace_s: float = request["grace_s"]
        self._again: list[str] = request.get("again", [])
        self._watchdog = Watchdog(request.get("watchdog", {}), self.env)
        roles = request["roles"]
        steps = [f"{replica['folder']}/{STEPS_FILE}" for role in roles for replica in role["replicas"]]
        self._idle = Idle(request.get("idle", {}), steps, request.get("sample_s", 0.0))
        self._limit = Limit(request.get("limit", {}), self._watchdog, self._idle)
        self.gang = Gang([RoleRules(r["max_retries"], r["policy"], r["min_replicas"]) for r in roles])
        facts = {**request["facts"], "mark": proctree.set_mark()}
        job = JobState(facts, [(r["name"], len(r["replicas"])) for r in roles])
        attempt, job.created = request.get("resumes") or (0, time.time())
        self.gang.application_restarts = job.restarts = attempt
        self._began = time.monotonic()  # all deadlines use this clock, since the wall clock may be set back
        self._limit.begin(self._began)
        self._sampler = Sampler(request.get("sample_s", 0.0), self.env, self._began)
        job.supervisor = os.getpid()
        job.guardian = guardian
        self.job = job
        self.replicas: list[Replica] = []
        for number, role in enumerate(roles):
            for k, replica in enumerate(role["replicas"]):
                index = len(self.replicas)
                job.replicas[index].attempt = attempt
                self.replicas.append(Replica(index, number, k, request=replica, line=job.replicas[index]))
        self._by_pid: dict[int, Replica] = {}
        self._unclean: set[Replica] = set()
        self._sent_sigterm: set[tuple[int, int]] = set()
        self._next_sweep = 0.0
        self._outcome = ""  # set when no more replicas will be started
        self._rest = Ending()  # of processes that belong to no replica
        self._words = b""  # commands that are not obeyed yet
        self._senders: set[int] = set()  # pids of programs that send a notice of a hang; they outlive the job
        self._quiet_looks = 0
        self._on_lasting = lasting
        # Polling all silent replicas takes at most 1 % of a processor.
        self._latest_look_s = min(2.0, max(0.2, len(self.replicas) * 0.002))
        self._starts = Starts(request, self.replicas, self._latest_look_s)
        self._has_children = True
        # The FIFO first, since a state file without a reader of the FIFO means that the supervisor is dead.
        fifo = os.path.join(self.folder, CONTROL_FIFO)
        os.mkfifo(fifo, 0o600)
        self._control = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._control_writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # avoids POLLHUP events
        self._wake, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        self._stop_requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.writer = StateWriter(os.path.join(self.folder, STATE_FILE), job)
        self.writer.flush()

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the job until it has ended, and record its final state."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            self._start_pending()
            self.writer.flush()
            for fd, _ in poll.poll(self._timeout_ms()):
                if fd == self._wake:
                    os.read(fd, 512)
                else:
                    self._words += os.read(fd, 512)
            self._obey()
            if self._stop_requested:
                self._cancel("the supervisor got SIGTERM: the machine or the session is shutting down")
            now = time.monotonic()
            if self._limit.is_over(now):
                self._end_attempt("timeout", self._limit.why)
            for watchdog in (self._watchdog, self._idle):
                if watchdog.due is not None and now >= watchdog.due:
                    self._watch(watchdog, now)
            self._reap(now)
            self._probe(now)
            self.writer.flush()  # an end that is not recorded is lost if this process is killed
            self._sweep(now)
            self._follow(now)
            self._sampler.look((r.root(self.env) for r in self.replicas if r.line.state == RUNNING), now)
            if self._is_over(now):
                break
            if self._on_lasting is not None and now > self._began + _SHORT_S:
                self._on_lasting()
                self._on_lasting = None
        self._finish()

    def release(self) -> bool:
        """Undo the job's changes to this process. False if some remain, so that the process must not be reused."""
        signal.set_wakeup_fd(-1)  # the handlers stay, but do nothing until the next job
        for fd in (self._control_writer, self._wake, self._wake_writer):
            os.close(fd)
        self.writer.close()
        return not self._has_children

    def _timeout_ms(self) -> float | None:
        if self._starts.now:
            return 0
        due = [r.follower.due for r in self._by_pid.values() if r.follower]
        due += self._starts.due()
        due += [at for at in (self._limit.due, self._sampler.due) if at is not None]
        if self._unclean or self._outcome or any(r.stopping for r in self._by_pid.values()):
            due.append(self._next_sweep)
        if self._on_lasting is not None:
            due.append(self._began + _SHORT_S)
        if not due:
            return None
        return max(1.0, (min(due) - time.monotonic()) * 1000)

    def _is_over(self, now: float) -> bool:
        if self._by_pid or self._starts or self._unclean:
            return False
        if not self._outcome:
            self._outcome = self.gang.outcome([self._states(role) for role in range(len(self.gang.rules))])
            self._rest.deadline = now + self.grace_s
        return not self._has_children or not self._end_the_rest(now)

    def _finish(self) -> None:
        job = self.job
        for follower in (r.follower for r in self.replicas if r.follower):
            follower.look(time.monotonic(), last=True, wall=time.time())
            if follower.failed and not job.msg:
                job.msg = f"combined.log is incomplete: {follower.failed}"
        job.state = self._outcome
        reports = (self._watchdog.text, self._idle.text)
        job.msg = job.msg if job.kind or job.msg not in reports else ""
        job.ended = time.time()
        self.writer.header_changed()
        self.writer.flush()
        # Closing the FIFO wakes those who wait for the end, so the state must be complete by now.
        os.close(self._control)
        if sender := at_end.start(self.folder):
            self._senders.add(sender)
        for pid in self._senders:  # they might be killed when this process exits
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _probe(self, now: float) -> None:
        why = self._starts.turn(now)
        if self._starts.changed:
            self._starts.changed = False
            self.writer.header_changed()
        if why:
            self._end_attempt("timeout", why)

    # -- starting --------------------------------------------------------------------------------

    def _start_pending(self) -> None:
        started = []
        for _ in range(min(len(self._starts.now), _STARTS_PER_TURN)):
            if not self._starts.now:  # the job was given up or is restarted because a replica could not be started
                break
            replica = self._starts.now.pop(0)
            self._start(replica)
            started.append(replica)
        # In a second pass, since reading the start time waits until the process has loaded its program.
        for replica in started:
            if replica.line.pid:
                replica.line.ticks = proctree.start_ticks(replica.line.pid)
                self.writer.replica_changed(replica.index)

    def _start(self, replica: Replica) -> None:
        line = replica.line
        line.started = time.time()
        line.ended = 0.0
        line.exit = None
        line.pid = 0
        if replica.follower is None:
            make = Follower.resumed if line.attempt else Follower
            replica.follower = make(replica.request["folder"], time.monotonic(), self._latest_look_s)
        if line.attempt:
            replica.follower.starts_again(time.monotonic(), wall=line.started)
        self._starts.begin(replica, time.monotonic())
        try:
            line.pid = spawn(replica, self.folder, self.env)
        except OSError as e:
            self._could_not_start(replica, e)
            return
        line.ticks = 0
        line.state = RUNNING
        replica.stopping = False
        replica.kills, replica.first = 0, None
        self._by_pid[line.pid] = replica
        self._has_children = True
        if self.job.state == PENDING:
            self.job.state = RUNNING
            self.writer.header_changed()

    def _could_not_start(self, replica: Replica, error: OSError) -> None:
        if reason := why_not_started(replica, error):
            self.job.msg = reason
            self.writer.header_changed()
        self._ended(replica, 127 if error.errno == errno.ENOENT else 126, time.monotonic())

    # -- ends of replicas ------------------------------------------------------------------------

    def _reap(self, now: float) -> None:
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                return
            if not pid:
                self._has_children = True
                return
            self._senders.discard(pid)
            replica = self._by_pid.pop(pid, None)
            if replica is not None:
                self._sampler.ended(replica.root(self.env), used)
                self._ended(replica, os.waitstatus_to_exitcode(status), now)

    def _ended(self, replica: Replica, code: int, now: float) -> None:
        line = replica.line
        line.exit = code
        line.ended = time.time()
        if replica.stopping:
            line.state = CANCELLED
        else:
            line.state = SUCCEEDED if code == 0 else FAILED
            replica.deadline = now + self.grace_s
        self._unclean.add(replica)
        self._next_sweep = 0.0
        if replica.follower:
            replica.follower.due = now
        self.writer.replica_changed(replica.index)
        if line.state == FAILED and not self._outcome:
            self.writer.flush()  # before the others are ended
            self._failed(replica, now)
        if not self._outcome and (outcome := self._starts.outcome(self.gang)):
            self._give_up(outcome, now)

    def _failed(self, replica: Replica, now: float) -> None:
        decision = self.gang.failed(replica.role, replica.k, self._states(replica.role))
        self.job.restarts = self.gang.restarts
        if decision == rules.RESTART_REPLICA:
            self._restart([replica, *self._starts.restarts_with(replica.role)], now)
        elif decision == rules.RESTART_ROLE:
            wave = [r for r in self.replicas if r.role == replica.role]
            self._restart([*wave, *self._starts.restarts_with(replica.role)], now)
        elif decision == rules.RESTART_APPLICATION:
            self._restart(self.replicas, now)
        elif decision == rules.GIVE_UP:
            self.job.first = replica.index
            self._give_up(FAILED, now)
        self.writer.header_changed()

    def _restart(self, wave: list[Replica], now: float) -> None:
        """Stop these replicas, and restart them together when all their processes are gone."""
        if len(wave) == len(self.replicas):
            self._limit.forget()
        mark = object()
        for replica in wave:
            replica.restart = mark
            if replica.line.state != PENDING:
                self._unclean.add(replica)
        self._starts.drop()
        self._stop(wave, now)

    def _obey(self) -> None:
        words, self._words = self._words, b""
        if b"cancel" in words:
            self._cancel("")
        elif words and self._is_restarting():
            self._words = words  # for the attempt that begins
        elif b"preempt" in words:
            self._limit.ask()
            self._end_attempt("preempted", "it was preempted (simulated)")
        elif b"expire" in words:
            self._limit.expire(time.monotonic())

    def _watch(self, watchdog: Watchdog, now: float) -> None:
        text = watchdog.turn(now)
        if text is None:
            return
        self.job.msg = text
        put_down(self.folder, watchdog)
        self.writer.header_changed()
        if watchdog.silent:
            self.writer.flush()
            if sender := at_end.start(self.folder, f"{now:.0f}"):  # if a notice was requested
                self._senders.add(sender)
            if watchdog.action in ("cancel", "checkpoint"):
                self._again = []
            if watchdog.action == "checkpoint":
                self._limit.expire(now, text)
            elif watchdog.action in ("cancel", "retry"):
                self._end_attempt("timeout", text)

    def _end_attempt(self, kind: str, why: str) -> None:
        """End all replicas for a reason outside of them. The job may then be restarted like after a failure."""
        self._limit.forget()
        goes_on = self._by_pid or self._starts or any(r.restart is not None for r in self.replicas)
        if self._outcome or not goes_on or self._is_restarting():
            return  # it is already ending
        self.job.kind, self.job.msg = kind, why
        if self._again:
            self.gang.application_restarts += 1
            self.job.restarts = self.gang.restarts
            self._restart(self.replicas, time.monotonic())
        else:
            self._give_up(FAILED, time.monotonic())
        self.writer.header_changed()

    def _cancel(self, reason: str) -> None:
        if not self._outcome:  # else it is already ending
            self.job.msg = reason
            self.job.kill_at = time.time() + self.grace_s
            self._give_up(CANCELLED, time.monotonic())
            self.writer.header_changed()

    def _give_up(self, outcome: str, now: float) -> None:
        """Start no more replicas and end those that run."""
        self._outcome = outcome
        self._limit.forget()
        self._rest.deadline = now + self.grace_s
        self._starts.drop(everything=True)
        for replica in self.replicas:
            replica.restart = None
            if replica.line.state == PENDING:
                replica.line.state = CANCELLED
                self.writer.replica_changed(replica.index)
        self._stop(self.replicas, now)

    def _stop(self, wave: list[Replica], now: float) -> None:
        for replica in wave:
            if replica.line.state == RUNNING and not replica.stopping:
                replica.stopping = True
                replica.deadline = now + self.grace_s
        self._next_sweep = 0.0
        self._sweep(now)

    # -- ending processes ------------------------------------------------------------------------

    def _sweep(self, now: float) -> None:
        """Signal processes that must end, and find replicas that left none behind."""
        stopping = [r for r in self._by_pid.values() if r.stopping]
        if now < self._next_sweep or not (stopping or self._unclean):
            return
        self._next_sweep = now + _SWEEP_S
        orphans = self._orphans()
        if stopping or orphans:
            self._signal_processes(stopping, orphans, now)
        else:
            self._settle(set(), now)

    def _orphans(self) -> set[int]:
        """Our children that are not replicas: processes left behind by replicas or by daemons."""
        children = proctree.children_of_self() if self._has_children else set()
        return children - self._by_pid.keys() - self._senders

    def _signal_processes(self, stopping: list[Replica], orphans: set[int], now: float) -> None:
        if not proctree.HAS_PROC:
            for replica in stopping:
                late = now >= replica.deadline
                if late or replica.first is None:
                    replica.first = {}
                    proctree.signal_group(replica.line.pid, signal.SIGKILL if late else signal.SIGTERM)
            self._settle(set(), now)
            return
        processes = proctree.snapshot()
        if self._outcome:
            self._rest.first = self._rest.first or processes
        roots: dict[Replica, set[int]] = {r: {r.line.pid} for r in stopping}
        left: set[Replica] = set()
        for pid in orphans:
            owner = owner_of(processes.get(pid), self.folder, self.replicas, self._unclean)
            if owner is not None and (owner.stopping or owner in self._unclean):
                roots.setdefault(owner, set()).add(pid)
                left.add(owner)
        for replica, pids in roots.items():
            replica.send(processes, pids, now, self._sent_sigterm)
        if all(pid in processes and processes[pid].state not in "ZX" for pid in orphans):
            self._settle(left, now)  # else one has died since the snapshot, and its children may be ours now

    def _settle(self, left: set[Replica], now: float) -> None:
        """Mark replicas as clean that ended and left no processes; begin restarts whose members are all clean."""
        for replica in list(self._unclean):
            ended = replica.line.pid not in self._by_pid
            if ended and (replica not in left or replica.kills > _MAX_KILLS):
                if not proctree.HAS_PROC:
                    proctree.signal_group(replica.line.pid, signal.SIGKILL)
                self._unclean.discard(replica)
                if replica.follower:
                    replica.follower.look(now, wall=time.time())
        waves = {r.restart for r in self.replicas if r.restart is not None} if self.job.restarts else set()
        for wave in waves:
            members = [r for r in self.replicas if r.restart is wave]
            if not any(r in self._unclean or r.line.pid in self._by_pid for r in members):
                self._begin_again(members)

    def _begin_again(self, members: list[Replica]) -> None:
        self.writer.flush()  # the program reads the state file
        if self._again and not at_end.may_start_again(self._again, self.env):
            self.job.restarts -= 1
            self._give_up(FAILED, time.monotonic())
            self.writer.header_changed()
            return
        if len(members) == len(self.replicas):
            self._limit.begin(time.monotonic())
            self.job.kind = self.job.msg = ""
            self.writer.header_changed()
        for replica in members:
            replica.restart = None
            if replica.line.state != PENDING:  # else it was never started
                replica.line.state = PENDING
                replica.line.attempt += 1
                self.writer.replica_changed(replica.index)
        self._starts.add(members)

    def _end_the_rest(self, now: float) -> bool:
        """End daemons that outlive the last replica. False if none is left or they cannot be ended."""
        if not proctree.HAS_PROC or self._rest.kills > _MAX_KILLS:
            return False
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_S
            orphans = self._orphans()
            self._quiet_looks = 0 if orphans else self._quiet_looks + 1
            self._rest.send(proctree.snapshot(), orphans, now, self._sent_sigterm)
        return not self._senders or self._quiet_looks < _QUIET_LOOKS

    # -- helpers ---------------------------------------------------------------------------------

    def _follow(self, now: float) -> None:
        for replica in (*self._by_pid.values(), *self._unclean):
            if replica.follower and replica.follower.due <= now:
                replica.follower.look(now, wall=time.time())

    def _is_restarting(self) -> bool:
        """Whether the whole job is between two attempts, and not some replicas between two starts of their own."""
        marks = {replica.restart for replica in self.replicas}
        return len(marks) == 1 and None not in marks

    def _states(self, role: int) -> list[str]:
        return [r.line.state for r in self.replicas if r.role == role]

    def _on_stop_signal(self, *_: object) -> None:
        self._stop_requested = True
