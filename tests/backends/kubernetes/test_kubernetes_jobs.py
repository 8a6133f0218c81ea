"""Jobs as real pods: what runs, what is said of it, and how it ends."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from tests.backends.kubernetes import cluster
from tests.backends.kubernetes.jobs import audited
from torchx.specs import AppState


def status(torchx, handle="@last"):
    return json.loads(torchx("status", "--json", handle, code=None).stdout)


def wait_for(torchx, handle, question, timeout_s=480):
    deadline = time.monotonic() + timeout_s
    while not question(found := status(torchx, handle)):
        assert time.monotonic() < deadline, found
        time.sleep(0.3)
    return found


def objects(namespace, *kinds):
    """Names of what is left in a namespace, of these kinds, less what is being removed."""
    left = []
    for path in kinds or ("api/v1/pods", "api/v1/services", "apis/batch/v1/jobs"):
        group, _, plural = path.rpartition("/")
        found = cluster.call("GET", f"/{group}/namespaces/{namespace}/{plural}") or {"items": []}
        left += [
            f"{plural}/{i['metadata']['name']}" for i in found["items"] if not i["metadata"].get("deletionTimestamp")
        ]
    return left


def test_echo_from_submission_to_deletion(torchx, image, namespace, eventually):
    """Two replicas say who they are; logs, list and status know them; delete leaves nothing behind."""
    done = torchx(
        "run", "--wait", "utils.sh", "--image", image, "--num_replicas", "2", "sh", "-c", "echo hi $TORCHX_REPLICA_ID"
    )
    handle = done.stdout.strip()
    assert handle.startswith(f"kubernetes://torchx/{namespace}:sh-")
    assert sorted(torchx("log", handle).stdout.splitlines()) == ["sh/0 hi 0", "sh/1 hi 1"]
    found = status(torchx, handle)
    assert found["state"] == "SUCCEEDED"
    assert [r["hostname"] for r in found["roles"][0]["replicas"]] == [cluster.NODE] * 2
    assert handle in torchx("list", "-s", "kubernetes").stdout
    torchx("delete", handle)
    eventually(lambda: not objects(namespace))


def test_the_program_gets_its_words_as_they_were(torchx, image):
    """Neither Kubernetes nor a shell changes them on their way."""
    words = ["a b", "$HOME", "$(HOME)", "$$", "$$(x)", "`id`", "'", '"', "\\", "*", ";id", "é日", "", "-n"]
    torchx("run", "--wait", "utils.python", "--image", image, "-c", "import sys; print(sys.argv[1:])", "--", *words)
    assert torchx("log", "@last").stdout == f"python/0 {words!r}\n"


def test_a_failing_script_says_why(torchx, image):
    """Exit code 1 of the command line; the traceback in the status, without asking for a log."""
    done = torchx("run", "--wait", "utils.python", "--image", image, "-c", "raise ValueError('boom')", code=1)
    assert "python/0 on node1: exit code 1: ValueError: boom" in done.stderr
    assert "Traceback (most recent call last)" in done.stderr


def test_the_one_that_lost_its_peer_is_not_blamed(jobs, gate):
    """Replica 0 ends first, of what replica 1 did, which says so a second later: replica 1 is named."""
    lost = "RuntimeError('Connection closed by peer [10.0.0.1]:27045')"
    script = (
        f'if [ $TORCHX_REPLICA_ID = 0 ]; then python3 -c "raise {lost}"; exit 1; fi; {gate.wait("first")}; '
        "exec python3 -c \"raise ValueError('bad batch')\""
    )
    app_id = jobs.run(script, num_replicas=2, mounts=[gate.mount])
    jobs.until(app_id, lambda job: "Connection closed by peer" in job.msg)
    gate.open("first")
    found = jobs.until(app_id)
    assert (found.state, found.msg) == (AppState.FAILED, "main/1 on node1: exit code 1: ValueError: bad batch")
    assert json.loads(found.structured_error_msg)["class"] == "error"
    assert {job.app_id: job.state for job in jobs.scheduler.list({"namespace": jobs.namespace})}[app_id] is found.state


def test_the_logs_of_sixteen_are_a_call_each_and_a_few(jobs, torchx, namespace):
    """By the server's own account of the command: the replicas, and at most four."""
    app_id = jobs.run("echo hello", num_replicas=16)
    jobs.until(app_id)
    with audited(namespace) as audit:
        out = torchx("log", f"kubernetes://tests/{app_id}").stdout
    assert sorted(out.splitlines()) == sorted(f"main/{k} hello" for k in range(16))
    assert len(audit.calls()) <= 16 + 4


