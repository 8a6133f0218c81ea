"""What holds for every test: a home of its own, an environment that nobody leaks into, no process left behind."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import socket
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

# How long one example takes, or how quickly examples are found, is the machine's affair.
settings.register_profile(
    "torchx",
    deadline=None,
    derandomize=any(os.environ.get(name) for name in ("SAME_EXAMPLES", "CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("torchx")

# Names that change what torchx does. A developer's own settings must not decide whether a test passes.
_REMOVED_PREFIXES = ("TORCHX", "TORCHELASTIC_", "SLURM_", "LSB_", "AWS_BATCH_", "AWS_DEFAULT_", "KUBERNETES_")
_REMOVED = {
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLUMNS",
    "LINES",
    "LOGLEVEL",
    "XDG_CONFIG_HOME",
    "CUDA_VISIBLE_DEVICES",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PAGER",
}
# Programs that reach a cluster, an engine or another machine, and variables that lead there: a unit test brings its own
# stand-ins, and puts them first on PATH. GIT_: a test may have been started by a hook of a repository.
_ELSEWHERE = {
    "Slurm": "sbatch salloc srun squeue sacct sacctmgr scancel scontrol sinfo sprio sstat",
    "LSF": "bsub bjobs bkill bhosts bqueues blaunch bmod bpeek bresume bstop",
    "Grid Engine, PBS": "qsub qstat qdel qacct qhost qselect",
    "engines": "docker podman nerdctl apptainer singularity enroot",
    "clouds": "kubectl helm aws gcloud",
    "other machines": "ssh scp sftp notify-send",
}
_LEADS_ELSEWHERE = ("AWS_", "CONTAINER_", "DOCKER_", "GIT_", "KUBE")
_PROXIES = {
    name for known in ("http", "https", "ftp", "all", "no") for name in (f"{known}_proxy", f"{known}_proxy".upper())
}
_REFUSES = """#!/bin/sh
echo "${PYTEST_CURRENT_TEST:-a process of it}: ${0##*/} $*" >> "${0%/*}/asked"
echo "${0##*/}: a unit test asks this machine's, see conftest.py" >&2
exit 127
"""

# pytest itself writes these while a test runs.
_PYTEST_OWN = {b"PYTEST_CURRENT_TEST", b"PYTEST_VERSION"}

# All that a test starts inherits this, so that what is left at the end can be told from other people's processes.
_MARK = "PYTEST_TORCHX_RUN"
_GRACE = "PYTEST_TORCHX_GRACE_S"


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Only a file that has examples is imported, and searched, for them; each process of a run collects all files."""
    found = yield
    return [one for one in found if not isinstance(one, DoctestModule) or ">>>" in file_path.read_text()]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected lives until the end, millions of objects: the garbage collector leaves them alone.

    It looks more rarely than usual, as tests leave little behind.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """With ``-n auto``: twice the processors, as much of the time a test waits for its processes."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else (os.cpu_count() or 1) * 2


class _Places:
    """What the tests of a process share: folders, each known by its number, and one of programs that note callers.

    To look for a free name among thousands takes longer than a test.
    """

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.top = str(factory.getbasetemp())
        self._number = itertools.count()
        self.refusing = Path(self.new())
        for name in " ".join(_ELSEWHERE.values()).split():
            (self.refusing / name).write_text(_REFUSES)
            (self.refusing / name).chmod(0o755)

    def new(self) -> str:
        folder = f"{self.top}/{next(self._number)}"
        os.mkdir(folder, 0o700)
        return folder


@pytest.fixture(scope="session")
def _places(tmp_path_factory: pytest.TempPathFactory) -> _Places:
    return _Places(tmp_path_factory)


@pytest.fixture
def tmp_path(_places: _Places) -> Path:
    """An empty folder."""
    return Path(_places.new())


@pytest.fixture(autouse=True)
def _isolated(request: pytest.FixtureRequest, _places: _Places) -> Iterator[None]:
    """Give the test an empty ``HOME``, ``TORCHX_HOME`` and ``TMPDIR``; the current directory stays as it is.

    Fail one that leaves a variable set, changed or removed. Fail a unit test that asks what is on this machine, itself
    or by a process that it has started.
    """
    real = "backends" in request.path.parts
    with pytest.MonkeyPatch.context() as patch:
        _set_environment(patch, request.node, _places, real)
        before = _environment()
        yield
        from torchx.util.redaction import forget

        forget()  # the secrets that it submitted
        changed = _put_back(before)
    asked = _places.refusing / "asked"
    if not real and asked.exists():
        said = asked.read_text()
        asked.unlink()
        pytest.fail(f"this machine was asked; put a stand-in first on PATH:\n{said}", pytrace=False)
    if changed:
        said = ", ".join(changed)
        pytest.fail(f"the test leaks environment variables: {said} (use monkeypatch.setenv)", pytrace=False)


def _set_environment(patch: pytest.MonkeyPatch, test: pytest.Item, places: _Places, real: bool) -> None:
    prefixes = _REMOVED_PREFIXES if real else (*_REMOVED_PREFIXES, *_LEADS_ELSEWHERE)
    removed = _REMOVED if real else _REMOVED | _PROXIES
    for name in list(os.environ):
        if name in removed or name.startswith(prefixes):
            patch.delenv(name)
    for name in ("COLUMNS", "LINES"):  # readline, which pytest imports, sets them behind Python's back
        os.unsetenv(name)
    home = places.new()
    patch.setenv("HOME", home)
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # boto3 would ask the network who we are
    patch.setenv("TORCHX_HOME", f"{home}/.torchx")
    if isinstance(test, pytest.DoctestItem):  # the Runner leaves one to processes that it starts
        patch.setenv("TORCHX_INTERNAL_SESSION_ID", "doctest")
    if real:  # they share a TMPDIR, and look at the end what lies in it
        return
    patch.setenv("TMPDIR", places.new())
    patch.setattr(tempfile, "tempdir", None)
    patch.setenv("DOCKER_HOST", f"unix://{places.refusing}/docker.sock")
    patch.setenv("PATH", str(places.refusing), prepend=os.pathsep)

    def connect(self: socket.socket, address: Any) -> None:
        if not _is_ours(self.family, address, places.top):
            with open(f"{places.refusing}/asked", "a") as file:
                file.write(f"{os.environ.get('PYTEST_CURRENT_TEST')}: {address}\n")
            raise ConnectionRefusedError(f"a unit test connects to {address}, see conftest.py")
        super(socket.socket, self).connect(address)

    patch.setattr(socket.socket, "connect", connect)


def _environment() -> dict[bytes, bytes]:
    """As os.environ keeps it: to decode it takes longer than many a test."""
    found: dict[bytes, bytes] = os.environ._data.copy()  # type: ignore[attr-defined]  # it is there on Linux and macOS
    for name in _PYTEST_OWN:
        found.pop(name, None)
    return found


def _put_back(before: dict[bytes, bytes]) -> list[str]:
    """Give the environment what it had before; returns the names of what had been changed."""
    after = _environment()
    if before == after:
        return []
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in changed:
        if name in before:
            os.environb[name] = before[name]
        else:
            del os.environb[name]
    return [os.fsdecode(name) for name in changed]


def pytest_configure() -> None:
    os.environ.setdefault(_MARK, f"{os.getpid()}-{time.time_ns()}")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # after a shell's `&`; whatever we start would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):  # likewise, and after `nohup`: we go on ignoring it
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """As pytest does, but that of a test that passes only the call is reported: a report goes to the controller."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test printed travels from xdist's workers as UTF-8: half a surrogate pair would end the run."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when a process that a test started is still alive, and end that process."""
    if hasattr(session.config, "workerinput"):
        return  # an xdist worker: the controller looks when all of them are done
    left = _orphans()
    deadline = time.monotonic() + float(os.environ.get(_GRACE, "60"))
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = _orphans()
    if not left:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for pid, command in left.items():
        if reporter is not None:
            reporter.write_line(f"ORPHAN: process {pid} outlived the tests: {command}", red=True)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _is_ours(family: int, address: Any, temporary: str) -> bool:
    """Whether a test may connect to this address: of this machine, but not of one of its services."""
    if family == socket.AF_UNIX:
        path = os.fsdecode(address)
        return path.startswith(temporary) or not path.startswith(("/run/", "/var/run/"))
    host = str(address[0]).removeprefix("::ffff:")
    return family not in (socket.AF_INET, socket.AF_INET6) or host.startswith(("127.", "::1", "localhost"))


def _orphans() -> dict[int, str]:
    """Live processes that carry this run's mark, this one and its idle job launcher excepted: pid to command line."""
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    mine = os.getpid()
    found = {}
    for entry in _process_ids():
        if entry == mine or mark not in _read(entry, "environ").split(b"\0") or _is_idle_launcher(entry, mine):
            continue
        command = _read(entry, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
        if command:  # a zombie has none
            found[entry] = command
    return found


def _is_idle_launcher(pid: int, parent: int) -> bool:
    """Whether this is the launcher that torchx keeps for the life of the calling process, with no job under it."""
    if b"launcher" not in _read(pid, "cmdline"):
        return False
    children = _read(pid, f"task/{pid}/children").split()
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return not children and len(fields) > 1 and int(fields[1]) == parent


def _process_ids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:  # no /proc (macOS): the check is made where there is one
        return []


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
