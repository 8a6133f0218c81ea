"""The files of a replica that has ended, on its claims: a pod that mounts them read-only brings them.

https://kubernetes.io/docs/concepts/storage/persistent-volumes/#persistentvolumeclaims
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from torchx.errors import BackendError
from torchx.schedulers.kit.inside import InsideProcess
from torchx.schedulers.kit.inside.kept import Kept, below, folders
from torchx.schedulers.kubernetes.client import KubeApi, path_of, path_to
from torchx.schedulers.kubernetes.inside import PodProcess, is_running
from torchx.schedulers.kubernetes.names import Object
from torchx.schedulers.kubernetes.pods.events import why_it_does_not_start
from torchx.schedulers.kubernetes.pods.facts import main_container, read_pod
from torchx.specs.api import is_terminal

_LIFE_S = 3600
"""After this time the cluster ends a pod whose torchx was killed; it is deleted with the job."""
_START_S = 180.0
_POLL_S = 0.5
_AS_THE_JOB = ("securityContext", "imagePullSecrets", "nodeSelector", "tolerations", "runtimeClassName")
_LIMITS = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}


def kept(api: KubeApi, pod: Object) -> list[Kept]:
    """Return the folders of the claims of a pod that has ended; the helper pod starts when one of them is read."""
    claims = {
        str(volume.get("name")): str(volume["persistentVolumeClaim"].get("claimName"))
        for volume in pod["spec"].get("volumes") or ()
        if volume.get("persistentVolumeClaim")
    }
    container = main_container(pod["spec"]["containers"])
    mounts = [
        {**mount, "readOnly": True}
        for mount in container.get("volumeMounts") or ()
        if mount.get("name") in claims and not mount.get("subPathExpr")
    ]
    if not mounts:
        return []
    names = {str(mount["mountPath"]): claims[mount["name"]] for mount in mounts}
    reader = ClaimReader(api, pod, mounts, sorted(set(names.values())))
    work = str(container.get("workingDir") or "")
    paths = dict.fromkeys([*([work] if below(work, names) else []), *names])
    return [
        place._replace(within=tuple(names), close=reader.close)
        for path in paths
        for place in folders([path], reader.start, f"claim `{names[_mount_of(path, names)]}`")
    ]


def _mount_of(path: str, mounts: Iterable[str]) -> str:
    return max((mount for mount in mounts if below(path, [mount])), key=len)


class ClaimReader:
    """A pod that mounts the claims of an ended one, from the first command in it until it is closed."""

    def __init__(self, api: KubeApi, ended: Object, mounts: list[Object], claims: Sequence[str]) -> None:
        self._api = api
        self._claims = ", ".join(f"`{claim}`" for claim in claims)
        self._item = _helper(ended, mounts)
        self._pod: Object | None = None
        self._is_made = False

    def start(self, argv: list[str]) -> InsideProcess:
        """Start a command in the pod, which it creates first.

        Raises:
            BackendError: the cluster rejects the pod, or it does not start in time.
        """
        if self._pod is None:
            about = self._item["metadata"]
            where = f"pod {about['namespace']}/{about['name']}"
            sys.stderr.write(f"creating {where} to read the claim {self._claims}; it is deleted afterwards\n")
            self._is_made = True  # also if the answer is lost
            self._api.create(self._item)
            self._pod = self._running()
        return PodProcess(self._api, self._pod, argv, None)

    def _running(self) -> Object:
        about, deadline = self._item["metadata"], time.monotonic() + _START_S
        query = {"fieldSelector": f"metadata.name={about['name']}"}
        while True:
            found = self._api.items(path_of("Pod", about["namespace"]), query)
            if is_running(found):
                return found[-1]
            facts = read_pod(found[-1]).facts if found else None
            if facts is None or is_terminal(facts.state) or time.monotonic() > deadline:
                why = why_it_does_not_start(self._api, about["namespace"], found[-1]) if found else "it was deleted"
                said = ": ".join(filter(None, (f"the pod that reads the claim {self._claims} does not run", why)))
                if not why and facts is not None and facts.reason:
                    said = f"{said}: {facts.reason}"
                raise BackendError(said, hint="is the claim in use on another node, or does the image lack a shell?")
            self._api.sleep(_POLL_S)

    def close(self) -> None:
        """Delete the pod. If that fails, the cluster ends it after an hour."""
        if self._is_made:
            with suppress(BackendError):
                self._api.delete(path_to("Pod", self._item), grace_s=0)
            self._is_made, self._pod = False, None


def _helper(ended: Object, mounts: list[Object]) -> Object:
    """Return a pod like an ended one, as far as access to its claims needs it; the owners' end is its own."""
    spec, about = ended["spec"], ended["metadata"]
    main = main_container(spec["containers"])
    volumes = {mount["name"] for mount in mounts}
    container: dict[str, Any] = {
        "name": "torchx-cp",
        "image": main["image"],
        "command": ["sleep", str(_LIFE_S)],
        "volumeMounts": mounts,
        "resources": _LIMITS,
        **({"securityContext": main["securityContext"]} if main.get("securityContext") else {}),
    }
    owners = [
        {**owner, "controller": False, "blockOwnerDeletion": False} for owner in about.get("ownerReferences") or ()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"torchx-cp-{secrets.token_hex(5)}",
            "namespace": about["namespace"],
            "annotations": {"torchx.pytorch.org/reads": about["name"]},
            "ownerReferences": owners,
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _LIFE_S,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **{name: spec[name] for name in _AS_THE_JOB if spec.get(name)},
            "containers": [container],
            "volumes": [volume for volume in spec["volumes"] if volume.get("name") in volumes],
        },
    }
