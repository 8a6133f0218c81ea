"""Attempts that whoever looks at a job makes, on a real cluster of 1.20: its Jobs know nothing of causes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from tests.backends.kubernetes import cluster
from tests.torture.chains import PROGRAM
from torchx.schedulers import get_scheduler_factories
from torchx.specs import AppDef, AppState, Resource
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.timeouts import TIMEOUT


def with_policy(policy, *roles):
    return AppDef("job", list(roles), metadata={RETRY: policy})


def test_more_memory_after_it_ran_out(jobs):
    """150 MiB do not fit into 100 MB: the kubelet says OOMKilled, and the second attempt, with 200, succeeds."""
    script = "python3 -c 'x = bytearray(150 << 20); print(len(x))'"
    app_id = jobs.run(with_policy("oom:2:mem*2", jobs.role(script, resource=Resource(1, 0, 100))))
    found = jobs.until(app_id)
    assert found.state is AppState.SUCCEEDED, found
    assert [(a.kind, a.again, a.memory) for a in found.attempts] == [("oom", True, 2.0)]
    assert found.num_restarts == 1
    assert [line.strip() for line in jobs.scheduler.log_iter(app_id, "main")][-1] == str(150 << 20)


def test_a_chain_never_has_two_pieces_at_once(jobs, gate):
    """Of two replicas that take two seconds to end: each step is done once."""
    folder = Path(gate.mount.src_path)
    (folder / "steps.py").write_text(PROGRAM.replace("sys.exit(143)", "[time.sleep(2), sys.exit(143)]"))
    for k in "01":
        (folder / k).mkdir()
    script = "exec python3 /gate/steps.py /gate/$TORCHX_REPLICA_ID 50 0.2"
    overlay = {"spec": {"terminationGracePeriodSeconds": 6}}
    role = jobs.role(script, num_replicas=2, mounts=[gate.mount], overlay=overlay)
    metadata = {RETRY: "standard, lost:free, total:60s", TIMEOUT: "5s"}
    found = jobs.until(jobs.run(AppDef("job", [role], metadata=metadata)))
    assert found.state is AppState.SUCCEEDED, found
    assert {a.kind for a in found.attempts} == {"timeout"}
    for k in "01":
        assert not (folder / k / "overlap").exists()
        assert json.loads((folder / k / "done.json").read_text()) == list(range(50))


def test_many_clients_at_once_make_one_gang(jobs, gate, eventually):
    """One of two replicas fails, and six clients look: both start again, once, away from the node, which is the only one."""
    script = "[ $TORCHX_REPLICA_ID = 0 ] && mkdir /gate/was && exit 3; sleep 3600"
    app_id = jobs.run(with_policy("error:1:avoid, oom:1", jobs.role(script, num_replicas=2, mounts=[gate.mount])))
    eventually(lambda: any(pod["status"]["phase"] == "Failed" for pod in jobs.pods(app_id)))
    seen, meet = [], threading.Barrier(6)

    def look():
        client = get_scheduler_factories()["kubernetes"]("tests")
        meet.wait()
        seen.append(client.describe(app_id))
        client.close()

    clients = [threading.Thread(target=look) for _ in range(6)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    attempts = [found.attempts for found in seen]
    assert [len(of) for of in attempts] == [1] * 6
    assert {(of[0].kind, of[0].again, *of[0].avoid) for of in attempts} == {("error", True, "node1")}
    there = cluster.call("GET", jobs.path("jobs", group="apis/batch/v1"))["items"]
    made = [item["metadata"]["name"] for item in there]
    assert sorted(name.partition("-a2-")[2] for name in made) == ["", "", "main-0", "main-1"]
    jobs.until(app_id, lambda job: job.state is AppState.PENDING and "affinity" in job.msg)
    jobs.scheduler.cancel(app_id)
    assert jobs.until(app_id).state is AppState.CANCELLED
