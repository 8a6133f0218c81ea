"""local_cwd: requests, logs, options, subclassing. Heavier checks are in tests/backends/local."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from torchx.errors import BackendError, ConfigError, NotFoundError, SpecError, TorchXError
from torchx.schedulers.api import DescribeAppResponse, Stream
from torchx.schedulers.local_scheduler import (
    COMBINED_LOG,
    STDERR_LOG,
    STDOUT_LOG,
    AppId,
    CWDImageProvider,
    ImageProvider,
    LocalDirectoryImageProvider,
    LocalOpts,
    LocalScheduler,
    LogIterator,
    Opts,
    PopenRequest,
    ReplicaParam,
    SignalException,
    _LocalAppDef,
    create_scheduler,
)
from torchx.specs.api import AppDef, AppDryRunInfo, AppState, BindMount, Resource, Role, macros


@pytest.fixture
def scheduler():
    local = create_scheduler("test")
    yield local
    local.close()


def _app(command: str = "true", n: int = 1, **role: Any) -> AppDef:
    return AppDef("my app", [Role("trainer", "", entrypoint="sh", args=["-c", command], num_replicas=n, **role)])


def _run(scheduler: LocalScheduler, app: AppDef, **cfg: Any) -> str:
    app_id = scheduler.submit(app, cfg)
    scheduler.wait_for_end(app_id, 300)
    return app_id


# -- the request ---------------------------------------------------------------------------------


def test_a_dryrun_shows_the_job_and_no_secret(scheduler) -> None:
    """Program, folder and environment of the first replicas; of many, the first three and a count."""
    info = scheduler.submit_dryrun(_app("echo ${replica_id}", 1000, env={"HF_TOKEN": "abc", "LR": "0.1"}), {})
    for text in (str(info), repr(info), str(info.request), repr(info.request)):
        assert "abc" not in text
        assert "LR=0.1" in text
        assert "role trainer: 1000 replicas" in text
        assert "[2] sh -c 'echo 2'" in text
        assert "[3]" not in text and "997 more" in text


def test_a_dryrun_is_the_same_but_for_the_id(scheduler) -> None:
    """Nothing in it depends on the moment; nothing is made on disk."""
    first, second = (scheduler.submit_dryrun(_app("echo ${app_id}", 3), {}).request for _ in range(2))
    assert str(first).replace(first.app_id, "ID") == str(second).replace(second.app_id, "ID")
    assert first.app_id != second.app_id
    assert not os.path.exists(os.environ["TORCHX_HOME"])


def test_the_layout_of_the_request(scheduler, tmp_path) -> None:
    """Logs lie in <log_dir>/<session>/<app_id>/<role>/<k>, macros are replaced, the app is left alone."""
    app = _app("x", 2, env={"ID": macros.app_id, "ROOT": macros.img_root, "RANK0": macros.rank0_env})
    request = scheduler.submit_dryrun(app, {"log_dir": str(tmp_path)}).request
    assert isinstance(request, PopenRequest)
    assert request.log_dir == f"{tmp_path}/test/{request.app_id}"
    assert request.role_log_dirs == {"trainer": [f"{request.log_dir}/trainer/{k}" for k in range(2)]}
    param = request.role_params["trainer"][1]
    assert param.stdout == f"{request.log_dir}/trainer/1/{STDOUT_LOG}"
    assert param.stderr == f"{request.log_dir}/trainer/1/{STDERR_LOG}"
    assert param.combined == f"{request.log_dir}/trainer/1/{COMBINED_LOG}"
    assert param.cwd == os.getcwd()
    assert param.env["ID"] == request.app_id and param.env["RANK0"] == "TORCHX_RANK0_HOST"
    assert param.env["ROOT"] == os.getcwd()
    assert param.env["TORCHELASTIC_ERROR_FILE"] == f"{request.log_dir}/trainer/1/error.json"
    assert app.roles[0].env["ID"] == macros.app_id


@pytest.mark.parametrize("name", ["../../etc", "a/b", "ä b", "x" * 300, "$(rm -rf)", "-rf", "."])
def test_hostile_names_stay_below_the_log_dir(scheduler, tmp_path, name: str) -> None:
    """App and role names cannot lead out of the folder of logs, and the job runs."""
    app = AppDef(name, [Role(name, "", entrypoint="echo", args=["hi"])])
    app_id = _run(scheduler, app, log_dir=str(tmp_path))
    assert "/" not in app_id
    assert list(scheduler.log_iter(app_id, name)) == ["hi\n"]
    logs = list(tmp_path.rglob(STDOUT_LOG))
    assert len(logs) == 1 and len(logs[0].relative_to(tmp_path).parts) == 5


def test_ten_thousand_replicas_are_rendered_in_linear_time(scheduler) -> None:
    """Ten times the replicas cost about ten times the calls of functions, those in C included."""

    def calls(n: int) -> int:
        app = _app("echo ${replica_id} ${app_id}", n, env={"A": "${replica_id}"})
        events: Counter[str] = Counter()
        sys.setprofile(lambda frame, event, arg: events.update([event]))
        try:
            scheduler.submit_dryrun(app, {})
        finally:
            sys.setprofile(None)
        return events["call"] + events["c_call"]

    calls(1)  # imports
    assert calls(1_000) > 1_000
    assert calls(10_000) < 11 * calls(1_000)


# -- running -------------------------------------------------------------------------------------


def test_a_job_runs_and_is_described(scheduler) -> None:
    """State, replicas, roles, a link to the logs, and the environment that a replica sees."""
    os_env = {"MINE": "role"}
    app_id = _run(scheduler, _app("echo $MINE $TORCHX_RANK0_HOST; echo err >&2; pwd", env=os_env))
    described = scheduler.describe(app_id)
    assert isinstance(described, DescribeAppResponse)
    assert (described.app_id, described.state, described.num_restarts) == (app_id, AppState.SUCCEEDED, 0)
    [status] = described.roles_statuses
    assert [(r.id, r.state, r.hostname) for r in status.replicas] == [(0, AppState.SUCCEEDED, "localhost")]
    assert described.roles[0].args == ["-c", "echo $MINE $TORCHX_RANK0_HOST; echo err >&2; pwd"]
    assert described.ui_url is not None and os.path.isdir(described.ui_url.removeprefix("file://"))
    assert list(scheduler.log_iter(app_id, "trainer", streams=Stream.STDOUT)) == [
        "role localhost\n",
        f"{os.getcwd()}\n",
    ]
    assert list(scheduler.log_iter(app_id, "trainer", streams=Stream.STDERR)) == ["err\n"]
    assert sorted(scheduler.log_iter(app_id, "trainer")) == sorted(["role localhost\n", "err\n", f"{os.getcwd()}\n"])


def test_role_variables_win_and_several_replicas_share_a_port(scheduler, monkeypatch) -> None:
    """The caller's environment is passed on, the role's on top; all replicas get the same rank-0 port."""
    monkeypatch.setenv("FROM_CALLER", "1")
    monkeypatch.setenv("BOTH", "caller")
    app_id = _run(scheduler, _app("echo $FROM_CALLER $BOTH $TORCHX_RANK0_PORT", 2, env={"BOTH": "role"}))
    said = {line for k in range(2) for line in scheduler.log_iter(app_id, "trainer", k)}
    assert len(said) == 1
    one, both, port = said.pop().split()
    assert (one, both) == ("1", "role") and 0 < int(port) < 65536


def test_secrets_are_not_written_to_disk(scheduler) -> None:
    """A replica gets its secret; no file of the job holds it."""
    app_id = _run(scheduler, _app("test ${#HF_TOKEN} = 6", env={"HF_TOKEN": "s3cr3t"}))
    assert scheduler.describe(app_id).state == AppState.SUCCEEDED
    folder = scheduler._apps[app_id].folder
    for parent, _, files in os.walk(folder):
        for name in set(files) - {"control"}:
            with open(os.path.join(parent, name), "rb") as f:
                assert b"s3cr3t" not in f.read(), name
    assert os.stat(f"{folder}/job.json").st_mode & 0o077 == 0


def test_roles_are_known_to_another_scheduler(scheduler) -> None:
    """A fresh object, of another session even, describes the job from its files."""
    app_id = _run(scheduler, _app("exit 3", env={"HF_TOKEN": "x"}))
    other = create_scheduler("other").describe(app_id)
    assert other is not None and other.state == AppState.FAILED
    assert other.roles[0].args == ["-c", "exit 3"]
    assert other.roles[0].env == {"HF_TOKEN": "********"}


@pytest.mark.parametrize(
    ("entrypoint", "says"),
    [("no-such-program", "not in PATH"), ("./no-such", "does not exist"), ("/etc/passwd", "not executable")],
)
def test_an_entrypoint_that_cannot_run_is_said_before_launch(scheduler, entrypoint: str, says: str) -> None:
    """One line that names it, a hint, and no job."""
    with pytest.raises(SpecError, match=says) as e:
        scheduler.submit(AppDef("a", [Role("r", "", entrypoint=entrypoint)]), {})
    assert f"`{entrypoint}`" in str(e.value) and e.value.hint
    assert scheduler.list() == []


def test_a_program_without_interpreter_line_fails_with_a_reason(scheduler, tmp_path) -> None:
    """What only the kernel finds out is told in the job's failure."""
    script = tmp_path / "script"
    script.write_text("echo hi\n")
    script.chmod(0o755)
    app_id = _run(scheduler, AppDef("a", [Role("r", "", entrypoint=str(script))]))
    described = scheduler.describe(app_id)
    assert described.state == AppState.FAILED
    assert "Exec format error" in described.msg and "#!" in described.msg