def test_out_of_memory_is_named(torchx, image, namespace, gate):
    """Not just SIGKILL. The script ends when the engine has heard of it, which may be later than of a container's end."""
    script = f"tail /dev/zero; {gate.wait('heard')}; exit 137"
    mounts = f"type=bind,src={gate.mount.src_path},dst={gate.mount.dst_path}"
    within = f"label=io.kubernetes.pod.namespace={namespace}"
    argv = (
        "docker",
        "events",
        "--since",
        "10m",
        "--filter",
        "event=oom",
        "--filter",
        within,
        "--format",
        "{{.Action}}",
    )
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as events:
        try:
            torchx("run", "utils.sh", "--image", image, "--memMB", "64", "--mounts", mounts, "sh", "-c", script)
            assert events.stdout.readline() == "oom\n"
        finally:
            events.kill()
    gate.open("heard")
    found = wait_for(torchx, "@last", lambda s: s["state"] == "FAILED")
    assert "used more memory than its limit, and was killed (OOMKilled)" in found["msg"], found


def test_a_missing_image_is_named(torchx):
    """The job waits, and says for what."""
    torchx("run", "utils.echo", "--image", "no-such-image:1")
    found = wait_for(torchx, "@last", lambda s: "image cannot be pulled" in (s["msg"] or ""))
    assert found["state"] == "PENDING" and found["msg"].startswith("its image cannot be pulled"), found
    torchx("cancel", "@last")


def test_a_request_that_no_node_can_meet_is_explained_in_the_schedulers_words(torchx, image):
    """Shortened to one line."""
    torchx("run", "utils.sh", "--image", image, "--cpu", "5000", "true")
    found = wait_for(torchx, "@last", lambda s: (s["msg"] or "").startswith("no node fits"))
    assert (found["state"], found["msg"]) == ("PENDING", "no node fits: 0/1 nodes are available: 1 Insufficient cpu")
    torchx("cancel", "@last")
    assert wait_for(torchx, "@last", lambda s: s["state"] != "PENDING")["state"] == "CANCELLED"


def test_two_roles(torchx, image, tmp_path):
    """Each with its own program; the status tells them apart."""
    component = tmp_path / "two.py"
    component.write_text(
        "import torchx.specs as specs\n"
        "def app(image: str) -> specs.AppDef:\n"
        '    """Two roles.\n\n    Args:\n        image: image\n    """\n'
        "    small = specs.Resource(cpu=1, gpu=0, memMB=128)\n"
        "    make = lambda name, n: specs.Role(name=name, image=image, entrypoint='echo', args=[name, '${replica_id}'],"
        " num_replicas=n, resource=small)\n"
        "    return specs.AppDef(name='two', roles=[make('reader', 1), make('trainer', 2)])\n"
    )
    torchx("run", "--wait", f"{component}:app", "--image", image)
    assert sorted(torchx("log", "@last").stdout.splitlines()) == [
        "reader/0 reader 0",
        "trainer/0 trainer 0",
        "trainer/1 trainer 1",
    ]


@pytest.mark.timeout(600)
def test_thirty_two_replicas(torchx, image):
    """All of them run and are told apart."""
    torchx("run", "--wait", "utils.echo", "--image", image, "--num_replicas", "32", "--msg", "x", timeout_s=540)
    found = status(torchx)
    assert [(r["id"], r["state"]) for r in found["roles"][0]["replicas"]] == [(k, "SUCCEEDED") for k in range(32)]


def test_a_log_is_followed_while_it_is_written(torchx, image, shell):
    """To its end, which is the job's."""
    script = "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.3; done"
    torchx("run", "utils.sh", "--image", image, "sh", "-c", script)
    done = torchx("log", "-f", "@last")
    assert done.stdout.splitlines() == [f"sh/0 line {i}" for i in range(1, 7)]


def test_cancel_ends_a_job_and_keeps_it_on_record(torchx, image, namespace, eventually):
    """Its pods go, the job stays and says so; cancelling again is quiet."""
    torchx("run", "utils.sh", "--image", image, "sleep", "600")
    wait_for(torchx, "@last", lambda s: s["state"] == "RUNNING")
    torchx("cancel", "@last")
    # While its pod is being ended, which takes its grace period, it runs.
    seen = wait_for(torchx, "@last", lambda s: s["state"] != "RUNNING" or not s["msg"].startswith("cancelling"))
    assert seen["state"] == "CANCELLED"
    eventually(lambda: not objects(namespace, "api/v1/pods"))
    torchx("cancel", "@last")
    assert objects(namespace, "apis/batch/v1/jobs")


