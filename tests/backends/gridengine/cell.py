"""A real Grid Engine on one machine: Debian's Son of Grid Engine, a master and one host with eight slots.

``python -m tests.backends.gridengine.cell up | down``, as root on Debian or Ubuntu. The packages are unpacked, not
installed, for installing them starts daemons and brings a mail server along. All of it lives in one folder,
``$TORCHX_TEST_GRIDENGINE`` (default ``/var/tmp/torchx-test-gridengine``); what is outside of it, the link
``/usr/lib/gridengine`` (a path that is built into the programs), goes with ``down``. Every step may be repeated.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ.get("TORCHX_TEST_GRIDENGINE", "/var/tmp/torchx-test-gridengine"))
BIN = STATE / "bin"
"""To put on PATH: the commands, each with the environment that it needs."""

SLOTS = 8
_ROOT = STATE / "packages"  # where the packages are unpacked
_CELL = STATE / "cell"  # SGE_ROOT
_PROGRAMS = _ROOT / "usr/lib/gridengine"
_BUILT_IN = Path("/usr/lib/gridengine")
_PACKAGES = (*("gridengine-common", "gridengine-client", "gridengine-exec", "gridengine-master", "libjemalloc2"),)
_COMMANDS = ("qsub", "qstat", "qdel", "qacct", "qconf", "qhost", "qmod", "qhold", "qrls", "qalter")
_MASTER_PORT = 26444
_DEADLINE_S = 180


class CellError(Exception):
    """It does not come up; the text says why."""


class NoCellHereError(CellError):
    """This machine is not one on which it could be brought up."""


def up() -> None:
    """Fetch what is missing, start what does not run, and wait until a job could run.

    Raises:
        CellError: not root, no packages, or a daemon that does not start: its last words.
    """
    if os.geteuid() != 0:
        raise NoCellHereError("Grid Engine needs root: its daemons run jobs as any user")
    if _BUILT_IN.exists() and not _is_ours():
        raise NoCellHereError(f"`{_BUILT_IN}` is there: a Grid Engine is installed on this machine")
    _unpack()
    if not is_up():
        _configure()
        _start("sge_qmaster")
        _until_ok("qconf", "-sh")
        _add_host()
    if _pid("sge_execd") is None:
        _start("sge_execd")
    _add_queue()
    deadline = time.monotonic() + _DEADLINE_S
    while re.search(r"^main.q@\S+ +\S+ +\S+ +[\d.]+ +\S+\s*$", _ask("qstat", "-f").stdout, re.MULTILINE) is None:
        if time.monotonic() > deadline:
            raise CellError(f"the host is not ready:\n{_ask('qstat', '-f').stdout}")
        time.sleep(0.1)


def is_up() -> bool:
    """Whether the master of this cell runs."""
    return _pid("sge_qmaster") is not None


def down() -> None:
    """End all jobs and both daemons, and remove what they left."""
    if is_up():
        _ask("qdel", "-f", "-u", "*")
    for name in ("sge_execd", "sge_qmaster"):
        _stop(name)
    if _is_ours():
        _BUILT_IN.unlink()
    shutil.rmtree(STATE, ignore_errors=True)


def _is_ours() -> bool:
    return _BUILT_IN.is_symlink() and Path(os.readlink(_BUILT_IN)) == _PROGRAMS


def _unpack() -> None:
    if not (_PROGRAMS / "sge_qmaster").exists():
        if not shutil.which("apt-get"):
            raise NoCellHereError("the packages come by apt-get, which is not here")
        debs = STATE / "debs"
        debs.mkdir(parents=True, exist_ok=True)
        debs.chmod(0o777)  # apt downloads as a user of its own
        fetch = ["apt-get", "-q", "download", *_PACKAGES]
        done = subprocess.run(fetch, cwd=debs, capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(["apt-get", "-q", "update"], capture_output=True, check=False)
            done = subprocess.run(fetch, cwd=debs, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoCellHereError(f"the packages cannot be had: {done.stderr.strip() or done.stdout.strip()}")
        for deb in sorted(debs.glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(deb), str(_ROOT)], check=True)
    STATE.chmod(0o755)
    if not _BUILT_IN.is_symlink():
        _BUILT_IN.symlink_to(_PROGRAMS)
    BIN.mkdir(exist_ok=True)
    settings = " ".join(f'{name}="{value}"' for name, value in _env().items())
    for name in _COMMANDS:
        (BIN / name).write_text(f'#!/bin/sh\nexec env {settings} {_PROGRAMS}/{name} "$@"\n')
        (BIN / name).chmod(0o755)


def _env() -> dict[str, str]:
    libraries = next((p.parent for p in (_ROOT / "usr/lib").glob("*/libjemalloc.so.2")), _PROGRAMS)
    return {
        "SGE_ROOT": str(_CELL),
        "SGE_CELL": "default",
        "SGE_QMASTER_PORT": str(_MASTER_PORT),
        "SGE_EXECD_PORT": str(_MASTER_PORT + 1),
        "SGE_CLUSTER_NAME": "torchx",
        "LD_LIBRARY_PATH": f"{libraries}:{_PROGRAMS}",
    }


# Manual pages bootstrap(5), sge_conf(5), host_aliases(5): the master and the host are this machine, whatever its name.
def _configure() -> None:
    """A new cell, with nothing in it."""
    shutil.rmtree(_CELL, ignore_errors=True)
    common, spool = _CELL / "default/common", _CELL / "spool"
    for folder in (common, spool / "qmaster/job_scripts", spool / "execd"):
        folder.mkdir(parents=True)
    for name in ("bin", "lib", "utilbin"):
        (_CELL / name).mkdir()
        (_CELL / name / "lx-amd64").symlink_to(_PROGRAMS)
    (_CELL / "util").symlink_to(_ROOT / "usr/share/gridengine/util")
    where = f"{common};{spool}/qmaster"
    bootstrap = {
        **{"admin_user": "none", "default_domain": "none", "ignore_fqdn": "true", "security_mode": "none"},
        **{"spooling_method": "classic", "spooling_lib": "libspoolc", "spooling_params": where},
        **{"binary_path": f"{_CELL}/bin", "qmaster_spool_dir": f"{spool}/qmaster"},
        **{"listener_threads": "2", "worker_threads": "2", "scheduler_threads": "1"},
    }
    (common / "bootstrap").write_text("".join(f"{k} {v}\n" for k, v in bootstrap.items()))
    (common / "act_qmaster").write_text("localhost\n")
    (common / "host_aliases").write_text(f"localhost {socket.gethostname()}\n")
    reporting = "accounting=true reporting=false flush_time=00:00:01 accounting_flush_time=00:00:00"
    conf = _edited(
        (_ROOT / "usr/share/gridengine/default-configuration").read_text(),
        execd_spool_dir=f"{spool}/execd",
        reporting_params=f"{reporting} joblog=false sharelog=00:00:00",
        execd_params="INHERIT_ENV=false",
        shell_start_mode="unix_behavior",
        load_report_time="00:00:02",
        min_uid="0",
        min_gid="0",
    )
    (_CELL / "conf").write_text(conf)
    _program("spoolinit", "classic", "libspoolc", where, "init")
    resources = _CELL / "util/resources"
    rows = {"configuration": _CELL / "conf", "complexes": resources / "centry", "usersets": resources / "usersets"}
    for kind, path in rows.items():
        _program("spooldefaults.bin", kind, str(path))
    _program("spooldefaults.bin", "managers", "root")


def _edited(text: str, **values: str) -> str:
    """A configuration with other values; each must be in it."""
    for name, value in values.items():
        text, count = re.subn(rf"(?m)^{name}\s.*(\\\n.*)*$", f"{name} {value}", text)
        if not count:
            raise CellError(f"there is no `{name}` in the configuration")
    return text


def _add_host() -> None:
    for option in ("-ah", "-as"):
        _ask("qconf", option, "localhost")
    quick = _edited(_ask("qconf", "-ssconf").stdout, schedule_interval="0:0:1", flush_submit_sec="1")
    _set("-Msconf", quick)


def _add_queue() -> None:
    if "main.q" in _ask("qconf", "-sql").stdout:
        return
    _set("-Ahgrp", "group_name @allhosts\nhostlist localhost\n")
    queue = _edited(
        _ask("qconf", "-sq").stdout,
        **{"qname": "main.q", "hostlist": "@allhosts", "slots": str(SLOTS), "load_thresholds": "NONE"},
        **{"shell_start_mode": "unix_behavior", "pe_list": "smp"},
    )
    smp = (
        f"pe_name smp\nslots {SLOTS}\nuser_lists NONE\nxuser_lists NONE\nstart_proc_args NONE\nstop_proc_args NONE\n"
        "allocation_rule $pe_slots\ncontrol_slaves FALSE\njob_is_first_task TRUE\nurgency_slots min\n"
        "accounting_summary FALSE\nqsort_args NONE\n"
    )
    _set("-Ap", smp)
    _set("-Aq", queue)


def _set(option: str, text: str) -> None:
    path = _CELL / "setting"
    path.write_text(text)
    done = _ask("qconf", option, str(path))
    if done.returncode:
        raise CellError(f"qconf {option}: {done.stderr or done.stdout}")


def _ask(command: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BIN / command), *args], capture_output=True, text=True, check=False, timeout=180)


def _until_ok(command: str, *args: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while (done := _ask(command, *args)).returncode:
        if time.monotonic() > deadline:
            raise CellError(f"`{command}` does not answer: {done.stderr}\n{_words('sge_qmaster')}")
        time.sleep(0.1)


def _program(name: str, *args: str) -> None:
    done = subprocess.run(
        [str(_PROGRAMS / name), *args], env={**os.environ, **_env()}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CellError(f"{name}: {done.stderr or done.stdout}")


def _start(name: str) -> None:
    """Start a daemon that outlives us, in the foreground of a session of its own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    with (STATE / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(_PROGRAMS / name)],
            env={**env, **_env(), "SGE_ND": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    (STATE / f"{name}.pid").write_text(str(process.pid))
    process.returncode = 0  # nobody waits for it: it is not ours to end


def _pid(name: str) -> int | None:
    """The process, if it is the one that we started."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((STATE / f"{name}.pid").read_text())
        stat = Path(f"/proc/{pid}/stat").read_text()
        if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes() and stat.rpartition(")")[2].split()[0] != "Z":
            return pid
    return None


def _stop(name: str) -> None:
    pid = _pid(name)
    deadline = time.monotonic() + 60
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
    while pid is not None and _pid(name) == pid:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _words(name: str) -> str:
    return (STATE / f"{name}.log").read_text(errors="replace")[-2000:]


if __name__ == "__main__":
    if sys.argv[1:] not in (["up"], ["down"]):
        sys.exit("usage: python -m tests.backends.gridengine.cell up|down")
    try:
        {"up": up, "down": down}[sys.argv[1]]()
    except CellError as e:
        sys.exit(f"cell: {e}")
