"""Root file systems with other releases of Slurm, as Debian and Ubuntu package them.

``python -m tests.backends.slurm.roots trixie sid ...`` makes them, as root, each in a minute or two; they are kept in
``${XDG_CACHE_HOME:-~/.cache}/torchx-ci`` and never changed. The mirror is the machine's own. For the other distribution
(Ubuntu's on Debian, or the other way round) it is ``$TORCHX_DEBIAN_MIRROR`` or ``$TORCHX_UBUNTU_MIRROR``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchx-ci"
_KEYRINGS = "usr/share/keyrings"
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*", "/usr/share/info/*")
_COMMON = (
    *("slurmctld", "slurmd", "slurm-client", "slurmdbd", "slurm-wlm-basic-plugins", "munge", "mariadb-server"),
    *("python3-minimal", "libpython3-stdlib", "iproute2", "procps", "mount"),
)


class NoRootHereError(Exception):
    """The root file system cannot be had on this machine; the text says why."""


@dataclass(frozen=True)
class Root:
    """One of them.

    Attributes:
        slurm: the release that it had when this was written; a rolling suite goes on.
        more: packages that the others do not have.
    """

    suite: str
    slurm: str
    distribution: str = "debian"
    more: tuple[str, ...] = ()

    @property
    def packages(self) -> tuple[str, ...]:
        return (*_COMMON, *self.more)

    @property
    def path(self) -> Path:
        """Where it is kept. Other packages are another one."""
        mark = hashlib.sha256(" ".join(self.packages).encode()).hexdigest()[:8]
        return CACHE / f"slurm-{self.suite}-{mark}"


_PLUGIN = "slurm-wlm-mysql-plugin"  # a package of its own since 22.05
ROOTS = {
    root.suite: root
    for root in (
        Root("bullseye", "20.11"),
        Root("jammy", "21.08", "ubuntu"),
        Root("noble", "23.11", "ubuntu", (_PLUGIN,)),
        Root("trixie", "24.11", more=(_PLUGIN, "ubuntu-archive-keyring")),
        Root("resolute", "25.11", "ubuntu", (_PLUGIN,)),
        Root("sid", "26.05", more=(_PLUGIN, "apptainer", "fuse-overlayfs", "squashfuse", "busybox-static")),
    )
}


def make(suite: str) -> Path:
    """The root file system of a suite, made now if it is not there yet.

    Raises:
        NoRootHereError: not root, no apt, no mirror, or packages that cannot be had.
    """
    root = ROOTS[suite]
    if os.geteuid() != 0:
        raise NoRootHereError("a root file system is made by root")
    if root.path.is_dir():
        return root.path
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"slurm-{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.path.is_dir():
            _build(root)
    return root.path


def _build(root: Root) -> None:
    tool = _tool()
    mirror, keyring = _mirror(root.distribution), _keyring(root.distribution)
    unfinished = root.path.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    options = [
        *("--mode=root", "--variant=apt", "--dpkgopt=force-unsafe-io", f"--include={','.join(root.packages)}"),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT),
        f"--components={'main,universe' if root.distribution == 'ubuntu' else 'main'}",
        '--aptopt=APT::Install-Recommends "false"',
        # The lists of rolling suites run out after a week, on mirrors that lag too; their signature is still checked.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        f"--keyring={keyring}",
    ]
    argv = [tool, *options, root.suite, str(unfinished), mirror]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(unfinished, ignore_errors=True)
        said = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        raise NoRootHereError(f"{root.suite} cannot be installed: {' '.join(said or done.stderr.splitlines()[-2:])}")
    for old in CACHE.glob(f"slurm-{root.suite}-*"):
        if old != unfinished:
            shutil.rmtree(old, ignore_errors=True)
    unfinished.rename(root.path)


def _tool() -> str:
    if not shutil.which("apt-get"):
        raise NoRootHereError("apt-get is not here")
    if not shutil.which("mmdebstrap"):
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for argv in (["update"], ["install", "-y", "--no-install-recommends", "mmdebstrap"]):
            done = subprocess.run(["apt-get", "-qq", *argv], env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NoRootHereError(f"apt-get {argv[0]}: {done.stderr.strip()[-300:]}")
    return "mmdebstrap"


def _mirror(distribution: str) -> str:
    variable = f"TORCHX_{distribution.upper()}_MIRROR"
    if given := os.environ.get(variable):
        return given
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)"], capture_output=True, text=True, check=False
    )
    for origin, _, uri in (line.partition(" ") for line in targets.stdout.splitlines()):
        if origin.lower() == distribution and not re.search(r"security", uri):
            return uri
    raise NoRootHereError(f"apt has no mirror of {distribution.title()} here, and ${variable} is not set")


def _keyring(distribution: str) -> Path:
    name = f"{distribution}-archive-keyring.gpg"
    here = Path("/") / _KEYRINGS / name
    if here.exists():
        return here
    if distribution == "ubuntu":  # Debian's, whose own key is known, vouches for Ubuntu's
        return make("trixie") / _KEYRINGS / name
    raise NoRootHereError(f"{here} is not here: the package {distribution}-archive-keyring has it")


def main(suites: Sequence[str]) -> int:
    if not suites or set(suites) - set(ROOTS):
        print(f"usage: python -m tests.backends.slurm.roots {'|'.join(ROOTS)} ...")
        return 2
    for suite in suites:
        since = time.monotonic()
        try:
            print(f"{suite}: {make(suite)} ({time.monotonic() - since:.0f} s)", flush=True)
        except NoRootHereError as e:
            print(f"{suite}: {e}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
