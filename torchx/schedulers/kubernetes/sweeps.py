"""Sweeps on Kubernetes: one Indexed Job, whose pods read their values from a ConfigMap with a line for each task.

Each task is a replica of that Job, so that its pods, logs and state are those of any job.
https://kubernetes.io/docs/concepts/workloads/controllers/job/#backoff-limit-per-index
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torchx.errors import NotSupportedError
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.facts import ReplicaFacts
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.kit.tasks import (
    check_numbers,
    describe_sweep,
    describe_task,
    only_role,
    shell_words,
    values_line,
)
from torchx.schedulers.kubernetes import names, packed
from torchx.schedulers.kubernetes.answers import definition
from torchx.schedulers.kubernetes.api.errors import CONFLICT, ApiError
from torchx.schedulers.kubernetes.client import KubeApi, path_of, path_to
from torchx.schedulers.kubernetes.logs import EvidenceReader
from torchx.schedulers.kubernetes.names import JOB, MAIN_CONTAINER, PER_INDEX_SINCE, Object, annotations_of
from torchx.schedulers.kubernetes.owners import read_owner
from torchx.schedulers.kubernetes.pods.facts import Pod, read_pods
from torchx.schedulers.kubernetes.pods.specs import literal
from torchx.schedulers.kubernetes.request import KubernetesJob
from torchx.schedulers.kubernetes.shipped_code import AUTO, metadata_of_part
from torchx.specs.api import AppDef, AppState, is_terminal
from torchx.specs.tasks import TaskList, TaskTable, placeholders
from torchx.util.records import replace

MAX_TASKS = 100_000
"""The limit of an Indexed Job with ``backoffLimitPerIndex``."""
MAX_BYTES = 1_000_000
"""The limit for the values. A ConfigMap holds 1 MiB."""
_DEFAULT_PARALLEL = 100
_MAX_CONFLICTS = 20
_FOLDER = "/torchx-values"
_VOLUME = "torchx-values"


def check(job: KubernetesJob, app: AppDef | None, tasks: TaskList, version: tuple[int, int]) -> None:
    """Raise NotSupportedError for a sweep that cannot be one Indexed Job."""
    only_role(app, "kubernetes", timeout=True)
    if job.opts.kind not in (JOB, AUTO):
        raise NotSupportedError(f"a sweep is a Job, and cannot have `kind={job.opts.kind}`")
    if version < PER_INDEX_SINCE:
        since = ".".join(map(str, PER_INDEX_SINCE))
        raise NotSupportedError(
            f"Kubernetes {version[0]}.{version[1]} ends a Job at its first failure; {since} does not"
        )
    if tasks.pack > packed.MAX_PACK:
        raise NotSupportedError(f"a pod runs {packed.MAX_PACK} tasks at most", hint=f"`--pack {packed.MAX_PACK}`")
    if len(tasks.points) > MAX_TASKS:
        raise NotSupportedError(f"an Indexed Job has {MAX_TASKS:,} tasks at most")
    if sum(len(values_line(point).encode()) for point in tasks.points) > MAX_BYTES:
        raise NotSupportedError(f"the values are longer than the {MAX_BYTES // 1000} kB of a ConfigMap")


def with_values(objects: list[Object], tasks: TaskList) -> list[Object]:
    """Add the ConfigMap with the values to the objects of a job, and change its Job so that its pods read them."""
    job = next(item for item in objects if item["kind"] == "Job")
    name = f"{objects[0]['metadata']['name']}-values"
    parallel = tasks.max_parallel or _DEFAULT_PARALLEL
    job["metadata"]["annotations"][names.ANNOTATION_SWEEP] = str(parallel)
    spec = job["spec"]
    spec["parallelism"] = min(parallel, len(tasks.points))
    for limit in ("backoffLimit", "maxFailedIndexes"):  # a failed task does not end the others
        spec.pop(limit, None)
    spec["backoffLimitPerIndex"] = 0
    pod = spec["template"]["spec"]
    main = next(c for c in pod["containers"] if c["name"] == MAIN_CONTAINER)
    own = {item["name"]: item["value"] for item in main["env"] if placeholders(item.get("value", ""))}
    if tasks.pack == 1:
        assignments, words = shell_words(tasks.names, own, main["command"])
        script = literal(read_script(__file__, "task.sh"))
        main["command"] = ["sh", "-c", "\n".join([script.strip(), *assignments, f"exec {' '.join(words)}"])]
        main["env"] = [item for item in main["env"] if item["name"] not in own]
    main["volumeMounts"] = [*main["volumeMounts"], {"name": _VOLUME, "mountPath": _FOLDER, "readOnly": True}]
    pod["volumes"] = [*pod["volumes"], {"name": _VOLUME, "configMap": {"name": name}}]
    if tasks.pack > 1:
        packed.pack_tasks(job, main, tasks)
    values = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata_of_part(name, objects[0]["metadata"]),
        "data": {"values": "".join(map(values_line, tasks.points)), "skipped": ""},
    }
    return [objects[0], values, *objects[1:]]


# -- state ----------------------------------------------------------------------------------------------------


def table_of(item: Object, pods: Sequence[Pod]) -> TaskTable:
    """Return the states of all tasks: from the Job, and for running and failed tasks, from the pods."""
    pack, count = packed.pack_of(item, int(item["spec"]["completions"]))
    owner = read_owner(JOB, item)
    over = owner.state if owner.state is not None and is_terminal(owner.state) else None
    table = TaskTable(
        states=[over if over in (AppState.CANCELLED, AppState.FAILED) else AppState.PENDING] * count,
        exit_codes=[None] * count,
        ended=[0.0] * count,
        max_parallel=int(annotations_of(item)[names.ANNOTATION_SWEEP]),
    )
    for pod in pods:
        k = pod.facts.replica
        if 0 <= k < count and (over is None or is_terminal(pod.facts.state)):
            table.states[k], table.ended[k] = pod.facts.state, pod.facts.ended
            table.exit_codes[k] = pod.facts.exit_code
    for k, state in _ended(owner.ended, pack):
        if k < count and (pack == 1 or state is AppState.SUCCEEDED or not is_terminal(table.states[k])):
            table.states[k] = state
            if state is AppState.SUCCEEDED:
                table.exit_codes[k] = 0
    for k in _skipped(item):
        if k < count and (is_terminal(table.states[k]) or table.states[k] is AppState.PENDING):
            table.states[k] = AppState.CANCELLED
    return table


def _ended(pods: Mapping[int, AppState], pack: int) -> Iterator[tuple[int, AppState]]:
    """Yield the tasks of pods that have ended; of a pod that has failed, some may have succeeded."""
    for number, state in pods.items():
        yield from ((k, state) for k in range(number * pack, (number + 1) * pack))


def describe(app_id: str, item: Object, pods: Sequence[Pod]) -> DescribeAppResponse:
    """Return the answer for the sweep."""
    owner = read_owner(JOB, item)
    answer = describe_sweep(app_id, table_of(item, pods))
    if owner.reason and not is_terminal(answer.state):
        answer.msg += f"; {owner.reason}"
    app = definition([item])
    answer.roles = list(app.roles) if app is not None else []
    return answer


def describe_some(
    api: KubeApi, app_id: str, item: Object, pods: Sequence[Pod], numbers: Sequence[int]
) -> list[DescribeAppResponse]:
    """Return the answers for some tasks, with the causes of failures."""
    table = table_of(item, pods)
    check_numbers(app_id, numbers, len(table.states))
    app = definition([item])
    role = app.roles[0].name if app is not None else ""
    there = {pod.facts.replica: pod for pod in pods}
    look = EvidenceReader(api, item["metadata"]["namespace"], {(role, k): pod for k, pod in there.items()})
    answers = []
    for k in numbers:
        state = table.states[k]
        facts = there[k].facts if k in there else ReplicaFacts(role=role, replica=k, state=state)
        facts = replace(facts, role=role, state=state, stopped=state is AppState.CANCELLED)
        answers.append(describe_task(f"{app_id}/{k}", facts, look))
    return answers


def cancel_task(api: KubeApi, item: Object, items: Sequence[Object], k: int) -> None:
    """Prevent a task from starting, or delete its pod; one of several in a pod is ended there."""
    namespace = item["metadata"]["namespace"]
    pack, count = packed.pack_of(item, int(item["spec"]["completions"]))
    check_numbers(item["metadata"]["name"], [k], count)
    volumes = item["spec"]["template"]["spec"]["volumes"]
    name = next(volume["configMap"]["name"] for volume in volumes if volume["name"] == _VOLUME)
    written: set[int] = set()
    # Another process may cancel another task at the same moment: the Job counts, and the ConfigMap, which the script of
    # the tasks reads, is written again until it agrees with it.
    while written != (skipped := _skipped_after(api, path_to("Job", item), k)):
        text = "".join(f"{number}\n" for number in sorted(skipped))
        api.patch(path_of("ConfigMap", namespace, name), {"data": {"skipped": text}})
        written = skipped
    if pack > 1:
        packed.cancel(api, items, k)
        return
    for pod in read_pods(items):
        if pod.facts.replica == k and not is_terminal(pod.facts.state):
            api.delete(path_of("Pod", namespace, pod.name))


def _skipped_after(api: KubeApi, path: str, k: int) -> set[int]:
    """Add a task to those that a Job skips, and return all of them."""
    conflicts = 0
    while k not in (skipped := _skipped(item := api.get(path))):
        marks = {names.ANNOTATION_SKIPPED: ",".join(map(str, sorted({*skipped, k})))}
        version = item["metadata"]["resourceVersion"]
        try:
            api.patch(path, {"metadata": {"resourceVersion": version, "annotations": marks}})
        except ApiError as e:
            conflicts += 1
            if e.status != CONFLICT or conflicts > _MAX_CONFLICTS:
                raise
    return skipped


def _skipped(item: Object) -> set[int]:
    return {int(word) for word in annotations_of(item).get(names.ANNOTATION_SKIPPED, "").split(",") if word.isdigit()}
