"""A Docker engine, a registry and an image for tests: installs what is missing, starts what is down, idempotent, as root.

As a program::

    python -m tests.backends.docker.engine up         # the engine on /var/run/docker.sock, unless one answers already
    python -m tests.backends.docker.engine image      # torchx-test/python:1, made of this machine's own packages
    python -m tests.backends.docker.engine registry   # a registry on 127.0.0.1:5000
    python -m tests.backends.docker.engine down       # stops what `up` and `registry` started, and nothing else

State lies below ``$TORCHX_BACKENDS`` (default ``/var/tmp/torchx-backends``), in ``docker``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SOCKET = "/var/run/docker.sock"
IMAGE = "torchx-test/python:1"
REGISTRY = "127.0.0.1:5000"
BACKENDS = Path(os.environ.get("TORCHX_BACKENDS", "/var/tmp/torchx-backends"))
STATE = BACKENDS / "docker"
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"

# A root without CAP_SYS_RESOURCE (a container, a sandbox) may not lower oom_score_adj, which a kubelet asks for its pods,
# nor give the capability to privileged containers; runc dies of both.
_RUNTIME = """#!/bin/sh
bundle= last=
for arg in "$@"; do [ "$last" = --bundle ] && bundle=$arg; last=$arg; done
if [ -n "$bundle" ] && [ -f "$bundle/config.json" ]; then
    sed -i -e 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' DROP "$bundle/config.json"
