"""Jobs of Batch that really run: moto's server starts their containers on Docker."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys

from tests.backends.aws.conftest import reached
from tests.backends.docker.engine import IMAGE
from torchx.schedulers.aws_batch_scheduler import create_scheduler
from torchx.specs.api import AppDef, AppState, Resource, Role, macros
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.timeouts import TIMEOUT

DONE = (AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED)


def test_a_job_runs_and_is_found_from_another_shell(batch, submit):
    """It succeeds; its log is read, all and in part; a scheduler that has never heard of it finds it by its id."""
    app_id = submit("echo one; echo two; echo $TORCHX_REPLICA_ID:$V", env={"V": "a b'\"$(id)"})
    assert reached(batch, app_id, *DONE).state is AppState.SUCCEEDED
    other = create_scheduler("other")
    found = other.describe(app_id)
    assert [(r.name, r.entrypoint, r.num_replicas, r.image) for r in found.roles] == [("w", "sh", 1, IMAGE)]
    assert found.started_at <= found.ended_at
    assert list(other.log_iter(app_id, "w")) == ["one\n", "two\n", "0:a b'\"$(id)\n"]
    assert list(other.log_iter(app_id, "w", regex="t.o", should_tail=True)) == ["two\n"]
    day = datetime.timedelta(days=1)
    assert list(other.log_iter(app_id, "w", since=datetime.datetime.now() + day)) == []
    assert list(other.log_iter(app_id, "w", until=datetime.datetime.now() - day)) == []
    other.close()


def test_a_failure_has_its_exit_code_and_traceback(batch, submit):
    """The exit code is in the message, with the last exception of the log, whose end is in the error."""
    app_id = submit("echo 'Traceback (most recent call last):'; echo 'ValueError: boom'; exit 7")
    found = reached(batch, app_id, *DONE)
    assert (found.state, found.msg) == (AppState.FAILED, "w/0: exit code 7: ValueError: boom")
    assert "ValueError: boom" in found.structured_error_msg


def test_cancel(batch, submit, eventually):
    """A running job ends CANCELLED, quietly the second time, and its container is gone."""
    app_id = submit("sleep 900")
    reached(batch, app_id, AppState.RUNNING)
    batch.cancel(app_id)
    batch.cancel(app_id)
    assert reached(batch, app_id, *DONE).state is AppState.CANCELLED
    name = app_id.rpartition(":")[2]
    names = ["docker", "ps", "--filter", f"name={name}", "--format", "{{.Names}}"]
    eventually(lambda: not subprocess.run(names, capture_output=True, text=True, check=True).stdout, timeout_s=300)


def test_a_piece_of_a_chain_ends_with_its_own_exit_code(batch, queue):
    """Moto starts no second attempt: that is the service's; a program that is done before its piece ends the chain."""
    for script, expected in (("sleep 900", AppState.FAILED), ("exit 0", AppState.SUCCEEDED)):
        role = Role("w", IMAGE, entrypoint="sh", args=["-c", script], resource=Resource(cpu=1, gpu=0, memMB=128))
        metadata = {RETRY: "standard, lost:free, total:30s", TIMEOUT: "5s"}
        app_id = batch.submit(AppDef("job", [role], metadata=metadata), {"queue": queue})
        found = reached(batch, app_id, *DONE)
        assert found.state is expected, found
        assert ("its piece is over" in found.msg) is (expected is AppState.FAILED)


def test_a_job_after_another(batch, submit):
    """It starts when the other one has succeeded, and fails without having started when that has failed."""
    for script, expected in (("true", AppState.SUCCEEDED), ("exit 3", AppState.FAILED)):
        first = submit(f"sleep 2; {script}")
        later = submit("echo later", after=f"ok:aws_batch://s/{first}")
        assert reached(batch, later, *DONE).state is expected
        before, after = batch.describe(first), batch.describe(later)
        assert before.state is expected
        assert after.state is AppState.FAILED or before.ended_at <= after.started_at


def test_nodes_reach_the_first(batch, submit):
    """Of two containers, each knows its number, and the second reaches the first at the address that Batch tells."""
    server = "import socket; s=socket.create_server(('0.0.0.0',7777)); s.settimeout(400); c,_=s.accept(); print('got', c.recv(9))"
    client = (
        "import os,socket,time\n"
        "for _ in range(2000):\n"
        "    try:\n"
        "        c = socket.create_connection((os.environ['TORCHX_RANK0_HOST'], 7777), 1)\n"
        "        break\n"
        "    except OSError:\n"
        "        time.sleep(.2)\n"
        f"c.send(b'node-{macros.replica_id}')\n"
    )
    app_id = submit(
        f'if [ "{macros.replica_id}" = 0 ]; then exec python3 -c "$SERVER"; else exec python3 -c "$CLIENT"; fi',
        2,
        env={"SERVER": server, "CLIENT": client},
    )
    found = reached(batch, app_id, *DONE)
    assert found.state is AppState.SUCCEEDED, found
    assert "got b'node-1'\n" in list(batch.log_iter(app_id, "w", 0))
    assert found.roles[0].env["CLIENT"] == client
    assert [r.state for r in found.roles_statuses[0].replicas] == [AppState.SUCCEEDED] * 2


def test_lists_and_reuse(batch, submit, queue):
    """Jobs that are alike share a definition; lists know queue and state; delete takes the definition away."""
    first, second, third = submit("true"), submit("true"), submit("false")
    for app_id in (first, second, third):
        reached(batch, app_id, *DONE)
    assert {line.app_id for line in batch.list()} == {first, second, third}
    assert [line.app_id for line in batch.list({"queue": queue, "state": "FAILED"})] == [third]
    client = batch._clients.client("batch")

    def active():
        return [d for d in client.describe_job_definitions()["jobDefinitions"] if d["status"] == "ACTIVE"]

    assert len(active()) == 2
    batch.delete(first)
    assert len(active()) == 1
    reached(batch, submit("true"), AppState.SUCCEEDED)
    assert len(active()) == 2


def test_unknown_queue_and_service_that_is_gone(batch, queue, eventually):
    """Through the command line: one line, a hint, no traceback; nothing is left behind."""
    program = shutil.which("torchx", path=os.path.dirname(sys.executable)) or "torchx"

    def torchx(*argv, **env):
        return subprocess.run(
            [program, *argv], capture_output=True, text=True, env={**os.environ, **env}, timeout=400, check=False
        )

    def run(queue, **env):
        return torchx(
            "run", "-s", "aws_batch", "--workspace=", "-cfg", f"queue={queue}", "utils.echo", "--image", IMAGE, **env
        )

    done = run("torchx-test")
    assert done.returncode == 3
    assert f"Batch has no queue `torchx-test` in us-east-1\nhint: did you mean `{queue}`?" in done.stderr
    done = run(queue, AWS_ENDPOINT_URL="http://127.0.0.1:9", AWS_MAX_ATTEMPTS="1")
    assert done.returncode == 4
    assert "AWS does not answer" in done.stderr
    assert "Traceback" not in done.stderr
    done = run(queue)
    assert done.returncode == 0, done.stderr
    handle = done.stdout.split()[-1]
    assert json.loads(torchx("status", "--json", handle).stdout)["state"] in AppState.__members__
    eventually(lambda: "hello world" in torchx("log", handle).stdout, timeout_s=400, every_s=1)
