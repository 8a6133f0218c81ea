"""What an API server refuses, by the rules for names and numbers of Kubernetes.

https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
"""

from __future__ import annotations

from torchx.schedulers.kit import rules
from torchx.schedulers.kit.rules import Rule

_NAMES = ("service_account", "image_secret", "priority_class", "priority_class_name", "queue", "local_queue")
_NO_NAME = "which is not a name: lower case letters, digits, dashes"
RULES = (
    *rules.images(lambda cfg: not cfg.get("in")),  # running pods have theirs
    *(rules.PORTS, *rules.MOUNTS, rules.DEVICES, rules.volumes(rules.SUBDOMAIN, _NO_NAME)),
    Rule(
        rules.mount_paths,
        rules.text("(?!/dev/shm/*$)[^:]*", 4096),
        "where every pod has its shared memory, or which contains a `:`",
    ),
    Rule(
        lambda r: [("a mount's source", getattr(m, "src_path", "/")) for m in r.mounts],
        rules.text("/.*"),
        "not absolute",
    ),
    Rule(lambda r: [("a variable", name) for name in r.env], rules.text(r"[-._a-zA-Z][-.\w]*"), "no name for one"),
    Rule(
        lambda role: [("a device", name) for name in role.resource.devices],
        rules.text(f"(?=[^/]*/|hugepages-|ephemeral-storage){rules.QUALIFIED}"),
        "which is not the name of a resource of nodes, such as `nvidia.com/gpu`",
    ),
    Rule(
        lambda role: [("a capability", name) for name in role.resource.capabilities if "/" in name],
        rules.text(rules.QUALIFIED),
        "which is not the name of a label",
    ),
    Rule(
        lambda role: [(f"capability `{k}`", str(v)) for k, v in role.resource.capabilities.items() if "/" in k],
        rules.text(f"({rules.NAME})?", 63),
        "which is not the value of a label",
    ),
    Rule("namespace", rules.text(rules.LABEL, 63), _NO_NAME),
    *(Rule(name, rules.SUBDOMAIN, _NO_NAME) for name in _NAMES),
    *(Rule(name, rules.whole(0), "not 0 or more") for name in ("ttl_s", "reserved_millicpu", "reserved_memmb")),
)