def test_a_job_cannot_be_submitted_twice(scheduler) -> None:
    """The same request again is refused: it never starts a job twice."""
    info = scheduler.submit_dryrun(_app(), {})
    scheduler.schedule(info)
    with pytest.raises(BackendError, match="already submitted"):
        scheduler.schedule(info)


def test_more_jobs_than_are_remembered(scheduler) -> None:
    """The cache's size is no limit on jobs: those that fell out are found on disk."""
    small = create_scheduler("test", cache_size=2)
    ids = [_run(small, _app()) for _ in range(4)]
    assert [small.describe(i).state for i in ids] == [AppState.SUCCEEDED] * 4
    assert len(small._apps) == 2
    with pytest.raises(SpecError):
        create_scheduler("test", cache_size=0)


def test_list_knows_all_sessions(scheduler) -> None:
    """With and without options; handle, name and state of each job."""
    mine = _run(scheduler, _app())
    other = _run(create_scheduler("other"), _app("exit 1"))
    found = {job.app_id: job for job in scheduler.list(None)}
    assert set(found) == {mine, other}
    assert found[other].app_handle == f"local_cwd://other/{other}"
    assert (found[other].state, found[mine].name) == (AppState.FAILED, "my-app")
    assert create_scheduler("nobody").list({}) != []