fi
exec runc "$@"
"""
_DROP = """-e 's/"CAP_SYS_RESOURCE",//g'"""
_CAP_SYS_RESOURCE = 24

_PACKAGES = [
    *("base-files", "bash", "coreutils", "dash", "grep", "sed", "findutils", "hostname", "procps", "iproute2"),
    *("libstdc++6", "libgomp1", "libc-bin", "netbase", "tzdata", "ca-certificates", "python3"),
]
_NOT_NEEDED = {"perl", "perl-base", "media-types"}
_LEFT_OUT = ("doc", "man", "locale", "info", "lintian", "zoneinfo")


# Of this process, until they are ended: Python warns of those that nobody waits for.
_processes: list[subprocess.Popen[bytes]] = []


class Unavailable(Exception):
    """What is needed cannot be had on this machine; the text says why."""


class Engine:
    """One ``dockerd`` with a state folder, a socket and (unless it is the machine's own) a network of its own.

    Args:
        state: its folder.
        socket: where it answers.
        own_network: it runs in a network namespace of its own, so that its firewall rules disturb no other engine.
    """

    def __init__(self, state: Path, socket: str, *, own_network: bool = False) -> None:
        self.state = state
        self.socket = socket
        self.own_network = own_network
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """What belongs in ``DOCKER_HOST``."""
        return f"unix://{self.socket}"

    @property
    def pidfile(self) -> Path:
        return self.state / "dockerd.pid"

    def answers(self) -> bool:
        return run("docker", "-H", self.host, "version", "--format", "{{.Server.Version}}", check=False) != ""

    def start(self, *options: str) -> None:
        """Start it and wait until it answers."""
        install("dockerd", "docker.io")
        install("iptables", "iptables")
        self.state.mkdir(parents=True, exist_ok=True)
        runtime = _write_runtime(self.state)
        self.pidfile.unlink(missing_ok=True)
        argv = [
            "dockerd",
            "--host",
            self.host,
            "--data-root",
            f"{self.state}/data",
            "--exec-root",
            f"{self.state}/exec",
        ]
        argv += ["--pidfile", str(self.pidfile), "--storage-driver", "overlay2"]
        argv += ["--add-runtime", f"tolerant={runtime}", "--default-runtime", "tolerant", *options]
        if self.own_network:
            argv = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *argv]
        log = self.state / "dockerd.log"
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=environment(),
            )
        until(self.answers, "the engine does not answer", log=log, process=self.process)

    def stop(self, sig: int = signal.SIGTERM) -> None:
        """End it (not its containers' records) and wait until it is gone."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            end(int(self.pidfile.read_text()), sig)
        if self.process is not None:
            self.process.wait(120)
            self.process = None
        _reap(self._containerd())

    def remove(self) -> None:
        """End it and remove all that it holds."""
        for container in run("docker", "-H", self.host, "ps", "-aq", check=False).split():
            run("docker", "-H", self.host, "rm", "-f", "-v", container, check=False)
        self.stop()
        with contextlib.suppress(ProcessLookupError):
            if pid := self._containerd():
                end(pid, signal.SIGTERM)
        unmount(self.state)
        Path(self.socket).unlink(missing_ok=True)

    def _containerd(self) -> int:
        """Its part that starts containers; it may outlive a kill. 0: there is none."""
        try:
            return int((self.state / "exec/containerd/containerd.pid").read_text())
        except (FileNotFoundError, ValueError):
            return 0


def up() -> bool:
    """The engine of this machine answers. True: we have started it, and it goes on when we end.

    Raises:
        Unavailable: there is none, and none can be started.
    """
    machine = Engine(STATE, SOCKET)
    with _lock():
        install("docker", "docker.io")
        if run("docker", "version", "--format", "{{.Server.Version}}", check=False):
            return False
        if os.environ.get("DOCKER_HOST"):
            raise Unavailable(f"no engine answers at DOCKER_HOST={os.environ['DOCKER_HOST']}")
        machine.start()
    _processes.append(machine.process)
    return True


def down() -> None:
    """Ends the engine and the registry that :func:`up` and :func:`registry` have started; images stay."""
    if (STATE / "dockerd.pid").exists():
        for container in run("docker", "ps", "-aq", check=False).split():
            run("docker", "rm", "-f", "-v", container, check=False)
    for name in ("dockerd.pid", "registry.pid"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            end(int((STATE / name).read_text()), signal.SIGTERM)
        (STATE / name).unlink(missing_ok=True)
    while _processes:
        _processes.pop().wait(120)


def image(tag: str = IMAGE, host: str = "") -> str:
    """A small image with bash, coreutils, python3: from this machine's Debian packages, for no registry can be reached.

    Args:
        host: the engine's, when it is not the machine's own.
    """
    docker = ("docker", "-H", host) if host else ("docker",)
    with _lock():
        if not run(*docker, "images", "-q", tag):
            with tempfile.TemporaryDirectory() as folder:
                _make_root(Path(folder))
                tar = subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE)
                changes = ("--change", 'CMD ["bash"]', "--change", "ENV PATH=/usr/local/bin:/usr/bin:/bin")
                subprocess.run(
                    [*docker, "import", *changes, "-", tag], stdin=tar.stdout, check=True, capture_output=True
                )
                tar.stdout.close()
                if tar.wait():
                    raise Unavailable(f"the files of the image could not be packed: tar says {tar.returncode}")
    return tag


def registry() -> bool:
    """A registry answers on 127.0.0.1:5000. True: we have started it, and it goes on when we end."""
    host, _, port = REGISTRY.partition(":")
    with _lock():
        if _listens(host, int(port)):
            return False
        install("docker-registry", "docker-registry")
        STATE.mkdir(parents=True, exist_ok=True)
        config = STATE / "registry.yml"
        config.write_text(
            f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {STATE}/registry}}, delete: {{enabled: true}}}}\n"
            f'http: {{addr: "{REGISTRY}"}}\n'
        )
        log = STATE / "registry.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                ["docker-registry", "serve", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=environment(),
            )
        _processes.append(process)
        (STATE / "registry.pid").write_text(str(process.pid))
        until(lambda: _listens(host, int(port)), "the registry does not answer", log=log, process=process)
    return True


# -- parts --------------------------------------------------------------------------------------------


def run(*argv: str, check: bool = True, timeout_s: float = 300) -> str:
    """Standard output of a command, stripped; empty when it fails and that does not matter."""
    env = {**os.environ, "PATH": PATH, "LC_ALL": "C"}
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False, env=env)
    except FileNotFoundError:
        if check:
            raise
        return ""
    if check and done.returncode:
        raise Unavailable(f"`{' '.join(argv)}` failed: {done.stderr.strip()[-2000:]}")
    return done.stdout.strip() if done.returncode == 0 else ""


def install(program: str, package: str) -> None:
    """``program`` is on PATH, by ``apt`` if need be."""
    if shutil.which(program, path=PATH):
        return
    if os.geteuid() or not shutil.which("apt-get"):
        raise Unavailable(f"`{program}` is not installed, and only root can install it by apt")
    apt = ("apt-get", "-qq", "-y", "-o", "DPkg::Lock::Timeout=300")
    os.environ.setdefault("DEBIAN_FRONTEND", "noninteractive")
    for _ in range(3):  # somebody else's update may hold the lists
        run(*apt, "install", "--no-install-recommends", package, check=False)
        if shutil.which(program, path=PATH):
            return
        run(*apt, "update", check=False)
        time.sleep(1)
    run(*apt, "install", "--no-install-recommends", package)


