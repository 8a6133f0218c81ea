"""A real Slurm cluster on one machine: controller, accounting, four nodes with fake GPUs and one without memory.

``python -m tests.backends.slurm.cluster up | down | restart [--no-accounting]``, as root on Debian or Ubuntu. All of
it lives in one folder, ``$TORCHX_TEST_SLURM`` (default ``/var/tmp/torchx-test-slurm``); what is outside of it, links
in ``/etc/slurm`` and lines in ``/etc/hosts``, carries its mark and goes with ``down``. Every step may be repeated.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.backends.slurm.conf import GPUS, NODES, gres_conf, slurm_conf, slurmdbd_conf

STATE = Path(os.environ.get("TORCHX_TEST_SLURM", "/var/tmp/torchx-test-slurm"))
PACKAGES = (*("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "slurmdbd", "munge", "mariadb-server"),)
_PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "squeue", "sacct", "munged", "mariadbd")
_MARK = "# torchx test cluster"
_LINKS = ("slurm.conf", "gres.conf", "slurmdbd.conf")
_ETC = Path("/etc/slurm")


class ClusterError(Exception):
    """The cluster does not come up; the text says why."""


class NoClusterHereError(ClusterError):
    """This machine is not one on which it could be brought up."""


def up() -> None:
    """Install what is missing, start what does not run, and wait until all nodes are ready.

    Raises:
        ClusterError: not root, no packages, or a daemon that does not start: its last words.
    """
    if os.geteuid() != 0:
        raise NoClusterHereError("a Slurm cluster needs root: its daemons run jobs as any user")
    if "/usr/sbin" not in os.environ["PATH"].split(":"):
        os.environ["PATH"] += ":/usr/sbin:/sbin"
    with _alone():
        _install()
        STATE.mkdir(parents=True, exist_ok=True)
        STATE.chmod(0o755)
        _munge()
        _database()
        if not is_up():  # other tests may run here, on a cluster without accounting
            write_config()
        _links()
        _start("slurmdbd", ["slurmdbd", "-D"], MYSQL_UNIX_PORT=str(STATE / "mysql/my.sock"))
        _until(lambda: _ok("sacctmgr", "-n", "show", "cluster"), "slurmdbd does not answer", "slurmdbd")
        _sacctmgr("add cluster tst")
        start_controller()
        _accounts()
        for node in (*NODES, "bare1"):
            start_node(node)
    for node, state in nodes().items():
        if state.startswith(("drain", "drng", "down")):  # left so by a test that was interrupted
            _ok("scontrol", "update", f"nodename={node}", "state=resume")
    ready = ("idle", "mix", "alloc", "comp")
    _until(lambda: all(s.startswith(ready) for s in nodes().values()), "some nodes are not ready", "slurmctld")


def is_up() -> bool:
    """Whether the controller of this cluster runs."""
    return _pid("slurmctld") is not None


def down() -> None:
    """Stop every process of the cluster by its id, and remove what it left."""
    for name in ("slurmctld", *(f"slurmd-{n}" for n in (*NODES, "bare1")), "slurmdbd", "mariadbd", "munged"):
        stop(name)
    for name in _LINKS:
        with contextlib.suppress(OSError):
            if (_ETC / name).readlink().parent == STATE:
                (_ETC / name).unlink()
    hosts = Path("/etc/hosts").read_text()
    kept = "".join(line for line in hosts.splitlines(keepends=True) if _MARK not in line)
    if kept != hosts:
        Path("/etc/hosts").write_text(kept)  # in place: a container has it mounted
    shutil.rmtree(STATE, ignore_errors=True)


def write_config(*, accounting: bool = True) -> None:
    """Write the configuration; ``accounting=False``: as on a cluster without slurmdbd."""
    _write("slurm.conf", slurm_conf(STATE, socket.gethostname(), accounting=accounting))
    _write("gres.conf", gres_conf(STATE))
    _write("slurmdbd.conf", slurmdbd_conf(STATE), mode=0o600)  # slurmdbd refuses any other
    for i in range(GPUS):
        device = STATE / f"fakegpu{i}"
        if not device.exists():
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # Slurm insists on a device
    for folder in ("ctld", *(f"spool-{n}" for n in (*NODES, "bare1"))):
        (STATE / folder).mkdir(exist_ok=True)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One at a time: the tests of two folders share the cluster."""
    with open(f"{STATE}.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(name: str, text: str, mode: int = 0o644) -> None:
    """Write a file at once: every command of Slurm's reads it, and those of other tests may run now."""
    draft = STATE / f"{name}.{os.getpid()}"
    draft.write_text(text)
    draft.chmod(mode)
    draft.replace(STATE / name)


def start_controller() -> None:
    """Start slurmctld, and wait for it."""
    _start("slurmctld", ["slurmctld", "-D"])
    _until(lambda: _ok("scontrol", "ping"), "slurmctld does not answer", "slurmctld")


def restart_controller(*, accounting: bool = True) -> None:
    """Stop slurmctld, change the configuration, start it again; jobs go on."""
    with _alone():
        stop("slurmctld")
        write_config(accounting=accounting)
        start_controller()


def start_node(node: str) -> None:
    """Start the slurmd of one node."""
    _start(f"slurmd-{node}", ["slurmd", "-D", "-N", node])


def stop(name: str, sig: signal.Signals = signal.SIGTERM) -> None:
    """End one daemon, and wait until it is gone; SIGKILL after a minute."""
    pid = _pid(name)
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)
    deadline = time.monotonic() + 60
    while _pid(name) is not None:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    (STATE / f"{name}.pid").unlink(missing_ok=True)


