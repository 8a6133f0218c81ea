"""A role as a pod: its command, environment, resources and volumes, and the overlays of users."""

from __future__ import annotations

import json

import pytest

from torchx.errors import SpecError
from torchx.schedulers.kubernetes.names import label_value
from torchx.schedulers.kubernetes.options import KubernetesOpts
from torchx.schedulers.kubernetes.overlays import DEL, PUT, set_overlay
from torchx.schedulers.kubernetes.pods import specs
from torchx.schedulers.kubernetes.pods.specs import JobRules, lay_over, literal, render_pod, render_resources
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, BindMount, DeviceMount, Resource, Role, VolumeMount, resource


def role(**fields):
    given = {"name": "trainer", "image": "img:1", "entrypoint": "python", "args": ["-m", "train"]}
    return Role(**{**given, "resource": Resource(2, 1, 4096), **fields})


def pod(rules=None, **fields):
    return render_pod(role(**fields), rules or JobRules(), labels={"a": "b"}, env={})


def main(rendered):
    return next(c for c in rendered["spec"]["containers"] if c["name"] == "main")


# -- what it runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain $HOME", "plain $HOME"),
        ("$(date)", "$$(date)"),
        ("$$", "$$$$"),
        ("$$$(x)", "$$$$$$(x)"),
        ("a$", "a$"),
        ("${A}", "${A}"),
    ],
)
def test_a_word_arrives_as_it_was_written(text, written):
    """Kubernetes expands `$(NAME)` and `$$`: the result is the user's text."""
    assert literal(text) == written
    assert expand(written) == text


def expand(text, table=None):
    """Kubernetes' expansion: https://github.com/kubernetes/design-proposals-archive/blob/main/node/expansion.md"""
    out, i = "", 0
    while i < len(text):
        if text[i] == "$" and text[i + 1 : i + 2] == "$":
            out, i = out + "$", i + 2
        elif text[i] == "$" and text[i + 1 : i + 2] == "(" and ")" in text[i:]:
            name = text[i + 2 : text.index(")", i)]
            out, i = out + (table or {}).get(name, f"$({name})"), text.index(")", i) + 1
        else:
            out, i = out + text[i], i + 1
    return out


def test_the_replicas_number_is_read_from_the_environment():
    """In a shared template, the macro becomes a reference, whatever precedes it."""
    for before in ("", "$", "$$", "a$$$"):
        assert expand(literal(before + specs.REPLICA), {"TORCHX_REPLICA_ID": "7"}) == before + "7"


def test_the_container_runs_entrypoint_and_args_on_the_image():
    """The command overrides the image's entrypoint."""
    container = main(pod())
    assert container["command"] == ["python", "-m", "train"]
    assert container["image"] == "img:1"


# -- environment -----------------------------------------------------------------------------------


def test_variables_may_point_at_the_pod_a_secret_or_a_config_map():
    """The three markers become references; a value is escaped."""
    env = {"IP": "[FIELD_PATH]status.podIP", "T": "[SECRET]hf/token", "C": "[CONFIG_MAP]conf/lr", "V": "$(A)"}
    rendered = main(render_pod(role(env=env), JobRules(), labels={}, env={}))["env"]
    assert rendered == [
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "T", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "lr"}}},
        {"name": "V", "value": "$$(A)"},
    ]


def test_a_roles_own_value_goes_before_ours():
    """A role can override variables of torchx; no variable occurs twice."""
    rendered = render_pod(role(env={"X": "own"}), JobRules(), labels={}, env={"X": "ours", "Y": "2"})
    assert main(rendered)["env"] == [{"name": "Y", "value": "2"}, {"name": "X", "value": "own"}]


@pytest.mark.parametrize("value", ["[SECRET]token", "[SECRET]/k", "[SECRET]name/", "[CONFIG_MAP]"])
def test_a_reference_without_name_or_key_is_refused(value):
    """The error names variable, role and value."""
    with pytest.raises(SpecError, match="`T` of role `trainer`") as error:
        render_pod(role(env={"T": value}), JobRules(), labels={}, env={})
    assert "name/key" in error.value.hint


# -- resources -------------------------------------------------------------------------------------


def test_what_is_reserved_comes_off_the_requests_alone():
    """The limit is that of the role; the request is smaller by the reserved amount."""
    found = render_resources(Resource(2, 0, 4096), KubernetesOpts(reserved_millicpu=200, reserved_memmb=96))
    assert found == {
        "limits": {"cpu": "2000m", "memory": "4096M"},
        "requests": {"cpu": "1800m", "memory": "4000M"},
    }


def test_requests_are_never_negative():
    """A replica smaller than the reserved amount requests nothing, and keeps its limit."""
    assert render_resources(Resource(0.05, 0, 10), KubernetesOpts())["requests"] == {"cpu": "0m", "memory": "0M"}  # type: ignore[arg-type]  # a part of a CPU: more than the annotation promises


def test_what_is_not_said_is_not_asked_for():
    """-1 means unspecified."""
    assert render_resources(Resource(-1, -1, -1), KubernetesOpts()) == {"limits": {}, "requests": {}}


@pytest.mark.parametrize(("count", "efa"), [(None, "4"), (2, "2"), (0, None)])
def test_efa_devices_come_from_the_resource_or_the_option(count, efa):
    """The option overrides the resource; 0 removes them."""
    asked = Resource(1, 8, 100, devices={"vpc.amazonaws.com/efa": 4})
    limits = render_resources(asked, KubernetesOpts(efa_device_count=count))["limits"]
    assert limits.get("vpc.amazonaws.com/efa") == efa
    assert limits["nvidia.com/gpu"] == "8"


