"""Who may do what, from where, and with which secrets: kubeconfig in its forms, rights, Secrets, volumes, accounts."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from tests.backends.kubernetes import cluster
from torchx.errors import BackendError
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppState, VolumeMount


def kubeconfig_of(path, user, *, context="other", namespace="default", current=True, server=cluster.SERVER):
    """A kubeconfig in a file of its own; the names in it are the context's."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": context, "user": user}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context, "namespace": namespace}}],
    }
    path.write_text(json.dumps({**config, **({"current-context": context} if current else {})}))
    return str(path)


@pytest.fixture
def asks(monkeypatch, kubeconfig):
    """Lists jobs with a kubeconfig, as a fresh program would."""

    def ask(path, **cfg):
        monkeypatch.setenv("KUBECONFIG", path)
        scheduler = create_scheduler("access")
        try:
            return scheduler.list(cfg)
        finally:
            scheduler.close()

    return ask


# -- credentials -----------------------------------------------------------------------------------


def test_several_files_and_a_context_by_name(asks, jobs, tmp_path, monkeypatch):
    """`KUBECONFIG` with two files; the first has a server that is not there, `context` takes the other."""
    app_id = jobs.run()
    dead = kubeconfig_of(tmp_path / "a", {"token": "x"}, context="dead", server="https://127.0.0.1:9")
    good = kubeconfig_of(tmp_path / "b", {"token": cluster.TOKEN}, context="good", current=False)
    both = f"{dead}{os.pathsep}{good}"
    assert app_id in [job.app_id for job in asks(both, context="good", namespace=jobs.namespace)]
    with pytest.raises(BackendError, match=r"no Kubernetes cluster is configured: .*nowhere"):
        asks(both, context="nowhere")


def test_a_job_is_found_in_the_context_that_it_was_submitted_to(torchx, image, tmp_path, monkeypatch):
    """Later commands do not name it: the record of runs does. kubeconfig's current context is another."""
    dead = kubeconfig_of(tmp_path / "a", {"token": "x"}, context="dead", server="https://127.0.0.1:9")
    good = kubeconfig_of(tmp_path / "b", {"token": cluster.TOKEN}, context="good", current=False)
    monkeypatch.setenv("KUBECONFIG", f"{dead}{os.pathsep}{good}")
    handle = torchx(
        "run", "-cfg", "context=good", "--wait", "utils.echo", "--image", image, "--msg", "there"
    ).stdout.strip()
    assert torchx("log", handle).stdout == "echo/0 there\n"
    torchx("delete", handle)


def test_an_exec_plugin_gives_the_token(asks, tmp_path):
    """As those of clouds do; one that fails is quoted, and nobody is asked without credentials."""
    script = tmp_path / "plugin"
    credential = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1"}
    script.write_text(f"#!/bin/sh\necho '{json.dumps({**credential, 'status': {'token': cluster.TOKEN}})}'\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    user = {"exec": {"apiVersion": credential["apiVersion"], "command": str(script), "interactiveMode": "Never"}}
    path = kubeconfig_of(tmp_path / "config", user)
    assert isinstance(asks(path), list)
    script.write_text("#!/bin/sh\necho 'session expired: log in' >&2\nexit 1\n")
    with pytest.raises(BackendError, match=r"kubeconfig gives no credentials: .*session expired: log in"):
        asks(path)


def test_a_provider_of_identities_gives_a_new_token(torchx, tmp_path, monkeypatch):
    """OIDC: the one of kubeconfig has expired, its refresh token is handed in; why that is refused is said."""
    asked: list[object] = []

    class Provider(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.answer(200, {"token_endpoint": f"http://127.0.0.1:{server.server_port}/token"})

        def do_POST(self):
            sent = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            asked.append(sent["refresh_token"])
            good = {"token_type": "bearer", "access_token": "x", "id_token": cluster.TOKEN, "refresh_token": "next"}
            self.answer(*((200, good) if sent["refresh_token"] == ["good"] else (400, {"error": "invalid_client"})))

        def answer(self, status, body):
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format, *args):
            pass

    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
    old = ".".join(base64.b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, {"exp": 1}, {}))
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        facts = {"idp-issuer-url": f"http://127.0.0.1:{server.server_port}", "client-id": "me", "client-secret": "s"}
        path = tmp_path / "config"

        def program(refresh):  # one of its own: in this process other threads run
            user = {"auth-provider": {"name": "oidc", "config": {**facts, "id-token": old, "refresh-token": refresh}}}
            words = [sys.executable, "-m", "torchx", "list", "-s", "kubernetes"]
            env = {**os.environ, "KUBECONFIG": kubeconfig_of(path, user)}
            return subprocess.run(words, env=env, capture_output=True, text=True, check=False)

        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            done, refused = program("good"), program("bad")
        finally:
            server.shutdown()
            thread.join()
    assert (done.returncode, done.stderr) == (0, "")
    assert "no Kubernetes cluster is configured: (invalid_client)" in refused.stderr
    page = "/.well-known/openid-configuration"
    assert asked == [page, ["good"], page, ["bad"]]


