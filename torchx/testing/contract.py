"""The tests that every scheduler must pass: subclass :class:`SchedulerContract` and run pytest.

::

    class TestMyScheduler(SchedulerContract):
        cfg = {"queue": "test"}

        def create_scheduler(self, folder):
            return create_scheduler("contract", runner=FakeCommandRunner())
"""

from __future__ import annotations

import copy
import re
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest

from torchx.errors import NotFoundError, NotSupportedError, TorchXError
from torchx.schedulers.api import Capabilities, DescribeAppResponse, ListAppResponse, Scheduler, Stream, open_logs
from torchx.schedulers.kit.abilities import BuildsWorkspaces
from torchx.schedulers.kit.logs import LogQuery
from torchx.specs import AppDef, AppState, BindMount, DeviceMount, Resource, RetryPolicy, Role, VolumeMount, macros

MOUNTS: Mapping[str, Any] = types.MappingProxyType(
    {
        "bind": BindMount(src_path="/", dst_path="/mnt/bind"),
        "volume": VolumeMount(src="claim", dst_path="/mnt/volume"),
        "device": DeviceMount(src_path="/dev/null", dst_path="/dev/torchx0"),
    }
)
HOSTILE_NAMES = [
    "x" * 300,
    "1starts-with-a-digit",
    "-starts-with-a-dash",
    "Upper_and_under.dots",
    "with space; rm -rf /",
    "../../etc/passwd",
    "école-日本",
    "$(id)`id`",
    "a\nb",
]
HOSTILE_ARGS = [
    "a b",
    "$HOME",
    "$(id)",
    "`id`",
    "'",
    '"',
    "\\",
    "*",
    ";id",
    "|id",
    "&",
    "a\tb",
    "-n",
    "--",
    "#",
    "é日",
    "!x",
]

# Replica 0 loses its peer when both run. Replica 1 ignores SIGTERM and fails a second later.
_TWO_FAILURES = r"""
say() { printf 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n%s\n' "$1" >&2; }
[ "$1" = 0 ] || trap '' TERM INT
GATHER
if [ "$1" = 0 ]; then
  say 'RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:27045'
  exit 1
fi
sleep 1
say 'ValueError: bad batch'
exit 3
"""


