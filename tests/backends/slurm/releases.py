"""Slurm clusters of other releases, each in namespaces of its own, beside whatever else runs on this machine.

``python -m tests.backends.slurm.releases up trixie | down trixie | enter trixie [COMMAND ...]``, as root. The file
system comes from :mod:`tests.backends.slurm.roots`; what the cluster writes goes to
``/var/tmp/torchx-test-slurm-<suite>``. It has processes, network, host name and mounts of its own: ``down`` ends one
process, and all of it is gone. ``/tmp`` is the same inside and outside. Slurm's commands are called from outside by
scripts in ``/var/tmp/torchx-test-slurm-<suite>/bin``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.backends.slurm import roots
from tests.backends.slurm.cluster import ClusterError, NoClusterHereError
from tests.backends.slurm.conf import GPUS, NODES, gres_conf, slurm_conf, slurmdbd_conf

COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo", "srun", "sacctmgr")
HOST = "login"
_ALL_NODES = (*NODES, "bare1")
_INSIDE = Path("/var/lib/torchx-slurm")  # the state of the daemons, as they see it
_CGROUPS = Path("/sys/fs/cgroup")
_CGROUP_SUITES = ("noble", "trixie", "resolute")

# What is done first in the new namespaces, and then waited for until the end: the first process of all.
_INIT = r"""
set -e
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$state/upper,workdir=$state/work" "$state/root"
cd "$state/root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mount --bind /tmp tmp
hostname "$host"
mkdir -p .outside
pivot_root . .outside
umount -l /.outside
ip link set lo up
ip addr add 192.0.2.1/32 dev lo  # names are looked up only by a host that has an address
touch /run/ready
while :; do sleep 1000 & wait || :; done
"""


@dataclass(frozen=True)
class Release:
    """The cluster of one suite."""

    suite: str

    @property
    def state(self) -> Path:
        return Path(f"{os.environ.get('TORCHX_TEST_SLURM', '/var/tmp/torchx-test-slurm')}-{self.suite}")

    @property
    def bin(self) -> Path:
        """Slurm's commands as scripts that go inside, for ``PATH``."""
        return self.state / "bin"

    # -- up and down -----------------------------------------------------------------------------

    def up(self) -> None:
        """Make the file system if there is none yet, start what does not run, wait until all nodes are ready.

        Raises:
            ClusterError: a daemon does not start: its last words.
            NoClusterHereError: it cannot be had on this machine.
        """
        try:
            lower = roots.make(self.suite)
        except roots.NoRootHereError as e:
            raise NoClusterHereError(str(e)) from e
        with (roots.CACHE / f"slurm-{self.suite}.up.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.is_up():
                return
            self.down()
            try:
                self._configure()
                self._namespaces(lower)
                self._start_all()
            except BaseException:
                self.down()
                raise

    def is_up(self) -> bool:
        """Whether the first process of the cluster lives, and the cluster had come up."""
        return self._first() is not None and (self.state / "ready").exists()

    def down(self) -> None:
        """End everything, and remove what it left."""
        if (pid := self._first()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _until(lambda: self._first() is None, f"process {pid} does not end")
        if self.suite in _CGROUP_SUITES:
            for node in _ALL_NODES:
                for folder in sorted(_CGROUPS.glob(f"*/slurm_{node}/**/"), key=lambda p: -len(p.parts)):
                    with contextlib.suppress(OSError):  # another release has it in use
                        folder.rmdir()
        shutil.rmtree(self.state, ignore_errors=True)

    def argv(self, *command: str) -> list[str]:
        """The command as it is called from outside."""
        pid = self._first()
        if pid is None:
            raise ClusterError(f"the cluster of {self.suite} is down")
        return ["nsenter", f"--target={pid}", *_NAMESPACES, *command]

    def run(self, *command: str, check: bool = True, stdin: str = "") -> str:
        """What a command says inside.

        Raises:
            ClusterError: it failed, and is not to.
        """
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        done = subprocess.run(
            self.argv(*command), input=stdin, capture_output=True, text=True, check=False, env=env, timeout=120
        )
        if check and done.returncode:
            raise ClusterError(f"{shlex.join(command)}: {done.stdout.strip()} {done.stderr.strip()}")
        return done.stdout

    def ok(self, *command: str) -> bool:
        try:
            self.run(*command)
        except ClusterError:
            return False
        return True

    def nodes(self) -> dict[str, str]:
        """Node to state, as ``sinfo`` says."""
        return dict(line.split() for line in self.run("sinfo", "-h", "-N", "-o", "%N %t", check=False).splitlines())

    def version(self) -> str:
        """``24.11``, as the cluster itself says."""
        found = re.search(r"\d+\.\d+", self.run("sinfo", "--version"))
        assert found is not None
        return found[0]

    # -- parts -----------------------------------------------------------------------------------

    def _first(self) -> int | None:
        """The cluster's first process, as seen from outside."""
        try:
            pid = int((self.state / "pid").read_text())
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            ours = f"state={self.state}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if ours else None

    def _namespaces(self, lower: Path) -> None:
        for name in ("upper", "work", "root", "bin"):
            (self.state / name).mkdir(parents=True, exist_ok=True)
        self.state.chmod(0o755)
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "host": HOST}
        env |= {"state": str(self.state), "lower": str(lower)}
        with (self.state / "init.out").open("wb") as log:
            outer = subprocess.Popen(
                ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "bash", "-c", _INIT],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        outer.returncode = 0  # it outlives us on purpose: no warning when this object goes
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")

        def begun() -> bool:
            try:
                (self.state / "pid").write_text(children.read_text().split()[0])
            except (OSError, IndexError):
                return False
            return self.ok("test", "-e", "/run/ready")

        _until(begun, "no namespaces", log=self.state / "init.out")
        for name in COMMANDS:
            script = self.bin / name
            script.write_text(f'#!/bin/sh\nexec {shlex.join(self.argv())} {name} "$@"\n')
            script.chmod(0o755)

    def _configure(self) -> None:
        """Write the files that the cluster begins with; once it is mounted nobody may write below it."""
        inside = self.state / "upper"
        var = inside / str(_INSIDE)[1:]
        for folder in ("ctld", *(f"spool-{node}" for node in _ALL_NODES)):
            (var / folder).mkdir(parents=True, exist_ok=True)
        for i in range(GPUS):
            os.mknod(var / f"fakegpu{i}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # Slurm insists on a device
        files = {
            "slurm.conf": self._slurm_conf(),
            "gres.conf": gres_conf(_INSIDE),
            "slurmdbd.conf": slurmdbd_conf(_INSIDE),
        }
        if cgroups := self._cgroup_conf():
            files["cgroup.conf"] = cgroups
        (inside / "etc/slurm").mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (inside / "etc/slurm" / name).write_text(text)
        (inside / "etc/slurm/slurmdbd.conf").chmod(0o600)  # slurmdbd refuses any other
        hosts = "".join(f"127.0.0.1 {name}\n" for name in ("localhost", HOST, *_ALL_NODES))
        (inside / "etc/hosts").write_text(hosts)

    def has_cgroups(self) -> bool:
        """Whether jobs are held to their memory by cgroups."""
        return (_CGROUPS / "memory/tasks").exists() and self.suite in ("trixie", "resolute")

    def _slurm_conf(self) -> str:
        text = slurm_conf(_INSIDE, HOST, accounting=True)
        if self.has_cgroups():
            text = _set(text, ProctrackType="proctrack/cgroup", TaskPlugin="task/cgroup")
            text = text.replace("JobAcctGatherParams=OverMemoryKill\n", "")
        # In 26.05 a partition cannot take the default of the cluster back.
        text = text.replace("DefMemPerCPU=100\n", "").replace(
            " State=UP\nPartitionName=", " DefMemPerCPU=100 State=UP\nPartitionName="
        )
        text = text.replace("DefMemPerCPU=0 DefMemPerCPU=100", "")
        if self.suite == "bullseye":  # the older names
            text = text.replace("AccountingStoreFlags=job_comment,job_script,job_env", "AccountingStoreJobComment=YES")
        return text

    def _cgroup_conf(self) -> str:
        if self.suite in ("bullseye", "jammy"):  # which can do without if nobody tells them so
            return ""
        if self.has_cgroups() or self.suite == "noble":  # which cannot do without
            hold = "yes" if self.has_cgroups() else "no"
            return f"CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nConstrainRAMSpace={hold}\n"
        return "CgroupPlugin=disabled\n"

    def _start_all(self) -> None:
        log = self.state / "upper" / str(_INSIDE)[1:]
        self.run("sh", "-c", _MUNGE)
        _until(lambda: self.ok("munge", "-n"), "munged does not answer")
        self.run("sh", "-c", _MARIADB.format(data=_INSIDE / "mysql"))
        sql = "create database if not exists slurm_acct_db; create user if not exists root@localhost"
        _until(lambda: self.ok("mariadb", "--socket=/run/mysqld/mysqld.sock", "-e", sql), "mariadbd does not answer")
        self.run("env", "MYSQL_UNIX_PORT=/run/mysqld/mysqld.sock", "slurmdbd")
        _until(lambda: self.ok("sacctmgr", "-n", "show", "cluster"), "slurmdbd is silent", log=log / "slurmdbd.log")
        self.run("sacctmgr", "-i", "add", "cluster", "tst")
        self.start_controller()
        for words in _ACCOUNTS:
            self.run("sacctmgr", "-i", *words.split())
        for node in _ALL_NODES:
            self.start_node(node)
        ready = lambda: all(state.startswith("idle") for state in self.nodes().values())  # noqa: E731  # one line
        _until(ready, "some nodes are not ready", log=log / "slurmctld.log")
        (self.state / "ready").touch()

    def start_controller(self) -> None:
        self.run("slurmctld")
        log = self.state / "upper" / str(_INSIDE)[1:] / "slurmctld.log"
        _until(lambda: self.ok("scontrol", "ping"), "slurmctld is silent", log=log)

    def start_node(self, node: str) -> None:
        self.run("slurmd", "-N", node)


_NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc", "--")
_MUNGE = """
test -s /etc/munge/munge.key || dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 2>/dev/null
chmod 400 /etc/munge/munge.key
mkdir -p /run/munge /var/log/munge /var/lib/munge
chown munge:munge /etc/munge/munge.key /run/munge /var/log/munge /var/lib/munge
exec setpriv --reuid=munge --regid=munge --clear-groups munged
"""
_MARIADB = """
mkdir -p {data} /run/mysqld
chown mysql: {data} /run/mysqld
mariadb-install-db --no-defaults --user=mysql --datadir={data} --skip-test-db --auth-root-authentication-method=socket
setsid mariadbd --no-defaults --user=mysql --datadir={data} --socket=/run/mysqld/mysqld.sock --skip-networking \
  --innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=0 </dev/null >{data}.log 2>&1 &
"""
# One account, and a QOS for each limit that a job can wait for.
_ACCOUNTS = (
    "add account acct cluster=tst",
    "add user root account=acct defaultaccount=acct",
    "add qos onejob MaxJobsPerUser=1",
    "add qos onegpu MaxTRESPerUser=gres/gpu=1",
    "add qos fewcpus GrpTRES=cpu=2",
    "modify user root set qos=normal,onejob,onegpu,fewcpus",
)


def _set(conf: str, **values: str) -> str:
    """The configuration with other values."""
    for key, value in values.items():
        conf = re.sub(rf"(?m)^{key}=.*$", f"{key}={value}", conf)
    return conf


def _until(condition: Callable[[], bool], what: str, *, log: Path | None = None, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        words = log.read_text(errors="replace").splitlines()[-3:] if log is not None and log.exists() else []
        if time.monotonic() > deadline or any("] fatal: " in line for line in words):
            raise ClusterError(f"{what} after {within_s:g} s: {' | '.join(words)}")
        time.sleep(0.1)


def main(argv: Sequence[str]) -> int:
    if len(argv) < 2 or argv[0] not in ("up", "down", "enter") or argv[1] not in roots.ROOTS:
        print(__doc__)
        return 2
    release = Release(argv[1])
    try:
        if argv[0] == "enter":
            return subprocess.run(release.argv(*(argv[2:] or ["bash"])), check=False).returncode
        (release.up if argv[0] == "up" else release.down)()
    except ClusterError as e:
        print(f"{argv[1]}: {e}", file=sys.stderr)
        return 1
    if argv[0] == "up":
        print(release.version(), " ".join(f"{node}={state}" for node, state in release.nodes().items()))
        print(f"PATH={release.bin}:$PATH")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