@pytest.mark.parametrize("app_id", ["nope", "", "..", "../../etc/passwd", "a/b", "\0", "x" * 5000])
def test_unknown_ids(scheduler, app_id: str) -> None:
    """None, False, quiet or NotFoundError, never another error, however odd the id."""
    _run(scheduler, _app())
    assert scheduler.describe(app_id) is None
    assert not scheduler.exists(app_id)
    scheduler.cancel(app_id)
    scheduler.delete(app_id)
    with pytest.raises(NotFoundError):
        scheduler.log_iter(app_id, "trainer")


# -- options -------------------------------------------------------------------------------------


def test_options_are_those_of_the_contract(scheduler) -> None:
    """Names, types and defaults; each with a help."""
    opts = dict(scheduler.run_opts())
    assert {name: (opt.opt_type, opt.default) for name, opt in opts.items()} == {
        "log_dir": (str, None),
        "prepend_cwd": (bool, False),
        "auto_set_cuda_visible_devices": (bool, False),
        "cancel_grace_s": (int, 10),
        "setup": (str, None),
    }
    assert all(opt.help for opt in opts.values())


def test_the_users_log_dir_is_used_and_stays(scheduler, tmp_path) -> None:
    """Logs go there; delete removes the job's files, never the folder or what else is in it."""
    (tmp_path / "mine").write_text("precious")
    app_id = _run(scheduler, _app("echo hi"), log_dir=str(tmp_path))
    assert (tmp_path / "test" / app_id / "trainer" / "0" / STDOUT_LOG).read_text() == "hi\n"
    assert scheduler.describe(app_id).ui_url == f"file://{tmp_path}/test/{app_id}"
    assert list(create_scheduler("x").log_iter(app_id, "trainer")) == ["hi\n"]
    scheduler.delete(app_id)
    assert not (tmp_path / "test" / app_id).exists()
    assert (tmp_path / "mine").read_text() == "precious"
    assert scheduler.describe(app_id) is None


