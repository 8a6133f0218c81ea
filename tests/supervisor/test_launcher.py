"""The guardian of local jobs after its caller: it sleeps while a job runs, and ends with the last one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# A guardian in a process of its own, for it waits for any child and handles SIGCHLD. Nobody holds the writing end of
# its pipe of news any more: the caller has gone, and the supervisor of the one job has let go, as those of jobs that
# last do. `FORK` says whether there is such a supervisor; it ends once nothing but a child can wake the guardian.
GUARDIAN = """
import os, select, sys

from torchx.supervisor import launcher

news, polls = -1, 0
hold, release = os.pipe()


class Poll:
    def __init__(self):
        self.of, self.registered = real(), set()

    def register(self, fd, events):
        self.registered.add(fd)
        self.of.register(fd, events)

    def unregister(self, fd):
        self.registered.discard(fd)
        self.of.unregister(fd)

    def poll(self, *args):
        global polls, release
        polls += 1
        if polls == 1000:
            os._exit(9)
        if news not in self.registered and release >= 0:
            os.close(release)
            release = -1
        return self.of.poll(*args)


real, select.poll = select.poll, Poll
requests, answers = os.pipe()
guardian = launcher.Launcher(requests, answers)
news = guardian._news
pid = os.fork() if FORK else 999_999_999
if not pid:
    os.close(release)
    guardian._close()
    os.read(hold, 1)
    os._exit(0)
guardian.jobs[pid] = sys.argv[1]
guardian._close()
guardian.run()
print(polls, guardian.jobs)
"""


@pytest.mark.parametrize("supervisor", [True, False], ids=["a job runs", "nobody is left"])
def test_a_guardian_without_a_caller_does_not_spin(tmp_path, supervisor) -> None:
    """The end of the news is heard once; then it waits for children alone, and ends when there is none."""
    program = GUARDIAN.replace("FORK", str(supervisor))
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode != 9, "it spins in its poll"
    assert done.returncode == 0, done.stderr
    polls, jobs = done.stdout.split()
    assert int(polls) <= 3
    assert jobs == "{}"
    assert os.listdir(tmp_path) == []