def test_a_client_certificate(torchx, jobs, tmp_path):
    """Signed by the cluster's authority, given as data within kubeconfig; its key is left nowhere. One without rights
    is refused by its name.
    """
    app_id, left = jobs.run(), tmp_path / "left"
    left.mkdir()

    def listed(subject, **how):
        key, request = tmp_path / "key", tmp_path / "csr"
        subprocess.run(
            ["openssl", "req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", subject, "-keyout", key, "-out", request],
            check=True, capture_output=True,
        )  # fmt: skip
        certificate = cluster.sign(request.read_bytes())
        encoded = {
            name: base64.b64encode(data).decode() for name, data in (("c", certificate), ("k", key.read_bytes()))
        }
        user = {"client-certificate-data": encoded["c"], "client-key-data": encoded["k"]}
        env = {"KUBECONFIG": kubeconfig_of(tmp_path / "config", user), "TMPDIR": str(left)}
        return torchx("list", "-s", "kubernetes", **env, **how)

    assert app_id in listed("/O=system:masters/CN=ann").stdout
    assert 'User "bob" cannot list' in listed("/CN=bob", code=4).stderr
    assert list(left.rglob("*")) == []


@pytest.mark.parametrize("text", ["", "a: [", "[]", "apiVersion: v1\nkind: Config\n"])
def test_a_kubeconfig_that_is_none_is_one_clear_line(asks, tmp_path, text):
    """Whatever its parser raises."""
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(BackendError, match="no Kubernetes cluster is configured") as error:
        asks(str(path))
    assert "\n" not in str(error.value)


def test_a_server_whose_certificate_is_not_trusted_is_refused_at_once(asks, tmp_path):
    """Not tried again and again."""
    path = tmp_path / "config"
    kubeconfig_of(path, {"token": "x"})
    config = json.loads(path.read_text())
    del config["clusters"][0]["cluster"]["insecure-skip-tls-verify"]
    path.write_text(json.dumps(config))
    with pytest.raises(BackendError, match=r"cannot be trusted: .*certificate verify failed"):
        asks(str(path))


def test_wrong_credentials_are_said(asks, tmp_path):
    """401, and what to do."""
    with pytest.raises(BackendError, match="Unauthorized") as error:
        asks(kubeconfig_of(tmp_path / "config", {"token": "wrong"}))
    assert "log in" in error.value.hint