def test_a_log_dir_that_cannot_be_made(scheduler, tmp_path) -> None:
    """Said before launch, with the path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        scheduler.submit(_app(), {"log_dir": str(tmp_path / "file" / "logs")})
    assert scheduler.list() == []


def test_prepend_cwd_and_extra_paths(scheduler, tmp_path, monkeypatch) -> None:
    """Programs of the current directory, then those of extra_paths, come before PATH's."""
    for where in ("cwd", "extra"):
        (tmp_path / where).mkdir()
        (tmp_path / where / "tool").write_text(f"#!/bin/sh\necho {where}\n")
        (tmp_path / where / "tool").chmod(0o755)
    monkeypatch.chdir(tmp_path / "cwd")
    app = AppDef("a", [Role("r", "", entrypoint="tool")])
    with pytest.raises(SpecError, match="tool") as e:
        scheduler.submit(app, {})
    assert "./tool" in e.value.hint
    extra = create_scheduler("test", extra_paths=[str(tmp_path / "extra")])
    assert list(extra.log_iter(_run(extra, app), "r")) == ["extra\n"]
    assert list(extra.log_iter(_run(extra, app, prepend_cwd=True), "r")) == ["cwd\n"]


def test_a_negative_grace_is_refused(scheduler) -> None:
    """One line that names the option."""
    with pytest.raises(ConfigError, match="cancel_grace_s"):
        scheduler.submit_dryrun(_app(), {"cancel_grace_s": -1})


def test_an_unwritable_home_is_warned_of(scheduler, monkeypatch, tmp_path, caplog) -> None:
    """The job runs in the temporary folder, and its logs are found."""
    (tmp_path / "home").write_text("a file where a folder should be")
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        app_id = _run(scheduler, _app("echo hi; exit 1"))
    assert "local jobs cannot be kept" in caplog.text
    assert scheduler.describe(app_id).state == AppState.FAILED
    assert list(create_scheduler("x").log_iter(app_id, "trainer")) == ["hi\n"]


def test_a_strangers_temporary_folder_is_not_used(scheduler, monkeypatch, tmp_path) -> None:
    """A folder under our name that others may write to is neither read nor written."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / f"torchx-{os.getuid()}").mkdir()
    (tmp_path / f"torchx-{os.getuid()}").chmod(0o777)
    (tmp_path / "home").write_text("a file where a folder should be")
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
    with pytest.raises(BackendError, match="folder of a local job cannot be created"):
        scheduler.submit(_app(), {})
    assert scheduler.list() == []


def test_a_full_home_is_warned_of(scheduler, monkeypatch, tmp_path, caplog) -> None:
    """The job starts all the same, in the temporary folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    real = os.statvfs

    def full(path):
        disk = list(real(path))
        disk[4] = 0 if str(path).startswith(os.environ["TORCHX_HOME"]) else disk[4]
        return os.statvfs_result(disk)

    monkeypatch.setattr(os, "statvfs", full)
    with caplog.at_level(logging.WARNING):
        app_id = _run(scheduler, _app("echo hi"))
    assert "No space left" in caplog.text
    assert list(scheduler.log_iter(app_id, "trainer")) == ["hi\n"]


# -- resources -----------------------------------------------------------------------------------


def test_gpus_are_shared_out(scheduler, monkeypatch) -> None:
    """Each replica gets as many of its own as its role asks for; a role's own setting stays."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7,GPU-8")
    app = AppDef(
        "a",
        [
            Role("w", "", entrypoint="true", num_replicas=2, resource=Resource(1, 2, 64)),
            Role("cpu", "", entrypoint="true", resource=Resource(1, 0, 64)),
            Role("own", "", entrypoint="true", resource=Resource(1, 1, 64), env={"CUDA_VISIBLE_DEVICES": "9"}),
        ],
    )
    request = scheduler.submit_dryrun(app, {"auto_set_cuda_visible_devices": True}).request
    seen = {role: [p.env["CUDA_VISIBLE_DEVICES"] for p in params] for role, params in request.role_params.items()}
    assert seen == {"w": ["4,5", "6,7"], "cpu": [""], "own": ["9"]}
    plain = scheduler.submit_dryrun(app, {}).request
    assert "CUDA_VISIBLE_DEVICES" not in plain.role_params["w"][0].env


def test_too_few_gpus_are_warned_of(scheduler, monkeypatch, caplog) -> None:
    """Nothing is set then."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with caplog.at_level(logging.WARNING):
        request = scheduler.submit_dryrun(
            _app(resource=Resource(1, 2, 64)), {"auto_set_cuda_visible_devices": True}
        ).request
    assert "ask for 2 GPUs and this machine has 1" in caplog.text
    assert "CUDA_VISIBLE_DEVICES" not in request.role_params["trainer"][0].env


