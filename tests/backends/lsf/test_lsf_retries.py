"""Retries by cause on the look-alike: the replicas themselves see to them, and nobody has to wait for the job."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.backends.shell import ROOT
from tests.torture.chains import PROGRAM
from torchx.errors import NotSupportedError
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs.api import AppDef, AppState, Resource, Role, macros
from torchx.specs.wishes.after import AFTER
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.timeouts import TIMEOUT

from .conftest import command, ended, eventually, lines, wait_for


def submit(scheduler: LsfScheduler, policy: str, script: str, n: int = 1, *, memMB: int = 64, **cfg: str) -> str:
    """A job that runs a shell in ``n`` replicas."""
    role = Role("r", "", entrypoint="sh", args=["-c", script], num_replicas=n, resource=Resource(1, 0, memMB))
    return scheduler.submit(AppDef("retried", [role], metadata={RETRY: policy}), cfg)


def all_run(scheduler: LsfScheduler, app_id: str) -> None:
    """Both replicas have said so."""
    eventually(lambda: lines(scheduler, app_id, 0) == lines(scheduler, app_id, 1) == ["up\n"])


def test_more_memory_after_it_ran_out(scheduler, tmp_path) -> None:
    """150 MiB do not fit into 100: the second attempt asks for 200, and succeeds."""
    eats = f"{sys.executable} -c 'import time; x = bytearray(150 << 20); time.sleep(1); print(len(x))'"
    app_id = submit(scheduler, "oom:2:mem*2", eats, memMB=100)
    found = ended(scheduler, app_id)
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.again, a.memory) for a in found.attempts] == [("oom", True, 2.0)]
    assert found.num_restarts == 1
    assert lines(scheduler, app_id)[-1] == f"{150 << 20}\n"


def test_a_gang_starts_again_as_a_whole(scheduler, tmp_path) -> None:
    """One of three fails: all of them run a second time, once each, and meet at replica 0 again."""
    script = f"echo run $TORCHX_RANK0_HOST; touch {tmp_path}/{macros.replica_id}.$$; "
    script += f"[ {macros.replica_id} != 1 ] || [ -e {tmp_path}/failed ] || {{ {wait_for(tmp_path / 'up')}; "
    script += f"touch {tmp_path}/failed; exit 3; }}; {wait_for(tmp_path / 'failed')}; sleep 0.3; "
    script += f"[ $(ls {tmp_path} | grep -c '^{macros.replica_id}[.]') = 2 ] || sleep 1000"
    app_id = submit(scheduler, "error:1", script, 3)
    eventually(lambda: len([p for p in tmp_path.iterdir() if "." in p.name]) == 3)
    (tmp_path / "up").touch()
    found = ended(scheduler, app_id)
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.why) for a in found.attempts] == [("error", "error: retry 1 of 1")]
    assert found.attempts[0].cause.startswith("r/1 on 127.0.0.11: exit code 3")
    assert [len(lines(scheduler, app_id, k)) for k in range(3)] == [2, 2, 2]


def test_the_same_failure_twice_ends_it(scheduler) -> None:
    """A bug is not retried as often as the policy would let it; the status says why."""
    app_id = submit(scheduler, "error:5:differs", "echo 'ValueError: bad batch' >&2; exit 3", 2)
    found = ended(scheduler, app_id)
    assert found.state is AppState.FAILED
    assert [a.again for a in found.attempts] == [True, False]
    assert found.msg.endswith("not retried (error: the same failure twice in a row)")


def test_a_lost_host_is_avoided(scheduler) -> None:
    """A host goes with a replica of two: LSF puts that one back, both start again, and not on that host."""
    script = f'[ "$LSB_HOSTS" != 127.0.0.11 ] && exit 0; echo up; sleep {1000}'
    app_id = submit(scheduler, "node:2:avoid", script, 2)
    all_run(scheduler, app_id)
    command("badmin", "lose", "127.0.0.11")
    try:
        found = ended(scheduler, app_id)
    finally:
        command("badmin", "find", "127.0.0.11")
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.avoid) for a in found.attempts] == [("node", ["127.0.0.11"])]
    assert {r.hostname for r in found.roles_statuses[0].replicas} == {"127.0.0.12"}


def test_what_lsf_puts_back_was_preempted(scheduler, tmp_path) -> None:
    """`brequeue` by somebody else, as sites preempt: the whole job starts again."""
    script = f"[ -e {tmp_path}/again ] && exit 0; echo up; sleep 1000"
    app_id = submit(scheduler, "preempted:free", script, 2)
    all_run(scheduler, app_id)
    (tmp_path / "again").touch()
    job = command("bjobs", "-noheader", "-o", "jobid", "-g", f"/torchx_{app_id}").split()[-1]
    command("brequeue", job)
    found = ended(scheduler, app_id)
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.again) for a in found.attempts] == [("preempted", True)]


def test_a_time_limit_asks_for_a_checkpoint_first(scheduler, tmp_path: Path) -> None:
    """Before the limit the program is asked; it writes its checkpoint, and goes on from there in the next attempt."""
    code = tmp_path / "train.py"
    code.write_text(f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from torchx import distributed
try:
    step = int(open({str(tmp_path / "saved")!r}).read())
except OSError:
    step = 0
first = step
while not first or step < first + 5:
    step += 1
    time.sleep(0.1)
    if distributed.should_checkpoint():
        open({str(tmp_path / "saved")!r}, "w").write(str(step))
        distributed.progress()
print("went on from", first)
""")
    # a minute is a second here: the signal comes after 10 s
    app_id = submit(scheduler, "timeout:free:checkpoint", f"exec {sys.executable} {code}", time="12")
    found = ended(scheduler, app_id)
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.progress, a.again) for a in found.attempts] == [("timeout", True, True)]
    assert lines(scheduler, app_id) == [f"went on from {(tmp_path / 'saved').read_text()}\n"]