def nodes() -> dict[str, str]:
    """Node to state, as ``sinfo`` says."""
    done = subprocess.run(["sinfo", "-h", "-N", "-o", "%N %t"], capture_output=True, text=True, check=False)
    return dict(line.split() for line in done.stdout.splitlines()) if done.returncode == 0 else {"": "unknown"}


def _install() -> None:
    if all(shutil.which(program) for program in _PROGRAMS):
        return
    if not shutil.which("apt-get"):
        raise NoClusterHereError("Slurm is installed with apt-get, which is not here")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run([*command, "-qq"], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"{' '.join(command[:2])} failed: {done.stderr.strip()[-300:]}")


def _munge() -> None:
    if _ok("munge", "-n"):
        return
    Path("/run/munge").mkdir(exist_ok=True)
    Path("/run/munge").chmod(0o755)
    shutil.chown("/run/munge", "munge", "munge")
    for left in Path("/run/munge").iterdir():  # of a munged that was killed
        left.unlink()
    _start("munged", ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "-F"])
    _until(lambda: _ok("munge", "-n"), "munged does not answer", "munged")


def _database() -> None:
    data, sock = STATE / "mysql", STATE / "mysql/my.sock"
    data.mkdir(exist_ok=True)
    shutil.chown(data, "mysql", "mysql")
    if not (data / "mysql").exists():
        # TMPDIR may be a folder of root's alone.
        install = ["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={data}", f"--tmpdir={data}"]
        install += ["--skip-test-db"]
        subprocess.run([*install, "--auth-root-authentication-method=socket"], check=True, capture_output=True)
    options = ["--skip-networking", "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0"]
    files = [f"--datadir={data}", f"--socket={sock}", f"--pid-file={data}/my.pid", f"--tmpdir={data}"]
    _start("mariadbd", ["mariadbd", "--no-defaults", "--user=mysql", *files, *options])
    sql = "create database if not exists slurm_acct_db; create user if not exists root@localhost"
    _until(lambda: _ok("mariadb", "-S", str(sock), "-e", sql), "mariadbd does not answer", "mariadbd")


def _links() -> None:
    _ETC.mkdir(exist_ok=True)
    for name in _LINKS:
        link = _ETC / name
        if link.is_symlink():
            if link.readlink() == STATE / name:
                continue
            link.unlink()
        elif link.exists():
            raise NoClusterHereError(f"{link} is a file: this machine belongs to a cluster already")
        link.symlink_to(STATE / name)
    hosts = Path("/etc/hosts")
    known = hosts.read_text()
    new = "".join(f"127.0.0.1 {node} {_MARK}\n" for node in (*NODES, "bare1") if f" {node} {_MARK}" not in known)
    if new:  # in place: in a container it is mounted, and cannot be renamed
        hosts.write_text(known.rstrip("\n") + "\n" + new)


def _accounts() -> None:
    """One account, all users that the tests run as, and a QOS for each limit that a job can wait for."""
    show = subprocess.run(["sacctmgr", "-nP", "show", "qos", "format=name"], capture_output=True, text=True, check=True)
    if "fewcpus" in show.stdout.split():  # the last one that is made
        return
    for words in (
        "add account acct cluster=tst",
        "add user root account=acct defaultaccount=acct",
        "add qos onejob MaxJobsPerUser=1",
        "add qos onegpu MaxTRESPerUser=gres/gpu=1",
        "add qos fewcpus GrpTRES=cpu=2",
        "modify user root set qos=normal,onejob,onegpu,fewcpus",
    ):
        _sacctmgr(words)


def _sacctmgr(words: str) -> None:
    done = subprocess.run(["sacctmgr", "-i", *words.split()], capture_output=True, text=True, check=False)
    if done.returncode and "lready exist" not in done.stdout and "othing" not in done.stdout:
        raise ClusterError(f"sacctmgr {words}: {done.stdout.strip()} {done.stderr.strip()}")


def _start(name: str, argv: list[str], **env: str) -> None:
    if _pid(name) is not None:
        return
    with open(STATE / f"{name}.out", "ab") as log:
        process = subprocess.Popen(
            argv,
            env={**{k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "SLURM"))}, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (STATE / f"{name}.pid").write_text(str(process.pid))
    process.returncode = 0  # it outlives us on purpose: no warning when this object goes


def _pid(name: str) -> int | None:
    """The id of a daemon of ours that runs; a pid that another program has by now is not it."""
    try:
        pid = int((STATE / f"{name}.pid").read_text())
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    program = name.partition("-")[0].encode()
    return pid if any(os.path.basename(word) == program for word in command[:6]) else None


def _ok(*argv: str) -> bool:
    try:
        return subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _until(condition: Callable[[], bool], what: str, daemon: str, within_s: float = 120.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            words = (STATE / f"{daemon}.out").read_text(errors="replace").splitlines()[-3:]
            raise ClusterError(f"{what} after {within_s:g} s: {' | '.join(words)}")
        time.sleep(0.1)


def main(argv: list[str]) -> int:
    verbs: dict[str, Callable[[], None]] = {
        "up": up,
        "down": down,
        "restart": lambda: restart_controller(accounting="--no-accounting" not in argv),
    }
    if not argv or argv[0] not in verbs:
        print(__doc__)
        return 2
    try:
        verbs[argv[0]]()
    except ClusterError as e:
        print(f"cluster: {e}", file=sys.stderr)
        return 1
    if argv[0] != "down":
        print(" ".join(f"{node}={state}" for node, state in nodes().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