def test_one_warning_for_all_that_is_short(scheduler, caplog) -> None:
    """CPUs, GPUs, memory and mounts in one line; none for a modest job."""
    mounts = [BindMount("/a", "/b"), BindMount("/same", "/same")]
    with caplog.at_level(logging.WARNING):
        _run(scheduler, _app(resource=Resource(1, 0, 1)))
        assert caplog.records == []
        _run(scheduler, _app(n=2, resource=Resource(5000, 70, 10**9), mounts=mounts))
    [record] = caplog.records
    for part in ("10000 CPUs", "140 GPUs", "1.9 PiB of memory", "`/b`"):
        assert part in record.getMessage()
    assert "/same" not in record.getMessage()


# -- logs ----------------------------------------------------------------------------------------


def test_a_last_line_without_end_and_odd_bytes(scheduler) -> None:
    """Lines end at \\n alone, bytes that are no UTF-8 are replaced, the last line may lack its end."""
    app_id = _run(scheduler, _app(r"printf 'a\rb\nc\013d\n\377\nend'"))
    assert list(scheduler.log_iter(app_id, "trainer")) == ["a\rb\n", "c\x0bd\n", "\ufffd\n", "end"]
    assert list(scheduler.log_iter(app_id, "trainer", should_tail=True))[-1] == "end"


def test_regex(scheduler) -> None:
    """Only lines in which it is found; a bad one is an error before the first line."""
    app_id = _run(scheduler, _app("echo loss 1; echo acc 2; echo loss 3"))
    assert list(scheduler.log_iter(app_id, "trainer", regex=r"loss \d")) == ["loss 1\n", "loss 3\n"]
    with pytest.raises(ConfigError):
        scheduler.log_iter(app_id, "trainer", regex="(")


@pytest.mark.parametrize("stream", [None, Stream.STDOUT], ids=["combined", "stdout"])
def test_since_and_until(scheduler, tmp_path, stream) -> None:
    """Lines of before and after a moment are told apart, also in a job that has ended."""
    go = tmp_path / "go"
    app_id = scheduler.submit(_app(f"echo early; while [ ! -e {go} ]; do sleep 0.01; done; echo late"), {})
    while list(scheduler.log_iter(app_id, "trainer")) != ["early\n"]:
        time.sleep(0.005)
    time.sleep(0.1)
    moment = datetime.fromtimestamp(time.time())
    time.sleep(0.1)
    go.touch()
    scheduler.wait_for_end(app_id, 300)

    def lines(**query: Any) -> list[str]:
        return list(scheduler.log_iter(app_id, "trainer", streams=stream, **query))

    assert lines(since=moment) == ["late\n"]
    assert lines(until=moment) == ["early\n"]
    assert lines(until=moment, should_tail=True) == ["early\n"]
    assert lines(since=datetime.fromtimestamp(0), until=datetime.fromtimestamp(time.time() + 60)) == [
        "early\n",
        "late\n",
    ]
    assert lines(until=datetime.fromtimestamp(0)) == []
    assert lines(since=datetime.fromtimestamp(time.time() + 60)) == []


def test_unknown_role_and_replica(scheduler) -> None:
    """The nearest name, or the valid numbers, are in the hint; said before the first line."""
    app_id = _run(scheduler, _app(n=3))
    with pytest.raises(LookupError, match="`trainr`") as e:
        scheduler.log_iter(app_id, "trainr")
    assert isinstance(e.value, TorchXError)
    assert "`trainer`" in e.value.hint
    for k in (3, -1):
        with pytest.raises(LookupError, match=f"`{k}`") as e:
            scheduler.log_iter(app_id, "trainer", k)
        assert isinstance(e.value, TorchXError)
        assert "0 to 2" in e.value.hint