def test_a_time_limit_without_checkpoint(scheduler, tmp_path) -> None:
    """The limit itself ends the attempt, and the next one has all of it again."""
    script = f"mkdir {tmp_path}/was && sleep 1000; echo done"
    found = ended(scheduler, submit(scheduler, "timeout:1", script, time="3"))
    assert found.state is AppState.SUCCEEDED, found
    assert [a.kind for a in found.attempts] == ["timeout"]


def test_a_chain_never_has_two_pieces_at_once(scheduler, tmp_path) -> None:
    """Of two replicas, of which one takes seconds to end: each step is done once."""
    code = tmp_path / "steps.py"
    code.write_text(PROGRAM.replace("sys.exit(143)", "[time.sleep(5 * int(folder[-1])), sys.exit(143)]"))
    for k in "01":
        (tmp_path / k).mkdir()
    script = f"exec {sys.executable} {code} {tmp_path}/{macros.replica_id} 100 0.2"
    role = Role("r", "", entrypoint="sh", args=["-c", script], num_replicas=2, resource=Resource(1, 0, 64))
    metadata = {RETRY: "standard, lost:free, total:5h", TIMEOUT: "8m"}  # a minute is a second here
    app_id = scheduler.submit(AppDef("chain", [role], metadata=metadata), {})
    found = ended(scheduler, app_id)
    assert found.state is AppState.SUCCEEDED, found
    assert {(a.kind, a.progress, a.total) for a in found.attempts} == {("timeout", True, 18000)}
    assert len(found.attempts) >= 2
    for k in "01":
        assert not (tmp_path / k / "overlap").exists()
        assert json.loads((tmp_path / k / "done.json").read_text()) == list(range(100))


def test_what_is_cancelled_stays_so(scheduler) -> None:
    """`cancel`, and `bkill` by hand: no further attempt."""
    for by_hand in (False, True):
        app_id = submit(scheduler, "standard, error:3, oom:3", "echo up; exec sleep 1000", 2)
        all_run(scheduler, app_id)
        command("bkill", "-g", f"/torchx_{app_id}", "0") if by_hand else scheduler.cancel(app_id)
        found = ended(scheduler, app_id)
        assert (found.state, found.attempts) == (AppState.CANCELLED, [])
        left = command("bjobs", "-noheader", "-g", f"/torchx_{app_id}")
        assert left == ""


def test_an_elastic_role_first_spares_replicas(scheduler) -> None:
    """What the role can do without is no failure of the job: it is not started again."""
    script = f"[ {macros.replica_id} != 1 ] || exit 3"
    role = Role("r", "", entrypoint="sh", args=["-c", script], num_replicas=2, min_replicas=1)
    role.resource = Resource(1, 0, 64)
    found = ended(scheduler, scheduler.submit(AppDef("e", [role], metadata={RETRY: "error:3"}), {}))
    assert (found.state, found.attempts) == (AppState.SUCCEEDED, [])


def test_a_refused_submission_ends_the_job(scheduler, tmp_path) -> None:
    """The queue was closed meanwhile: the job has failed, and its log says what LSF said."""
    app_id = submit(scheduler, "error:1", f"{wait_for(tmp_path / 'go')}; exit 3", lsf_queue="urgent")
    command("badmin", "qclose", "urgent")
    try:
        (tmp_path / "go").touch()
        found = ended(scheduler, app_id)
    finally:
        command("badmin", "qopen", "urgent")
    assert found.state is AppState.FAILED
    assert "urgent: Queue has been closed" in "".join(lines(scheduler, app_id))


def test_who_waits_for_such_a_job(scheduler) -> None:
    """`any` works: the next attempt is there before this one ends. What LSF would get wrong is refused."""
    first = submit(scheduler, "error:1", "exit 3")
    role = Role("r", "", entrypoint="true", resource=Resource(1, 0, 64))

    def after(condition: str) -> str:
        app = AppDef("later", [role], metadata={AFTER: f"{condition}:lsf://test/{first}"})
        return scheduler.submit(app, {})

    with pytest.raises(NotSupportedError, match="has a retry policy"):
        after("ok")
    later = after("any")
    assert ended(scheduler, first).state is AppState.FAILED
    assert ended(scheduler, later).state is AppState.SUCCEEDED
    assert scheduler.describe(later).started_at >= scheduler.describe(first).attempts[-1].ended - 1


def test_attempts_as_a_user_sees_them(lsf_shell) -> None:
    """`run --wait`, then `status --json`: the attempts, with their class and what followed."""
    words = (
        "-s",
        "lsf",
        "--retry",
        "standard, error:1:differs",
        "utils.sh",
        "--memMB",
        "64",
        "echo no data >&2; exit 3",
    )
    lsf_shell.torchx("run", "--wait", *words, check=False)
    status = json.loads(lsf_shell.torchx("status", "--json", "@last", check=False))
    assert [(a["class"], a["retried"]) for a in status["attempts"]] == [("error", True), ("error", False)]
    assert "not retried (error: the same failure twice in a row)" in lsf_shell.torchx("status", "@last", check=False)