def test_within_a_pod_its_service_account_is_taken(jobs, image):
    """torchx in a pod of the cluster, which has no kubeconfig: token, authority and namespace are the pod's."""
    import sysconfig

    import torchx

    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "launcher"}}
    cluster.call("POST", jobs.path("serviceaccounts"), account)
    source = os.path.dirname(os.path.dirname(torchx.__file__))
    site = sysconfig.get_paths()["purelib"]
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the image has Python 3.11")
    code = (
        "from torchx.schedulers.kubernetes.api.credentials import connect; c, namespace = connect(None);"
        "print(c.configuration.host, namespace, 'authorization' in str(c.configuration.auth_settings()).lower())"
    )
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    facts = [
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        {"configMap": {"name": "authority", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    authority = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "authority"},
        "data": {"ca.crt": cluster.authority()},
    }
    cluster.call("POST", jobs.path("configmaps"), authority)
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    overlay = {
        "spec": {
            "volumes": [
                {"name": "account", "projected": {"sources": [token, *facts]}},
                {"name": "source", "hostPath": {"path": source}},
                {"name": "site", "hostPath": {"path": site}},
            ],
            "containers": [
                {
                    "name": "main",
                    "volumeMounts": [
                        {"name": "account", "mountPath": folder},
                        {"name": "source", "mountPath": "/source"},
                        {"name": "site", "mountPath": "/site"},
                    ],
                }
            ],
        }
    }
    env = {"PYTHONPATH": "/source:/site", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    app_id = jobs.run(f'python3 -c "{code}"', env=env, overlay=overlay, cfg={"service_account": "launcher"})
    found = jobs.until(app_id)
    assert found.state is AppState.SUCCEEDED, found.msg
    assert jobs.log(app_id) == [f"https://10.0.0.1:443 {jobs.namespace} True"]
    assert jobs.pods(app_id)[0]["spec"]["serviceAccountName"] == "launcher"


# -- rights ----------------------------------------------------------------------------------------


def test_rights_in_one_namespace_are_enough(jobs, monkeypatch, eventually):
    """Those of the Role that `torchx runopts --rbac` prints: submit, ask, read, list, cancel, delete; kinds that one may
    not see are as if they were not there."""
    role = yaml.safe_load(jobs.scheduler.rights({"namespace": jobs.namespace}))
    jobs.grant(role)
    right = {"namespace": jobs.namespace, "verb": "create", "group": "batch", "resource": "jobs"}
    asked = {"spec": {"user": "limited", "resourceAttributes": right}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    eventually(lambda: cluster.call("POST", path, asked)["status"]["allowed"], timeout_s=240)
    monkeypatch.setenv("KUBECONFIG", cluster.limited_kubeconfig(jobs.namespace))
    jobs.use("kubernetes")
    app_id = jobs.run("echo hi", cfg={"ttl_s": 3600})
    jobs.scheduler.wait_for_end(app_id, 60)
    assert jobs.until(app_id).state is AppState.SUCCEEDED
    assert jobs.log(app_id) == ["hi"]
    assert [job.app_id for job in jobs.scheduler.list()] == [app_id]
    assert jobs.scheduler.describe(f"{jobs.namespace}:nobody") is None
    waiting = jobs.run(overlay={"spec": {"schedulerName": "nobody"}})
    assert jobs.scheduler.describe(waiting).state is AppState.PENDING
    jobs.scheduler.cancel(waiting)
    jobs.scheduler.delete(app_id)
    eventually(lambda: jobs.scheduler.describe(app_id) is None)
    with pytest.raises(BackendError, match=r'cannot list resource "jobs" .* in the namespace "kube-system"'):
        jobs.scheduler.describe("kube-system:x")


def test_list_looks_into_all_namespaces(jobs):
    """By our label, where one may; other people's Jobs are not shown."""
    first, second = jobs.run(), jobs.run(cfg={"namespace": "default"})
    foreign = {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "x", "image": jobs.image}]}}}
    cluster.call("POST", jobs.path("jobs", group="apis/batch/v1"), {"metadata": {"name": "foreign"}, "spec": foreign})
    found = [job.app_id for job in jobs.scheduler.list()]
    assert first in found and second in found and not [app_id for app_id in found if "foreign" in app_id]
    assert [job.app_id for job in jobs.scheduler.list({"namespace": jobs.namespace})] == [first]
    jobs.scheduler.delete(second)


# -- secrets, accounts, volumes --------------------------------------------------------------------