def test_following_delivers_lines_as_they_come_and_ends_with_the_job(scheduler, tmp_path) -> None:
    """The first line arrives while the job runs; the iteration ends by itself."""
    go = tmp_path / "go"
    app_id = scheduler.submit(_app(f"echo first; while [ ! -e {go} ]; do sleep 0.01; done; echo last"), {})
    lines = iter(scheduler.log_iter(app_id, "trainer", should_tail=True))
    assert next(lines) == "first\n"
    assert scheduler.describe(app_id).state == AppState.RUNNING
    go.touch()
    assert list(lines) == ["last\n"]


# -- for those who subclass ----------------------------------------------------------------------


def test_a_subclass_of_the_log_iterator_decides_when_it_ends(scheduler, tmp_path) -> None:
    """_check_finished may be overridden; it sets _app_finished."""

    class Until(LogIterator):
        def __init__(self, app_id, log_file, scheduler, should_tail=True) -> None:
            super().__init__(app_id, log_file, scheduler, should_tail)
            self.checks = 0

        def _check_finished(self) -> None:
            self.checks += 1
            if self.checks == 2:
                with open(self._log_file, "a") as f:
                    f.write("written just before the end\n")
                self._app_finished = True

    log = tmp_path / "log"
    log.write_text("one\n")
    iterator = Until("app", str(log), scheduler)
    assert list(iterator) == ["one\n", "written just before the end\n"]
    assert next(LogIterator("app", str(log), scheduler, should_tail=False)) == "one\n"
    assert list(LogIterator("app", str(tmp_path / "none"), scheduler, should_tail=False)) == []


def test_a_subclass_of_the_scheduler(tmp_path) -> None:
    """Overriding __init__, _submit_dryrun, schedule, describe and log_iter works as programs do it."""

    class Mine(LocalScheduler):
        def __init__(self, session_name: str) -> None:
            super().__init__(session_name=session_name, image_provider_class=CWDImageProvider)
            self.seen: list[str] = []

        def _submit_dryrun(self, app: AppDef, cfg: LocalOpts) -> AppDryRunInfo[PopenRequest]:
            info = super()._submit_dryrun(app, cfg)
            info.request.role_params["trainer"][0].env["ADDED"] = "yes"
            return info

        def schedule(self, dryrun_info: AppDryRunInfo[PopenRequest]) -> str:
            app_id = super().schedule(dryrun_info)
            self.seen.append(app_id)
            return app_id

        def describe(self, app_id: str) -> DescribeAppResponse | None:
            described = super().describe(app_id)
            if described:
                described.msg = "mine"
            return described

        def log_iter(self, app_id, role_name, k=0, *args, **kwargs):
            return (f"> {line}" for line in super().log_iter(app_id, role_name, k, *args, **kwargs))

    mine = Mine("test")
    app_id = _run(mine, _app("echo $ADDED"))
    assert mine.seen == [app_id]
    assert mine.describe(app_id).msg == "mine"
    assert list(mine.log_iter(app_id, "trainer")) == ["> yes\n"]
    assert isinstance(mine._apps[AppId(app_id)], _LocalAppDef)
    known = mine._apps[AppId(app_id)]  # NeMo-Run writes these down
    assert (known.id, known.state, known.role_replicas) == (app_id, AppState.SUCCEEDED, {"trainer": [0]})
    assert os.path.isdir(mine._apps[app_id].log_dir)


def test_an_image_provider_of_ones_own(tmp_path) -> None:
    """The provider says where the image is, what is started, and where."""

    class Mine(ImageProvider):
        def __init__(self, cfg: LocalOpts) -> None:
            self.cfg = cfg

        def fetch(self, image: str) -> str:
            return f"/images/{image}"

        def get_entrypoint(self, img_root: str, role: Role) -> str:
            return "echo"

        def get_cwd(self, image: str) -> str | None:
            return str(tmp_path)

    mine = LocalScheduler("test", Mine)
    app = AppDef("a", [Role("r", "img:1", entrypoint="whatever", args=[macros.img_root])])
    assert list(mine.log_iter(_run(mine, app), "r")) == ["/images/img:1\n"]


