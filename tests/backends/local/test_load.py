"""Many replicas, many jobs, much output: nothing lost, nothing of ours grows."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.backends.leftovers import resident_peak_mb
from torchx.schedulers.api import Stream
from torchx.specs.api import AppState
from torchx.supervisor.layout import COMBINED_LOG
from torchx.supervisor.statefile import read_state

from .conftest import ended, eventually, lines


def test_a_thousand_replicas(scheduler, submit) -> None:
    """A thousand replicas are started, described, and each one's log is there."""
    app_id = submit("echo ${replica_id}", 1000)
    described = ended(scheduler, app_id, 300)
    assert described.state == AppState.SUCCEEDED
    assert len(described.roles_statuses[0].replicas) == 1000
    for k in (0, 1, 500, 999):
        assert lines(scheduler, app_id, k) == [f"{k}\n"]


def test_much_output_is_complete_and_the_supervisor_stays_small(scheduler, submit, tmp_path) -> None:
    """100 MB to stdout and lines to stderr beside it: complete to the byte, and under 60 MB of memory."""
    code = (
        "import sys\n"
        "block = ''.join(f'{i:09d} some text to fill the line\\n' for i in range(10000))\n"
        "for i in range(256):\n"
        "    sys.stdout.write(block); sys.stdout.flush()\n"
        "    sys.stderr.write(f'mark {i}\\n'); sys.stderr.flush()\n"
        "sys.stdin.read()\n"
    )
    seen = tmp_path / "seen"
    app_id = submit(f'{sys.executable} -c "{code}"; while [ ! -e {seen} ]; do sleep 0.01; done')
    folder = scheduler._jobs.find(app_id)
    supervisor = read_state(os.path.join(folder, "state")).supervisor
    block = "".join(f"{i:09d} some text to fill the line\n" for i in range(10000))
    combined = os.path.join(folder, "r/0", COMBINED_LOG)
    eventually(lambda: os.path.exists(combined))
    peak = 0.0

    def done() -> bool:
        nonlocal peak
        peak = max(peak, resident_peak_mb(supervisor))
        if os.path.getsize(combined) >= len(block) * 256:
            seen.touch()
        return scheduler.describe(app_id).state == AppState.SUCCEEDED

    eventually(done, 300)
    assert 0 < peak < 60
    wanted = block.splitlines(keepends=True) * 256
    for stream, extra in ((Stream.STDOUT, 0), (Stream.COMBINED, 256)):
        got = lines(scheduler, app_id, streams=stream)
        assert len(got) == 2_560_000 + extra
        assert [line for line in got if not line.startswith("mark")] == wanted
        del got
    assert lines(scheduler, app_id, streams=Stream.STDERR) == [f"mark {i}\n" for i in range(256)]


def test_followers_of_many_writers_get_every_line(scheduler, submit) -> None:
    """16 replicas write at once, each followed: every line arrives, whole and in order, and following ends."""
    from concurrent.futures import ThreadPoolExecutor

    loop = "i=0; while [ $i -lt 2000 ]; do echo ${replica_id} $i; i=$((i+1)); done"
    app_id = submit(loop, 16)
    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(lambda k: lines(scheduler, app_id, k, should_tail=True), range(16)))
    for k, received in enumerate(got):
        assert received == [f"{k} {i}\n" for i in range(2000)]


def test_parallel_submissions_from_many_processes(scheduler) -> None:
    """Jobs of 12 processes at once: none lost, none twice."""
    code = """
import sys
from torchx.schedulers.local_scheduler import create_scheduler
from torchx.specs.api import AppDef, Role
s = create_scheduler("test")
for i in range(3):
    print(s.submit(AppDef("job", [Role("r", "", entrypoint="echo", args=[sys.argv[1] + "." + str(i)])]), {}))
"""
    callers = [
        subprocess.Popen([sys.executable, "-c", code, str(n)], stdout=subprocess.PIPE, text=True) for n in range(12)
    ]
    ids = [line for c in callers for line in c.communicate(timeout=300)[0].split()]
    assert len(ids) == len(set(ids)) == 36
    assert sorted(job.app_id for job in scheduler.list()) == sorted(ids)
    said = sorted(line for i in ids if ended(scheduler, i) for line in lines(scheduler, i))
    assert said == sorted(f"{n}.{i}\n" for n in range(12) for i in range(3))


def test_threads_share_one_launcher(scheduler, submit) -> None:
    """Submissions from several threads of one process do not mix up their answers."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda n: (n, submit(f"echo {n}")), range(40)))
    for n, app_id in ids:
        assert ended(scheduler, app_id).state == AppState.SUCCEEDED
        assert lines(scheduler, app_id) == [f"{n}\n"]