class SchedulerContract:
    """The tests. A subclass creates its scheduler and declares what can really run in the test."""

    cfg: Mapping[str, Any] = types.MappingProxyType({})
    """Run options for every submission."""

    unknown_id: ClassVar[str] = "no-such-job-0"
    """The id of a job that does not exist."""

    name_rule: ClassVar[str] = r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}"
    """Regular expression of the job names that the backend allows."""

    runtime_macros: ClassVar[frozenset[str]] = frozenset()
    """Macros that are resolved in the job, for example as shell variables: ``app_id``, ``replica_id``, ..."""

    raw_states: ClassVar[Mapping[str, AppState]] = types.MappingProxyType({})
    """The backend's table of native states; empty if it has none."""

    can_run: ClassVar[bool] = False
    """Whether jobs really run in this test. They need ``/bin/sh``."""

    timeout_s: ClassVar[float] = 120.0
    """Timeout for a job to reach an expected state, seconds."""

    ends_gently: ClassVar[bool] = True
    """Whether the other replicas get a signal and some time before they are killed when one has failed."""

    gather: str = "sleep 1"
    """Shell command that blocks until all replicas of a job run; ``$1`` is the number of this one."""

    # -- what a subclass overrides -----------------------------------------------------------------

    def create_scheduler(self, folder: str) -> Scheduler[Any]:
        """Create a new scheduler; ``folder`` is an empty directory for this test."""
        raise NotImplementedError

    def map_state(self, raw: str) -> AppState:
        """Translate a native state; required if there are ``raw_states``."""
        raise NotImplementedError

    def request_name(self, info: Any) -> str:
        """Return the name of the job on the backend."""
        return str(info.request.app_id)

    def rendered(self, info: Any) -> str:
        """Everything that would be submitted, as text."""
        return f"{info}\n{info.request!r}"

    def app(self, *args: str, name: str = "contract", entrypoint: str = "/bin/echo", **role: Any) -> AppDef:
        """Return a job of one role, `worker`."""
        role.setdefault("image", "/")
        role.setdefault("resource", Resource(cpu=1, gpu=0, memMB=64))
        return AppDef(name=name, roles=[Role(name="worker", entrypoint=entrypoint, args=list(args), **role)])

    # -- fixtures ------------------------------------------------------------------------------------

    @pytest.fixture
    def scheduler(self, tmp_path: Any) -> Iterator[Scheduler[Any]]:
        """Yield the scheduler under test, closed after the test."""
        made = self.create_scheduler(str(tmp_path))
        yield made
        made.close()

    @pytest.fixture
    def submit(self, scheduler: Scheduler[Any]) -> Iterator[Callable[[AppDef], str]]:
        """Submit a job that is deleted after the test. Skips the test if jobs cannot run."""
        if not self.can_run:
            pytest.skip("no job can run here")
        submitted: list[str] = []

        def submit(app: AppDef) -> str:
            submitted.append(scheduler.submit(app, self.cfg))
            return submitted[-1]

        yield submit
        for app_id in submitted:
            scheduler.cancel(app_id)
            scheduler.delete(app_id)

    def wait(self, scheduler: Scheduler[Any], app_id: str, *states: AppState) -> DescribeAppResponse:
        """Wait until the job has one of these states."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            found = scheduler.describe(app_id)
            if found is not None and found.state in states:
                return found
            if time.monotonic() > deadline:
                pytest.fail(f"`{app_id}` is {found and found.state}, not one of {states}, after {self.timeout_s:g} s")
            time.sleep(0.02)

    # -- dryrun --------------------------------------------------------------------------------------

    def test_dryrun_leaves_the_app_alone(self, scheduler: Scheduler[Any]) -> None:
        """A dryrun changes neither the AppDef nor the options."""
        app = self.app(
            "hello", macros.replica_id, env={"A": macros.app_id}, num_replicas=2, metadata={"m": {"k": ["v"]}}
        )
        before, cfg = copy.deepcopy(app), dict(self.cfg)
        scheduler.submit_dryrun(app, cfg)
        assert app == before
        assert cfg == dict(self.cfg)

    def test_dryrun_is_deterministic_but_for_the_id(self, scheduler: Scheduler[Any]) -> None:
        """Two dryruns of the same job differ only in its id."""
        first = scheduler.submit_dryrun(self.app("hello", num_replicas=2, env={"A": "1", "B": "2"}), self.cfg)
        second = scheduler.submit_dryrun(self.app("hello", num_replicas=2, env={"A": "1", "B": "2"}), self.cfg)
        texts = [self.rendered(info).replace(self.request_name(info), "<ID>") for info in (first, second)]
        assert texts[0] == texts[1]

    def test_dryrun_can_be_shown(self, scheduler: Scheduler[Any]) -> None:
        """The request, as text, contains the program and its arguments."""
        shown = str(scheduler.submit_dryrun(self.app("a-certain-argument"), self.cfg))
        assert "/bin/echo" in shown
        assert "a-certain-argument" in shown

    def test_macros_are_substituted(self, scheduler: Scheduler[Any]) -> None:
        """No macros remain in args, env, metadata and mounts, and each replica has its own number."""
        names = ("img_root", "app_id", "replica_id", "rank0_env", "base_img_root")
        ours = [getattr(macros, n) for n in names if n not in self.runtime_macros]
        bind = BindMount(src_path="/", dst_path=f"/mnt/{macros.app_id}")
        app = self.app(
            *(f"arg={m}" for m in ours),
            f"mark-{macros.replica_id}-end",
            env={f"E{i}": f"env={m}" for i, m in enumerate(ours)},
            metadata={"contract": {"values": [f"meta={m}" for m in ours]}},
            mounts=[bind] if "bind" in self.capabilities.mounts else [],
            num_replicas=2,
        )
        text = self.rendered(scheduler.submit_dryrun(app, self.cfg))
        assert [m for m in ours if m in text] == []
        if "replica_id" not in self.runtime_macros:
            assert "mark-0-end" in text
            assert "mark-1-end" in text

    def test_a_replica_is_told_who_it_is(self, scheduler: Scheduler[Any]) -> None:
        """Its number and its role are in its environment: of the backends that torchx has."""
        if not type(scheduler).__module__.startswith("torchx."):
            pytest.skip("a plugin need not tell it")
        text = self.rendered(scheduler.submit_dryrun(self.app("hello", num_replicas=2), self.cfg))
        assert "TORCHX_REPLICA_ID" in text
        assert "TORCHX_ROLE_NAME" in text

    @pytest.mark.parametrize("name", HOSTILE_NAMES, ids=[f"name{i}" for i in range(len(HOSTILE_NAMES))])
    def test_names_obey_the_rule(self, scheduler: Scheduler[Any], name: str) -> None:
        """Any job name is turned into one that the backend allows, or rejected with a torchx error."""
        try:
            info = scheduler.submit_dryrun(self.app(name=name), self.cfg)
        except TorchXError:
            return
        assert re.fullmatch(self.name_rule, self.request_name(info)), self.request_name(info)

    def test_ids_differ(self, scheduler: Scheduler[Any]) -> None:
        """Jobs with the same name get different ids."""
        made = {self.request_name(scheduler.submit_dryrun(self.app(), self.cfg)) for _ in range(20)}
        assert len(made) == 20

    # -- questions about jobs ------------------------------------------------------------------------

    def test_unknown_job(self, scheduler: Scheduler[Any]) -> None:
        """A job that does not exist is described as None. Cancelling or deleting it does nothing."""
        assert scheduler.describe(self.unknown_id) is None
        assert scheduler.exists(self.unknown_id) is False
        assert scheduler.describe_many([self.unknown_id]) == {self.unknown_id: None}
        scheduler.cancel(self.unknown_id)
        scheduler.delete(self.unknown_id)

    def test_list_without_options(self, scheduler: Scheduler[Any]) -> None:
        """`list` works with None and without an argument, or raises NotSupportedError without the capability."""
        if not self.capabilities.list:
            with pytest.raises(NotSupportedError):
                scheduler.list(None)
            return
        for answer in (scheduler.list(None), scheduler.list()):
            assert all(isinstance(line, ListAppResponse) for line in answer)

    def test_every_raw_state_maps(self) -> None:
        """Each native state is translated; an unknown one becomes UNKNOWN without an error."""
        if not self.raw_states:
            pytest.skip("this backend has no states of its own")
        for raw, state in self.raw_states.items():
            assert self.map_state(raw) is state
        for garbage in ("", "NO_SUCH_STATE", "\x00", "running?"):
            assert self.map_state(garbage) is AppState.UNKNOWN

    # -- options and capabilities --------------------------------------------------------------------

    def test_options_explain_themselves(self, scheduler: Scheduler[Any]) -> None:
        """Each run option has a help text and a default of its type."""
        opts = scheduler.run_opts()
        for name, opt in opts:
            assert opt.help.strip(), name
            assert opt.default is None or opts.is_type(opt.default, opt.opt_type), name

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the scheduler under test."""
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            made = self.create_scheduler(folder)
            made.close()
            return made.capabilities

    def test_capabilities_are_well_formed(self, scheduler: Scheduler[Any]) -> None:
        """Streams, policies and mounts have the names of the torchx types; workspaces need a mixin."""
        caps = scheduler.capabilities
        assert isinstance(caps, Capabilities)
        assert set(caps.log_streams) <= {s.value for s in Stream}
        assert set(caps.retries) <= set(RetryPolicy.__members__)
        assert set(caps.mounts) <= set(MOUNTS)
        assert caps.workspaces == isinstance(scheduler, BuildsWorkspaces)
        assert not (caps.log_follow or caps.log_since or caps.log_streams) or caps.logs

    @pytest.mark.parametrize("what", ["mount bind", "mount volume", "mount device", "second role", "elastic"])
    def test_what_it_cannot_do_is_refused(
        self, what: str, scheduler: Scheduler[Any], request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A feature without capability is rejected, or causes a warning before submission. It is never ignored."""
        caps = self.capabilities
        kind = what.removeprefix("mount ")
        if kind in caps.mounts or (what == "second role" and caps.multi_role) or (what == "elastic" and caps.elastic):
            pytest.skip("it can")
        if what == "second role":
            job = self.app()
            job.roles.append(copy.deepcopy(job.roles[0]))
            job.roles[1].name = "second"
        else:
            job = self.app(min_replicas=1, num_replicas=2) if what == "elastic" else self.app(mounts=[MOUNTS[kind]])
        try:
            scheduler.submit_dryrun(job, self.cfg)
            if self.can_run and not caplog.records:
                request.getfixturevalue("submit")(job)
        except TorchXError:
            return
        assert [r for r in caplog.records if r.levelname == "WARNING"]

    @pytest.mark.parametrize("policy", sorted(RetryPolicy.__members__))
    def test_retries_are_honoured_or_refused(
        self, policy: str, scheduler: Scheduler[Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        """`max_retries` with an unsupported policy is rejected or causes a warning. It is never ignored."""
        job = self.app(max_retries=2, retry_policy=RetryPolicy[policy], num_replicas=2)
        try:
            scheduler.submit_dryrun(job, self.cfg)
        except TorchXError:
            assert policy not in self.capabilities.retries
            return
        warned = [r for r in caplog.records if r.levelname == "WARNING"]
        assert policy in self.capabilities.retries or warned

    def test_logs_of_an_unknown_job(self, scheduler: Scheduler[Any]) -> None:
        """Reading the log of a job that does not exist raises a torchx error at once."""
        with pytest.raises(TorchXError):
            list(scheduler.log_iter(self.unknown_id, "worker", 0, should_tail=self.capabilities.log_follow))

    def test_logs_are_refused_when_there_are_none(self, scheduler: Scheduler[Any]) -> None:
        """Without the capability, reading logs raises NotSupportedError."""
        if self.capabilities.logs:
            pytest.skip("this backend has logs")
        with pytest.raises(NotSupportedError):
            list(scheduler.log_iter(self.unknown_id, "worker", 0))

    # -- jobs that really run ------------------------------------------------------------------------

    def test_a_job_runs_and_is_remembered(self, scheduler: Scheduler[Any], submit: Callable[[AppDef], str]) -> None:
        """A job ends as SUCCEEDED. It is described with its role, listed, and gone after delete."""
        app_id = submit(self.app("hello", num_replicas=2))
        done = self.wait(scheduler, app_id, AppState.SUCCEEDED, AppState.FAILED)
        assert done.state is AppState.SUCCEEDED
        assert done.app_id == app_id
        assert [(r.name, r.num_replicas, r.entrypoint) for r in done.roles] == [("worker", 2, "/bin/echo")]
        assert [len(r.replicas) for r in done.roles_statuses] == [2]
        assert scheduler.exists(app_id)
        both = scheduler.describe_many([app_id, self.unknown_id])
        assert {i: found and found.state for i, found in both.items()} == {app_id: done.state, self.unknown_id: None}
        if self.capabilities.list:
            assert app_id in {line.app_id for line in scheduler.list()}
        scheduler.cancel(app_id)
        again = scheduler.describe(app_id)
        assert again is not None
        assert again.state is AppState.SUCCEEDED, "cancelling a job that has ended changes nothing"
        if self.capabilities.delete:
            scheduler.delete(app_id)
            assert scheduler.describe(app_id) is None

    def test_a_failure_is_told(self, scheduler: Scheduler[Any], submit: Callable[[AppDef], str]) -> None:
        """A job whose program fails ends as FAILED, with the exit code in the message."""
        app_id = submit(self.app("-c", "exit 7", entrypoint="/bin/sh"))
        done = self.wait(scheduler, app_id, AppState.SUCCEEDED, AppState.FAILED)
        assert done.state is AppState.FAILED
        assert "7" in done.msg

    def test_the_aftermath_is_not_blamed(self, scheduler: Scheduler[Any], submit: Callable[[AppDef], str]) -> None:
        """If two replicas fail, the one with a reason of its own is the cause, even if the other one ended first.

        The message is that of :mod:`torchx.schedulers.kit.verdict`, on every backend.
        """
        from torchx.schedulers.kit.verdict import on_answer
        from torchx.specs.failures import parse_failure

        if not self.ends_gently:
            pytest.skip("a replica that is ended because of another has no time to fail by itself")
        script = _TWO_FAILURES.replace("GATHER", self.gather)
        app_id = submit(self.app("-c", script, "sh", macros.replica_id, entrypoint="/bin/sh", num_replicas=2))
        done = self.wait(scheduler, app_id, AppState.SUCCEEDED, AppState.FAILED)
        assert done.state is AppState.FAILED
        if not any(parse_failure(r.structured_error_msg) for role in done.roles_statuses for r in role.replicas):
            pytest.skip("this backend does not say why a replica failed")
        done = on_answer(done)
        cause = parse_failure(done.structured_error_msg)
        assert cause is not None
        assert (cause.role, cause.replica, cause.kind) == ("worker", 1, "error")
        assert re.match(r"worker/1( on \S+)?: exit code 3: ValueError: bad batch", done.msg), done.msg
        if self.capabilities.list:
            assert {line.app_id: line.state for line in scheduler.list()}[app_id] is done.state

    def test_cancel_twice_is_quiet(self, scheduler: Scheduler[Any], submit: Callable[[AppDef], str]) -> None:
        """A running job can be cancelled; cancelling it again does nothing."""
        app_id = submit(self.app("-c", "sleep 1000", entrypoint="/bin/sh"))
        self.wait(scheduler, app_id, AppState.RUNNING)
        scheduler.cancel(app_id)
        scheduler.cancel(app_id)
        assert self.wait(scheduler, app_id, AppState.CANCELLED).state is AppState.CANCELLED
        scheduler.cancel(app_id)

    def test_hostile_arguments_arrive_as_they_are(
        self, scheduler: Scheduler[Any], submit: Callable[[AppDef], str]
    ) -> None:
        """Arguments and environment values reach the program unchanged; no shell interprets them."""
        script = 'printf "%s\\n" "$V" "$@"'
        value = "a b'\"$(id)`id`\\"
        app_id = submit(self.app("-c", script, "sh", *HOSTILE_ARGS, entrypoint="/bin/sh", env={"V": value}))
        assert self.wait(scheduler, app_id, AppState.SUCCEEDED, AppState.FAILED).state is AppState.SUCCEEDED
        if self.capabilities.logs:
            lines = [line.rstrip("\n") for line in scheduler.log_iter(app_id, "worker", 0)]
            assert [line for line in lines if line] == [value, *HOSTILE_ARGS]

    def test_logs(self, scheduler: Scheduler[Any], submit: Callable[[AppDef], str]) -> None:
        """Lines have their line ends and can be selected by replica, by regex, and by stream if supported."""
        caps = self.capabilities
        if not caps.logs:
            pytest.skip("this backend has no logs")
        script = f"echo out-{macros.replica_id}; echo err-{macros.replica_id} >&2"
        app_id = submit(self.app("-c", script, entrypoint="/bin/sh", num_replicas=2))
        self.wait(scheduler, app_id, AppState.SUCCEEDED)
        assert list(scheduler.log_iter(app_id, "worker", 1, regex="out-")) == ["out-1\n"]
        for stream in Stream:
            if stream.value in caps.log_streams:
                lines = set(scheduler.log_iter(app_id, "worker", 0, streams=stream))
                out, err = {"out-0\n"}, {"err-0\n"}
                assert lines == {Stream.STDOUT: out, Stream.STDERR: err, Stream.COMBINED: out | err}[stream]
            else:
                with pytest.raises(NotSupportedError):
                    list(scheduler.log_iter(app_id, "worker", 0, streams=stream))

    def test_log_query_is_honoured_or_refused(self, scheduler: Scheduler[Any], submit: Callable[[AppDef], str]) -> None:
        """`since` after the last line and `until` before the first select nothing, or are rejected if unsupported."""
        from datetime import datetime, timedelta

        caps = self.capabilities
        if not caps.logs:
            pytest.skip("this backend has no logs")
        app_id = submit(self.app("hello"))
        self.wait(scheduler, app_id, AppState.SUCCEEDED)
        day = timedelta(days=1)
        for query in ({"since": datetime.now() + day}, {"until": datetime.now() - day}):
            if caps.log_since:
                assert list(scheduler.log_iter(app_id, "worker", 0, **query)) == []  # type: ignore[arg-type]  # one of two
            else:
                with pytest.raises(NotSupportedError):
                    list(scheduler.log_iter(app_id, "worker", 0, **query))  # type: ignore[arg-type]  # one of two
        if caps.log_follow:
            assert list(scheduler.log_iter(app_id, "worker", 0, should_tail=True)) == ["hello\n"]
        if caps.log_timestamps:
            (line,) = self.lines(scheduler, app_id, LogQuery(timestamps=True))
            assert re.fullmatch(r"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z|-) hello\n", line), line
        else:
            with pytest.raises(NotSupportedError):
                self.lines(scheduler, app_id, LogQuery(timestamps=True))
        with pytest.raises(NotFoundError if caps.log_previous else NotSupportedError):
            self.lines(scheduler, app_id, LogQuery(previous=True))

    def lines(self, scheduler: Scheduler[Any], app_id: str, query: LogQuery) -> list[str]:
        """Return the output of the first replica, read as the Runner does."""
        return list(open_logs(scheduler, app_id, [("worker", 0)], query)[0])
