"""torchx as a user runs it, from a shell of its own each time."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Shell:
    """Each call is a new process, with nothing in common with the last one but the home directory."""

    cwd: Path
    env: dict[str, str]

    def torchx(self, *args: str, check: bool = True, timeout_s: float = 300) -> str:
        """Standard output of a torchx command; stderr is in the assertion when it fails."""
        done = subprocess.run(
            ["torchx", *args],
            cwd=self.cwd,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, (
            f"torchx {' '.join(args)}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def launch(self, *args: str) -> str:
        """The handle of a job that was started, and goes on without us."""
        lines = [line for line in self.torchx("run", *args).splitlines() if "://" in line]
        assert lines, f"torchx run {' '.join(args)} printed no handle"
        return lines[-1].split()[-1]

    def start(self, *args: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(["torchx", *args], cwd=self.cwd, env=self.env, stdout=pipe, stderr=pipe, text=True)

    def session(self, *args: str) -> str:
        """A session, by somebody at a terminal who interrupts a command there and changes the window's size.

        Returns:
            The handle of the job, which ends with the shell.
        """
        import pexpect

        words = ["run", *args]
        child = pexpect.spawn(
            "torchx", words, cwd=str(self.cwd), env=self.env, encoding="utf-8", timeout=300, dimensions=(24, 90)
        )
        try:
            child.expect(r"(\w+://\S+)\r\n")
            handle = str(child.match.group(1))
            child.sendline("stty size; sh -c 'echo up-$((40 + 2)); exec sleep 1000'")
            child.expect("24 90\r\n")
            child.expect("up-42\r\n")
            child.sendintr()
            child.sendline("echo code=$?")
            child.expect("code=130")
            child.setwinsize(31, 77)
            child.sendline("until [ \"$(stty size)\" = '31 77' ]; do sleep 0.05; done; exit 5")
            child.expect("has ended")
            child.expect(pexpect.EOF)
            child.wait()
            assert child.exitstatus == 5, child.before
        finally:
            child.close(force=True)
        return handle
