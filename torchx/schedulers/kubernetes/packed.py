"""Several tasks of a sweep in one pod, one after another: each is a container, all but the last are init containers.

So each has its own log, and its end is in the status of the pod, from which :func:`unpacked` makes a pod for each task.
https://kubernetes.io/docs/concepts/workloads/pods/init-containers/
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchx.errors import BackendError
from torchx.schedulers.kit.commands import last_line
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.kit.tasks import shell_words
from torchx.schedulers.kubernetes import names
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes.names import MAIN_CONTAINER, Object, annotations_of
from torchx.schedulers.kubernetes.pod_files import PodFiles
from torchx.schedulers.kubernetes.pods.facts import replica_of
from torchx.schedulers.kubernetes.pods.specs import REPLICA, literal
from torchx.settings import ENV_REPLICA_ID
from torchx.specs.tasks import TaskList, placeholders

MAX_PACK = 100
"""The statuses of a pod's containers share 12 KiB for their messages."""
_FOLDER = "/torchx-pack"
_VOLUME = "torchx-pack"
_ENV_ELEMENT = "torchx_element"
_ONLY_MAIN = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")  # init containers have none
_REPLICA = re.compile(r"(?<!\$)((?:\$\$)*)\$\(" + ENV_REPLICA_ID + r"\)")
_END = re.compile(r"torchx: exit code (\d+)\n?")
_KILLED = (137, 143)
_NEVER = {"reason": "NotStarted", "message": "an earlier task in the same pod was killed, and the pod with it"}
_CANCEL = """\
: >"/torchx-pack/skipped.$1"
read -r pid <"/torchx-pack/pid.$1" || exit 0
kill "$pid" || exit 0
end() { n=30; while [ "$n" -gt 0 ]; do sleep 1; kill -0 "$pid" || return; n=$((n - 1)); done; kill -KILL "$pid"; }
end >/dev/null 2>&1 </dev/null &"""


