"""Retries by torchx, for policies that the rules of a Job cannot express; see :mod:`.job_retries`.

A label on each Job has the number of its attempt. After the Jobs have failed, the next torchx command that reads the
state of the job applies the policy and creates the Jobs of the next attempt: copies with new names, with more memory,
or with excluded nodes. Concurrent commands use the same names, of which the API server accepts each once, and all use
the attempts recorded on the Job that was created first.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchx.errors import TorchXError
from torchx.schedulers.kit.attempts import judged
from torchx.schedulers.kit.facts import JobFacts
from torchx.schedulers.kit.verdict import judge, role_state
from torchx.schedulers.kubernetes import chains, lifecycle, names
from torchx.schedulers.kubernetes.api.errors import CONFLICT, ApiError
from torchx.schedulers.kubernetes.client import KubeApi, path_to
from torchx.schedulers.kubernetes.job_retries import recorded
from torchx.schedulers.kubernetes.names import JOB, MAIN_CONTAINER, Object
from torchx.schedulers.kubernetes.owners import JobObjects, number_of
from torchx.schedulers.kubernetes.pods.specs import ENV_RANK0_HOST
from torchx.specs.api import AppState
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.retries import Attempt, RetryRules, to_line
from torchx.util.records import replace

if TYPE_CHECKING:
    from torchx.schedulers.kit.facts import Look

_MAX_KEPT = 100
_BY_CONTROLLER = re.compile(r"(batch\.kubernetes\.io/.*)?(controller-uid|job-name|job-tracking)|kubectl\..*")


def retry_failed(api: KubeApi, found: JobObjects, facts: JobFacts, look: Look) -> Attempt | None:
    """Create the next attempt if the last one, of which ``facts`` are, has failed and the policy retries it.

    Returns the attempt that has failed, and whether another one follows; None if none has failed. ``look`` reads the
    error files and logs of failed replicas.
    """
    last, before = found.newest(), found.newest(back=1)
    if len(last.owners) < len(before.owners):  # another process did not finish creating it
        if attempts := recorded(last.owners):  # else somebody has deleted its first Job
            with contextlib.suppress(TorchXError):
                complete(api, before, attempts)
        return None
    failed = any(role_state(role, at_its_end=True) is AppState.FAILED for role in facts.roles)
    rules = Wishes.read(facts.metadata).retry if failed else None
    if rules is None:  # somebody may have removed the annotation
        return None
    attempt = _judged(api, last, facts, rules, look)
    lifecycle.stop_the_others(api, JobObjects(JOB, last.owners, failed=True))
    if attempt.again:
        try:
            complete(api, last, [*facts.attempts, attempt])
        except TorchXError as e:
            attempt.again, attempt.why = False, f"the next attempt could not be made: {e}"
    return attempt


def _judged(api: KubeApi, last: JobObjects, facts: JobFacts, rules: RetryRules, look: Look) -> Attempt:
    verdict = judge(replace(facts, state=AppState.FAILED, unattended=True), look)  # other roles may still run
    attempt = Attempt(started=facts.started or 0.0, ended=facts.ended or 0.0, hosts=verdict.hosts())
    if rules.total:
        kind = verdict.cause.kind if verdict.cause else ""
        chains.mark_progress(api, last.pods, facts.attempts, attempt, kind)
    judged(verdict, rules, facts.attempts, attempt)
    if attempt.again and any(map(_is_cancelled, last.owners)):
        attempt.again, attempt.why = False, "the job was cancelled"
    return attempt


def complete(api: KubeApi, before: JobObjects, attempts: Sequence[Attempt]) -> None:
    """Create those Jobs of an attempt that do not exist yet; if this fails, the next torchx command tries again.

    ``attempts`` are those that have ended; they are ignored if they are already recorded on the first Job.
    """
    first, *others = sorted(before.owners, key=lambda item: str(item["metadata"]["name"]))
    made = [_create(api, next_job(first, attempts, note=True))]
    attempts = recorded(made) or attempts
    made += [_create(api, next_job(item, attempts)) for item in others]
    if _is_cancelled(api.get(path_to("Job", first))):  # in the meantime
        lifecycle.cancel(api, JobObjects(JOB, made))


def cancel(api: KubeApi, found: JobObjects) -> None:
    """End a job and prevent further attempts."""
    lifecycle.cancel(api, found)
    for item in found.newest().owners:
        if number_of(item) and not _is_cancelled(item):
            api.patch(path_to("Job", item), lifecycle.mark(names.ANNOTATION_CANCELLED))


def next_job(item: Object, attempts: Sequence[Attempt], *, note: bool = False) -> Object:
    """Return the Job of the next attempt, from that of the last one and the attempts so far,
    which ``note`` records on it.
    """
    last, memory = attempts[-1], attempts[-2].memory if len(attempts) > 1 else 1.0
    metadata, number = item["metadata"], number_of(item) + 1
    labels = {**_without_controller_marks(metadata["labels"]), names.LABEL_ATTEMPT: str(number)}
    prefixes = _prefix(labels[names.LABEL_UNIQUE_NAME], number - 1), _prefix(labels[names.LABEL_UNIQUE_NAME], number)
    annotations = _without_controller_marks(names.annotations_of(item))
    for mark in (names.ANNOTATION_STOPPED, names.ANNOTATION_ATTEMPTS):
        annotations.pop(mark, None)
    if note:
        annotations[names.ANNOTATION_ATTEMPTS] = "".join(map(to_line, attempts[-_MAX_KEPT:]))
    spec = {key: value for key, value in copy.deepcopy(item["spec"]).items() if key not in ("selector", "suspend")}
    spec["parallelism"] = spec["completions"]
    if names.LABEL_QUEUE in labels:
        spec["suspend"] = True
    template = spec["template"]
    of_pods = _without_controller_marks(template["metadata"]["labels"])
    template["metadata"]["labels"] = {**of_pods, names.LABEL_ATTEMPT: str(number)}
    _change(template["spec"], prefixes, last.memory / memory, last.avoid, {h for a in attempts for h in a.avoid})
    made = {key: metadata[key] for key in ("namespace", "ownerReferences") if key in metadata}
    name = prefixes[1] + metadata["name"].removeprefix(prefixes[0])
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**made, "name": name, "labels": labels, "annotations": annotations},
        "spec": spec,
    }


def _change(spec: Object, prefixes: tuple[str, str], factor: float, avoid: Sequence[str], before: set[str]) -> None:
    """Change the host name of replica 0, the memory, and the excluded nodes in the spec of a pod."""
    if "hostname" in spec:
        spec["hostname"] = prefixes[1] + spec["hostname"].removeprefix(prefixes[0])
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        for variable in container.get("env") or ():
            if variable["name"] == ENV_RANK0_HOST:
                variable["value"] = prefixes[1] + variable["value"].removeprefix(prefixes[0])
        if container["name"] == MAIN_CONTAINER:
            _grow(container.get("resources") or {}, factor)
    if before:
        _exclude_nodes(spec, avoid, before)


def _exclude_nodes(spec: Object, avoid: Sequence[str], before: set[str]) -> None:
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.setdefault("nodeSelectorTerms", [{}]):
        fields = [field for field in term.get("matchFields") or () if not before.intersection(field["values"])]
        # a requirement on a field allows one value only
        fields += [{"key": "metadata.name", "operator": "NotIn", "values": [host]} for host in avoid]
        term["matchFields"] = fields


def _grow(asked: Object, factor: float) -> None:
    """Multiply the memory by a factor. The difference between limit and request, which is reserved, stays the same.

    >>> asked = {"limits": {"memory": "2000M"}, "requests": {"memory": "976M"}}
    >>> _grow(asked, 1.5)
    >>> asked["limits"]["memory"], asked["requests"]["memory"]
    ('3000M', '1976M')
    """
    sizes = {
        of: re.fullmatch(r"(\d+)([A-Za-z]*)", str((asked.get(of) or {}).get("memory"))) for of in ("limits", "requests")
    }
    first = sizes.get("limits") or sizes.get("requests")
    more = round(int(first[1]) * (factor - 1)) if first else 0
    for of, size in sizes.items():
        if size and first and size[2] == first[2]:
            asked[of]["memory"] = f"{int(size[1]) + more}{size[2]}"


def _create(api: KubeApi, item: Object) -> Object:
    """Create a Job, or get the one that another process has created."""
    try:
        return api.create(item)
    except ApiError as e:
        if e.status != CONFLICT:
            raise
    there = api.get(path_to("Job", item))
    if number_of(there) != number_of(item):
        raise TorchXError(f"the name `{item['metadata']['name']}` is already in use")
    return there


def _prefix(app_id: str, number: int) -> str:
    """Prefix of the names of all Jobs and hosts of an attempt."""
    return app_id if number < 2 else f"{app_id}-a{number}"


def _without_controller_marks(marks: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in marks.items() if not _BY_CONTROLLER.fullmatch(key)}


def _is_cancelled(item: Object) -> bool:
    return names.ANNOTATION_CANCELLED in names.annotations_of(item)