def test_a_named_resource_chooses_its_nodes():
    """Its instance type becomes a node selector; other capabilities do not."""
    rendered = pod(resource=resource(h="aws_p4d.24xlarge"))
    assert rendered["spec"]["nodeSelector"] == {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
    assert "nodeSelector" not in pod(resource=Resource(1, 0, 1, capabilities={"fast": True}))["spec"]


# -- mounts ----------------------------------------------------------------------------------------


def test_mounts_secrets_and_shared_memory():
    """Each kind of mount becomes its kind of volume; shared memory is as large as the role's memory."""
    mounts = [BindMount("/h", "/b", True), VolumeMount("claim", "/v"), DeviceMount("/dev/fuse", "/dev/fuse", "r")]
    spec = pod(JobRules(KubernetesOpts(secret_files={"/creds": "aws"})), mounts=mounts)["spec"]
    volumes = {v["name"]: v for v in spec["volumes"]}
    where = {m["name"]: m for m in spec["containers"][0]["volumeMounts"]}
    assert volumes["dshm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "4096M"}
    assert where["dshm"]["mountPath"] == "/dev/shm"
    assert volumes["mount-0"]["hostPath"] == {"path": "/h"} and where["mount-0"]["readOnly"]
    assert volumes["mount-1"]["persistentVolumeClaim"] == {"claimName": "claim"} and not where["mount-1"]["readOnly"]
    assert (
        volumes["mount-2"]["hostPath"] == {"path": "/dev/fuse", "type": "CharDevice"} and where["mount-2"]["readOnly"]
    )
    assert volumes["secret-0"]["secret"] == {"secretName": "aws", "defaultMode": 0o444}
    assert where["secret-0"] == {"name": "secret-0", "mountPath": "/creds", "readOnly": True}


def test_no_container_is_privileged():
    """Not even with a device."""
    assert "securityContext" not in str(pod(mounts=[DeviceMount("/dev/a", "/dev/a")]))


def test_ports_have_names_that_kubernetes_takes():
    """At most 15 characters, lower case."""
    cut = main(pod(port_map={"tensorboard-http-b": 6007, "tensorboard-http-a": 6006, "x--y": 1}))["ports"]
    assert [port["name"] for port in cut] == ["tensorboard-htt", "tensorboar-6007", "x-y"]
    ports = main(pod(port_map={"Tensorboard_HTTP_main": 6006, "c10d": 29500}))["ports"]
    assert ports == [{"name": "tensorboard-htt", "containerPort": 6006}, {"name": "c10d", "containerPort": 29500}]


# -- labels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "a", "Ünï/cødé", "-.x.-", "x" * 100, "a" * 62 + "--b", "\n"])
def test_every_text_makes_a_label(text):
    """https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set"""
    import re

    assert re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", label_value(text))
    assert len(label_value(text)) <= 63


# -- overlays --------------------------------------------------------------------------------------


def test_an_overlay_is_merged_as_kubectl_would():
    """Containers, variables and volumes are merged by name; tolerations are appended; operators work."""
    trainer = role(env={"A": "1"}, resource=resource(h="aws_p4d.24xlarge"))
    overlay = {
        "metadata": {"annotations": {"team": "x"}},
        "spec": {
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "containers": [
                {"name": "main", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]},
                {"name": "sidecar", "image": "proxy"},
            ],
            DEL("nodeSelector"): None,
            PUT("volumes"): [],
        },
    }
    set_overlay(trainer, "kubernetes", "pod", overlay)
    rendered = render_pod(trainer, JobRules(), labels={}, env={})
    assert main(rendered)["env"] == [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]
    assert [c["name"] for c in rendered["spec"]["containers"]] == ["main", "sidecar"]
    assert rendered["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert "nodeSelector" not in rendered["spec"] and rendered["spec"]["volumes"] == []
    assert rendered["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false", "team": "x"}


def test_the_overlay_of_the_role_lies_over_that_of_the_options():
    """The overlay of the role is applied after that of the option."""
    trainer = role()
    set_overlay(trainer, "kubernetes", "pod", {"spec": {"priority": 2}})
    rendered = render_pod(trainer, JobRules(overlay={"spec": {"priority": 1, "hostIPC": True}}), labels={}, env={})
    assert rendered["spec"]["priority"] == 2 and rendered["spec"]["hostIPC"] is True


@pytest.mark.parametrize("overlay", [{"metadata": {"name": "x"}}, {"status": {}}, {"spec": {"a": object()}}])
def test_an_overlay_that_would_lose_the_job_is_refused(overlay):
    """Names and status cannot be set; values must be JSON."""
    with pytest.raises(SpecError, match="overlay"):
        lay_over({}, overlay, name="overlay")


@pytest.mark.parametrize("overlay", [{"spec": None}, {"spec": []}, {"spec": {"containers": None}}, {"metadata": None}])
@pytest.mark.parametrize("kind", ["job", "volcano", "pytorchjob", "kubeflow"])
def test_an_overlay_that_leaves_nothing_of_the_pod_is_refused(tmp_path, overlay, kind):
    """Such as a file with `spec:` and nothing below it."""
    file = tmp_path / "overlay.json"
    file.write_text(json.dumps(overlay))
    app = AppDef("train", [Role("r", "img", entrypoint="t", resource=Resource(1, 0, 64))])
    with pytest.raises(SpecError, match="leaves a pod without"):
        create_scheduler("me").submit_dryrun(app, {"kind": kind, "pod_overlay": str(file)})