def until(
    condition: Callable[[], object], else_: str, *, log: Path, process: subprocess.Popen[bytes], timeout_s: float = 180
) -> None:
    """Wait for it.

    Raises:
        Unavailable: it did not come true, or the process ended; with the end of its log.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise Unavailable(f"{else_}; it said:\n{tail}")
        time.sleep(0.1)


def end(pid: int, sig: int, timeout_s: float = 120) -> None:
    """Signal a process and wait until it is gone; SIGKILL when it takes too long."""
    os.kill(pid, sig)
    deadline = time.monotonic() + timeout_s
    while _lives(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _reap(pid: int) -> None:
    """A dead child that nobody has waited for looks alive: to the next engine, which would wait for its answer."""
    deadline = time.monotonic() + 60
    with contextlib.suppress(ChildProcessError):
        while pid and _lives(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        if pid:
            os.waitpid(pid, os.WNOHANG)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def unmount(folder: Path) -> None:
    """Removes a folder and what is mounted in it."""
    for mount in reversed(Path("/proc/mounts").read_text().splitlines()):
        if (at := mount.split()[1]).startswith(f"{folder}/"):
            run("umount", "-l", at, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def environment() -> dict[str, str]:
    """Without the mark by which a test run knows its processes: containers' shims would inherit it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TORCHX", "TMPDIR"))}
    return {**kept, "PATH": PATH}


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write_runtime(folder: Path) -> Path:
    status = Path("/proc/self/status").read_text()
    bounding = int(next(line for line in status.splitlines() if line.startswith("CapBnd:")).split()[1], 16)
    runtime = folder / "runtime"
    new = runtime.with_suffix(".new")
    new.write_text(_RUNTIME.replace("DROP", "" if bounding >> _CAP_SYS_RESOURCE & 1 else _DROP))
    new.chmod(0o755)
    new.replace(runtime)  # containers may be starting
    return runtime


def _make_root(root: Path) -> None:
    """Fill ``root`` with the files of ``_PACKAGES`` and of all that they depend on."""
    for folder in (
        "usr/bin",
        "usr/sbin",
        "usr/lib",
        "usr/lib64",
        "etc",
        "tmp",
        "var/tmp",
        "root",
        "proc",
        "sys",
        "dev",
    ):
        (root / folder).mkdir(parents=True)
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    listed = run("dpkg-query", "-L", *_closure(_PACKAGES)).splitlines()
    files = root / "tmp/files"
    with files.open("w") as out:
        for path in sorted(set(listed)):
            left_out = any(path.startswith(f"/usr/share/{name}/") for name in _LEFT_OUT)
            if not left_out and (os.path.islink(path) or os.path.isfile(path)):
                merged = path if path.startswith(("/usr/", "/etc/", "/var/")) else f"/usr{path}"
                if os.path.lexists(merged):
                    print(f".{merged}", file=out)
    pack = subprocess.Popen(["tar", "-C", "/", "-c", "--no-recursion", "-T", files], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-C", root, "-x"], stdin=pack.stdout, check=True)
    pack.stdout.close()
    if pack.wait():
        raise Unavailable("the files of this machine's packages could not be read")
    files.unlink()
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    (root / "usr/bin/python").symlink_to("python3")
    run("ldconfig", "-r", str(root))


def _closure(packages: list[str]) -> list[str]:
    """The packages and their dependencies, as far as they are installed."""
    fields = "${Package}\t${Status}\t${Pre-Depends},${Depends}\n"
    depends: dict[str, list[str]] = {}
    for line in run("dpkg-query", "-W", "-f", fields).splitlines():
        name, status, needs = line.split("\t")
        if status.endswith(" installed"):
            words = needs.replace("|", ",").split(",")
            depends[name] = [word.split("(")[0].strip().removesuffix(":any") for word in words]
    found: set[str] = set()
    todo = list(packages)
    while todo:
        name = todo.pop()
        if name in depends and name not in found and name not in _NOT_NEEDED:
            found.add(name)
            todo += depends[name]
    return sorted(found)


def main() -> int:
    commands: dict[str, Callable[[], object]] = {"up": up, "image": image, "registry": registry, "down": down}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        print(f"usage: python -m tests.backends.docker.engine {'|'.join(commands)}", file=sys.stderr)
        return 2
    try:
        commands[sys.argv[1]]()
    except Unavailable as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