def test_a_directory_as_image(tmp_path) -> None:
    """The entrypoint is looked for in the image, then in PATH; the replica runs there."""
    (tmp_path / "main.sh").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "main.sh").chmod(0o755)
    local = LocalScheduler("test", LocalDirectoryImageProvider)
    for entrypoint, args in (("main.sh", []), ("pwd", [])):
        app = AppDef("a", [Role("r", str(tmp_path), entrypoint=entrypoint, args=args)])
        assert list(local.log_iter(_run(local, app), "r")) == [f"{tmp_path}\n"]
    with pytest.raises(SpecError, match="no-such-image"):
        local.submit_dryrun(AppDef("a", [Role("r", "no-such-image", entrypoint="x")]), {})


def test_run_local_job_is_a_working_method(scheduler, tmp_path) -> None:
    """It starts one program with the given environment, files and folder."""
    with open(tmp_path / "out", "wb", buffering=0) as out:
        process = scheduler.run_local_job(["sh", "-c", "echo $A; pwd"], {"A": "b"}, out, None, str(tmp_path))
        assert process.wait(50) == 0
    assert (tmp_path / "out").read_text() == f"b\n{tmp_path}\n"


def test_small_types() -> None:
    """As other programs use them."""
    import signal

    assert SignalException("stopped", signal.SIGTERM).sigval == signal.SIGTERM
    param = ReplicaParam(["a"], {})
    assert (param.stdout, param.stderr, param.combined, param.cwd) == (None, None, None, None)
    assert Opts.from_cfg({"log_dir": "/x"}).log_dir == "/x"
    request = PopenRequest("id", "/logs", {"r": [param]}, {"r": ["/logs/r/0"]})
    assert request.app_id == "id"


class _Nemo(LocalScheduler):
    """A subclass as NeMo-Run has one: it never calls our ``__init__``, and has jobs that it read from a file."""

    def __init__(self, session_name: str) -> None:
        self.backend, self.session_name = "local", session_name
        self._image_provider_class, self._cache_size, self._extra_paths = None, 100, []
        self._apps = {}

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        for job in self._apps.values():
            assert job.state is not None and isinstance(job.role_replicas, dict)
        return super().describe(app_id)


def test_eight_threads_share_a_scheduler() -> None:
    """They start, look at and forget jobs while the others iterate over all of them."""
    local, errors = _Nemo("test"), []

    def work(k: int) -> None:
        try:
            for _ in range(3):
                app_id = local.submit(_app(f"echo {k}"), {})
                assert local.describe(app_id) is not None
                assert [*local._apps.keys()] and dict(local._apps.items()) and app_id in local._apps
                local.wait_for_end(app_id, 300)
                assert list(local.log_iter(app_id, "trainer")) == [f"{k}\n"]
                assert local.exists(app_id) and len(local.list()) > 0
                local.delete(app_id)
                assert local.describe(app_id) is None
        except BaseException as e:
            errors.append(e)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []


def test_a_group_of_tasks_of_nemo_run() -> None:
    """Killing a member ends it as failed; a reloaded job, of which nothing is left, has what was set."""
    local = _Nemo("test")
    app_id = local.submit(_app("exec sleep 600"), {})
    job = local._apps[app_id]
    job.kill()
    local.wait_for_end(app_id, 300)
    assert job.state is AppState.FAILED
    job.kill()
    other = local.submit(_app("exec sleep 600"), {})
    local.cancel(other)
    local.wait_for_end(other, 300)
    assert local._apps[other].state is AppState.CANCELLED
    gone = _LocalAppDef("gone", "/nowhere")
    assert (gone.state, gone.role_replicas) == (AppState.UNKNOWN, {})
    gone.set_state(AppState.SUCCEEDED)
    gone.role_replicas = {"trainer": [0]}
    gone.kill()
    assert (gone.state, gone.role_replicas) == (AppState.SUCCEEDED, {"trainer": [0]})


def test_a_host_that_has_no_name_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas meet at 127.0.0.1 where the file of hosts lacks `localhost`."""
    import _socket

    from torchx.schedulers.local import request

    def nothing(*_: object) -> None:
        raise _socket.gaierror("Name or service not known")

    monkeypatch.setattr(_socket, "getaddrinfo", nothing)
    request._this_host.cache_clear()
    assert request._this_host() == "127.0.0.1"
    request._this_host.cache_clear()
    monkeypatch.undo()
    assert request._this_host() in ("localhost", "127.0.0.1")