def test_another_machine_knows_the_job_from_the_cluster_alone(torchx, image, tmp_path):
    """No record there: roles, images, arguments and state come from the cluster."""
    handle = torchx("run", "--wait", "utils.echo", "--image", image, "--msg", "here").stdout.strip()
    elsewhere = {"TORCHX_HOME": str(tmp_path / "elsewhere")}
    found = json.loads(torchx("describe", "--json", handle, **elsewhere).stdout)
    (role,) = found["app"]["roles"]
    assert (role["name"], role["image"], role["args"]) == ("echo", image, ["here"])
    assert torchx("log", handle, **elsewhere).stdout == "echo/0 here\n"


def test_torchrun_in_a_pod(torchx, image):
    """Real PyTorch, from the environment of these tests, mounted into the pod."""
    import sys
    import sysconfig

    torch = pytest.importorskip("torch")
    site = sysconfig.get_paths()["purelib"]
    mounts = f"type=bind,src={site},dst=/site,readonly"
    script = (
        "import torch, torch.distributed as d; d.init_process_group('gloo'); t = torch.ones(1) * (d.get_rank() + 1);"
    )
    script += "d.all_reduce(t); import sys; sys.stdout.write(f'sum {int(t)}\\n'); d.destroy_process_group()"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version != "3.11":
        pytest.skip(f"the image has Python 3.11, and PyTorch {torch.__version__} here is for {version}")
    done = torchx(
        "run",
        "--wait",
        "utils.sh",
        "--image",
        image,
        "--memMB",
        "2048",
        "--mounts",
        mounts,
        "--env",
        "PYTHONPATH=/site",
        "sh",
        "-c",
        'printf %s "$0" > /tmp/t.py; python3 -m torch.distributed.run --standalone --nproc_per_node 2 /tmp/t.py',
        script,
        timeout_s=540,
        code=None,
    )
    assert done.returncode == 0, done.stderr
    assert torchx("log", "@last").stdout.count("sum 3") == 2


def test_a_dry_run_is_what_kubectl_takes(torchx, image, kubeconfig, namespace):
    """Copied from the terminal."""
    import shutil

    if not shutil.which("kubectl"):
        pytest.skip("there is no kubectl")
    program = (
        "from torchx.runner import get_runner; import sys\n"
        "with get_runner() as r: print(r.dryrun_component('utils.echo', ['--image', sys.argv[1]], 'kubernetes',"
        " cfg={'namespace': sys.argv[2]}).request)"
    )
    import sys

    text = subprocess.run(
        [sys.executable, "-c", program, image, namespace], capture_output=True, text=True, check=True
    ).stdout
    applied = subprocess.run(
        ["kubectl", "--kubeconfig", kubeconfig, "apply", "--validate=false", "-f", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert applied.returncode == 0, applied.stderr
    assert sorted(objects(namespace, "api/v1/services", "apis/batch/v1/jobs"))


def test_missing_rights_are_named(torchx, image, kubeconfig):
    """Verb, resource and namespace; the exit code of a backend that refuses."""
    done = torchx("run", "utils.echo", "--image", image, code=4, KUBECONFIG=cluster.limited_kubeconfig())
    assert 'cannot create resource "jobs"' in done.stderr
    assert "Traceback" not in done.stderr


def test_no_cluster_is_one_clear_line(torchx, image, tmp_path):
    """And a hint."""
    done = torchx("run", "utils.echo", "--image", image, code=4, KUBECONFIG=str(tmp_path / "none"))
    assert "no Kubernetes cluster is configured" in done.stderr and "hint:" in done.stderr


def test_a_kind_that_the_cluster_has_not_is_said(torchx, image, namespace):
    """This cluster has no Volcano; nothing is made."""
    done = torchx("run", "-cfg", "queue=gpu", "utils.echo", "--image", image, code=4)
    assert "the cluster has no `Job` of `batch.volcano.sh/v1alpha1`" in done.stderr
    assert "kind=job" in done.stderr
    assert not objects(namespace)


def test_a_namespace_that_is_not_there_is_said(torchx, image):
    """With the command that makes it."""
    done = torchx("run", "-cfg", "namespace=nowhere", "utils.echo", "--image", image, code=4)
    assert "there is no namespace `nowhere`" in done.stderr and "kubectl create namespace nowhere" in done.stderr


def test_waiting_is_told_of_the_end(torchx, image, namespace, eventually):
    """By watches, which last: but for the first look and the last, one is only taken when a watch has ended."""
    begun = time.monotonic()
    with audited(namespace) as audit:
        torchx("run", "--wait", "utils.sh", "--image", image, "sleep", "6")
        took = time.monotonic() - begun
        looks = [c["verb"] for c in audit.calls() if c["verb"] == "list" and c["objectRef"]["resource"] == "jobs"]
        eventually(lambda: len(looks) <= audit.verbs().count("watch") + 1)
    assert 1 <= audit.verbs().count("watch") <= 2 + took / 10
    assert status(torchx)["state"] == "SUCCEEDED"