def pack_tasks(job: Object, main: Object, tasks: TaskList) -> None:
    """Change a Job whose pods run one task each, so that they run ``tasks.pack`` tasks in containers like ``main``."""
    mark = {names.ANNOTATION_PACK: f"{tasks.pack} {len(tasks.points)}"}
    spec, template = job["spec"], job["spec"]["template"]
    for item in (job, template):
        item["metadata"]["annotations"] = {**item["metadata"].get("annotations", {}), **mark}
    spec["completions"] = -(-len(tasks.points) // tasks.pack)
    spec["parallelism"] = min(spec["parallelism"], spec["completions"])
    pod = template["spec"]
    pod["volumes"] = [*pod["volumes"], {"name": _VOLUME, "emptyDir": {}}]
    main["volumeMounts"] = [*main["volumeMounts"], {"name": _VOLUME, "mountPath": _FOLDER}]
    number = next(item for item in main["env"] if item["name"] == ENV_REPLICA_ID)
    main["env"] = [{**item, "name": _ENV_ELEMENT} if item is number else item for item in main["env"]]
    # the number in the pod's environment is that of the element
    main["command"] = [_REPLICA.sub(rf"\1{REPLICA}", word) for word in main["command"]]
    own = {item["name"]: item["value"] for item in main["env"] if _is_own(item.get("value", ""))}
    own = {name: _REPLICA.sub(rf"\1{REPLICA}", value) for name, value in own.items()}
    assignments, words = shell_words(tasks.names, own, main["command"], {REPLICA: ENV_REPLICA_ID})
    main["env"] = [item for item in main["env"] if item["name"] not in own]
    reads, runs = (literal(read_script(__file__, name)).strip() for name in ("task.sh", "pack.sh"))
    task = "\n".join(["torchx_task() {", reads, *assignments, f"exec {' '.join(words)}", "}"])

    def command(at: int) -> list[str]:
        head = f"torchx_at={at} torchx_pack={tasks.pack} torchx_tasks={len(tasks.points)}"
        return ["sh", "-c", "\n".join([head, runs, task, "torchx_one"])]

    first = {name: value for name, value in main.items() if name not in _ONLY_MAIN}
    others = [{**first, "name": name_of(at, tasks.pack), "command": command(at)} for at in range(tasks.pack - 1)]
    pod["initContainers"] = [*pod.get("initContainers", ()), *others]
    main["command"] = command(tasks.pack - 1)


def _is_own(value: str) -> bool:
    return bool(placeholders(value) or _REPLICA.search(value))


def name_of(at: int, pack: int) -> str:
    """Return the name of the container that runs a task of a pod."""
    return MAIN_CONTAINER if at == pack - 1 else f"task-{at}"


def pack_of(item: Object, count: int = 0) -> tuple[int, int]:
    """Return the tasks in a pod and in the sweep, from a Job or one of its pods; others have one and ``count``."""
    words = str(annotations_of(item).get(names.ANNOTATION_PACK) or "").split()
    is_ours = len(words) == 2 and all(map(str.isdecimal, words)) and int(words[0]) > 0
    return (int(words[0]), int(words[1])) if is_ours else (1, count)


def unpacked(pods: Iterable[Object]) -> list[Object]:
    """Return these pods; instead of one that runs several tasks, one for each of them with its container only."""
    found = []
    for pod in pods:
        pack, count = pack_of(pod)
        found += [pod] if pack == 1 else [_task(pod, k, pack, count) for k in _numbers(pod, pack, count)]
    return found


def _numbers(pod: Object, pack: int, count: int) -> range:
    first = replica_of(pod["metadata"]) * pack
    return range(first, min(first + pack, count))


def _task(pod: Object, k: int, pack: int, count: int) -> Object:
    """Return the part of a pod that is task ``k``."""
    name, spec, status = name_of(k % pack, pack), pod["spec"], pod.get("status") or {}
    same = [c for kind in ("initContainers", "containers") for c in spec.get(kind) or () if c.get("name") == name]
    container = next((c for c in _statuses(status) if c.get("name") == name), {})
    state = container.get("state") or {}
    phase = status.get("phase")
    if (ended := state.get("terminated")) is not None:
        said = _END.match(str(ended.get("message") or ""))
        if said is not None:
            ended = {**ended, "exitCode": int(said[1]), "message": str(ended["message"])[said.end() :]}
        container = {**container, "state": {"terminated": ended}}
        phase = "Failed" if ended.get("exitCode") else "Succeeded"
    elif "running" in state:
        phase = "Running"
    elif phase != "Failed":
        phase = "Pending"
    if ended is not None and ended.get("exitCode") not in _KILLED:
        status = {}  # what ended the pod did not end this task
    elif phase == "Failed" and ended is None and not status.get("reason"):
        status = {**status, **_NEVER}
    waits = phase == "Pending" and _has_begun(pod, count)
    shown = [container] if container and not waits else []
    labels = {**(pod["metadata"].get("labels") or {}), names.LABEL_REPLICA_ID: str(k)}
    started = (state.get("running") or state.get("terminated") or {}).get("startedAt")
    return {
        **pod,
        "metadata": {**pod["metadata"], "labels": labels},
        "spec": {**spec, "initContainers": [], "containers": same, **({"nodeName": ""} if waits else {})},
        "status": {
            **status,
            **({"startTime": started} if started else {}),
            "phase": phase,
            "initContainerStatuses": [],
            "containerStatuses": shown,
        },
    }


def _statuses(status: Object) -> list[Object]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _has_begun(pod: Object, count: int) -> bool:
    """Whether one of its tasks has started."""
    pack, _ = pack_of(pod, count)
    ours = {name_of(at, pack) for at in range(pack)}
    begun = [c for c in _statuses(pod.get("status") or {}) if {"running", "terminated"} & (c.get("state") or {}).keys()]
    return any(c.get("name") in ours for c in begun)


def cancel(api: KubeApi, pods: Iterable[Object], k: int) -> None:
    """End task ``k`` if it runs in one of these pods, or keep it from starting there, by a process in its pod."""
    for pod in pods:
        pack, count = pack_of(pod)
        going = (c for c in _statuses(pod.get("status") or {}) if "running" in (c.get("state") or {}))
        name = next((c["name"] for c in going), "")
        if name and k in _numbers(pod, pack, count):
            named = {**pod, "spec": {"containers": [{"name": name}]}}
            ran = PodFiles(api, named).run("sh", "-c", _CANCEL, "sh", str(k))
            if ran.exit_code:
                raise BackendError(f"task {k} cannot be ended: {last_line(ran.stderr.decode('utf-8', 'replace'))}")