def test_values_of_secrets_and_config_maps_reach_the_program(jobs):
    """Variables and files; neither the request nor the job's definition has them."""
    data = {"token": base64.b64encode(b"hunter2").decode()}
    cluster.call("POST", jobs.path("secrets"), {"metadata": {"name": "hf"}, "data": data})
    cluster.call("POST", jobs.path("configmaps"), {"metadata": {"name": "site"}, "data": {"level": "9"}})
    env = {"HF_TOKEN": "[SECRET]hf/token", "LEVEL": "[CONFIG_MAP]site/level", "WHERE": "[FIELD_PATH]spec.nodeName"}
    script = 'echo "$HF_TOKEN $LEVEL $WHERE"; cat /creds/token'
    app_id = jobs.run(script, env=env, cfg={"secret_files": {"/creds": "hf"}})
    found = jobs.until(app_id)
    assert jobs.log(app_id) == [f"hunter2 9 {cluster.NODE}", "hunter2"]
    assert found.roles[0].env["HF_TOKEN"] == "[SECRET]hf/token"
    assert "hunter2" not in json.dumps(jobs.pods(app_id))


def test_a_claim_is_mounted(jobs):
    """Two jobs, one after the other, see the same files; the second may not write."""
    name = f"disk-{jobs.namespace}"
    size = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": name}
    path = {"hostPath": {"path": str(cluster.STATE / name), "type": "DirectoryOrCreate"}}
    cluster.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": {**size, **path}})
    claim = {"accessModes": ["ReadWriteMany"], "storageClassName": name, "resources": {"requests": {"storage": "1Gi"}}}
    cluster.call("POST", jobs.path("persistentvolumeclaims"), {"metadata": {"name": "disk"}, "spec": claim})
    try:
        assert (
            jobs.until(jobs.run("echo x > /disk/a", mounts=[VolumeMount("disk", "/disk")])).state is AppState.SUCCEEDED
        )
        script = (
            "cat /disk/a; (echo y > /disk/a) 2> /dev/null || echo refused"  # stdout and stderr have no common order
        )
        app_id = jobs.run(script, mounts=[VolumeMount("disk", "/disk", read_only=True)])
        jobs.until(app_id)
        lines = jobs.log(app_id)
        assert lines[0] == "x" and lines[-1] == "refused"
    finally:
        cluster.call("DELETE", f"/api/v1/persistentvolumes/{name}")
        subprocess.run(["rm", "-rf", str(cluster.STATE / name)], check=True)


def test_the_secret_to_pull_with_and_the_priority_reach_the_pod(jobs):
    """As the API server took them."""
    name = f"p-{jobs.namespace}"
    cluster.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": 7})
    try:
        app_id = jobs.run(cfg={"image_secret": "ghcr", "priority_class": name})
        jobs.until(app_id)
        spec = jobs.pods(app_id)[0]["spec"]
        assert (spec["imagePullSecrets"], spec["priority"]) == ([{"name": "ghcr"}], 7)
    finally:
        cluster.call("DELETE", f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")


PROGRAM = """
import sys
from torchx.schedulers.kubernetes.client import KubeApi
{before}
api = KubeApi(context="good")
assert api.get("/api/v1/namespaces/default")["kind"] == "Namespace"
assert ("kubernetes.client.models" in sys.modules) is {whole}
import kubernetes
from kubernetes.client import ApiClient, CoreV1Api, V1Pod
assert isinstance(api.client.configuration, kubernetes.client.Configuration) is {whole}
kubernetes.config.load_kube_config(context="good")
assert CoreV1Api().read_namespace("default").kind == "Namespace"
assert KubeApi(ApiClient()).get("/api/v1/namespaces/default")["kind"] == "Namespace"
assert api.get("/api/v1/namespaces/default")["kind"] == "Namespace"
print("all of it")
"""


@pytest.mark.parametrize(("before", "whole"), [("", False), ("import kubernetes", True)], ids=["alone", "imported"])
def test_the_client_of_others_is_whole(kubeconfig, tmp_path, before, whole):
    """Models are not imported for us; a program that imports the package, before or after, has them."""
    good = kubeconfig_of(tmp_path / "good", {"token": cluster.TOKEN}, context="good")
    program = PROGRAM.format(before=before, whole=whole)
    env = {**os.environ, "KUBECONFIG": good}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "all of it\n"), done.stderr
