"""Attempts that whoever looks at a job makes, by a policy that a Job's own rules cannot keep; see :mod:`.attempts`.

The Jobs of such a job bear the number of their attempt. Once they have failed, the next torchx command that looks at
the job judges them, and makes those of the next attempt: copies with other names, with more memory or kept off nodes.
The names are the same whoever makes them, and the API server takes each once: the attempts that the first one wrote on
its Job count for all.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchx.errors import TorchXError
from torchx.schedulers.kit.attempts import judged
from torchx.schedulers.kit.verdict import judge, role_state
from torchx.schedulers.kubernetes import names, verbs
from torchx.schedulers.kubernetes.answers import Found, number_of
from torchx.schedulers.kubernetes.attempts import recorded
from torchx.schedulers.kubernetes.client import KubeApi, path_of
from torchx.schedulers.kubernetes.names import JOB, MAIN_CONTAINER, Object
from torchx.schedulers.kubernetes.pods import ENV_RANK0_HOST
from torchx.schedulers.kubernetes.refusals import ApiError
from torchx.specs.api import AppState
from torchx.specs.retries import RETRY, Attempt, RetryRules, to_line
from torchx.util.records import replace

if TYPE_CHECKING:
    from torchx.schedulers.kit.facts import JobFacts, Look


_CONFLICT = 409
_MOST_KEPT = 100
_BY_CONTROLLER = re.compile(r"(batch\.kubernetes\.io/.*)?(controller-uid|job-name|job-tracking)|kubectl\..*")


def go_on(api: KubeApi, found: Found, facts: JobFacts, look: Look) -> Attempt | None:
    """The attempt that has failed last, with what follows it; the next one has been made then. None: none has failed.

    Args:
        found: the Jobs and pods of all attempts.
        facts: of the last one.
        look: reads what its failed replicas left behind.
    """
    last, before = found.newest(), found.newest(back=1)
    if len(last.owners) < len(before.owners):  # who was making it has not come to the end
        with contextlib.suppress(TorchXError):
            complete(api, before, recorded(last.owners))
        return None
    if not any(role_state(role, at_its_end=True) is AppState.FAILED for role in facts.roles):
        return None
    attempt = _judged(last, facts, look)
    verbs.stop_the_others(api, Found(JOB, last.owners, failed=True))
    if attempt.again:
        try:
            complete(api, last, [*facts.attempts, attempt])
        except TorchXError as e:
            attempt.again, attempt.why = False, f"the next attempt could not be made: {e}"
    return attempt


def _judged(last: Found, facts: JobFacts, look: Look) -> Attempt:
    verdict = judge(replace(facts, state=AppState.FAILED, unattended=True), look)  # though other roles may run on
    rules = RetryRules.parse(facts.metadata[RETRY])
    hosts = [verdict.cause.host] if verdict.cause and verdict.cause.host else []
    attempt = Attempt(started=facts.started or 0.0, ended=facts.ended or 0.0, hosts=hosts)
    judged(verdict, rules, facts.attempts, attempt)
    if attempt.again and any(map(_is_cancelled, last.owners)):
        attempt.again, attempt.why = False, "somebody has cancelled the job"
    return attempt


def complete(api: KubeApi, before: Found, attempts: Sequence[Attempt]) -> None:
    """Makes the Jobs of an attempt that are not there yet.

    Args:
        before: the attempt before it.
        attempts: all that have ended, if nobody has written down others.

    Raises:
        BackendError: one was refused. Whoever looks next goes on.
    """
    first, *others = sorted(before.owners, key=lambda item: str(item["metadata"]["name"]))
    made = [_create(api, next_job(first, attempts, note=True))]
    attempts = recorded(made) or attempts
    made += [_create(api, next_job(item, attempts)) for item in others]
    if _is_cancelled(api.get(_path(first))):  # just now
        verbs.cancel(api, Found(JOB, made))


def cancel(api: KubeApi, found: Found) -> None:
    """Ends a job, and sees to it that nobody makes another attempt of it."""
    verbs.cancel(api, found)
    for item in found.newest().owners:
        if number_of(item) and not _is_cancelled(item):
            api.patch(_path(item), verbs.mark(names.ANNOTATION_CANCELLED))


def next_job(item: Object, attempts: Sequence[Attempt], *, note: bool = False) -> Object:
    """The Job of the next attempt, made of the same one of the last.

    Args:
        attempts: all that have ended.
        note: they are written on it.
    """
    last, memory = attempts[-1], attempts[-2].memory if len(attempts) > 1 else 1.0
    metadata, number = item["metadata"], number_of(item) + 1
    labels = {**_kept(metadata["labels"]), names.LABEL_ATTEMPT: str(number)}
    prefixes = _prefix(labels[names.LABEL_UNIQUE_NAME], number - 1), _prefix(labels[names.LABEL_UNIQUE_NAME], number)
    annotations = _kept(names.annotations_of(item))
    for mark in (names.ANNOTATION_STOPPED, names.ANNOTATION_ATTEMPTS):
        annotations.pop(mark, None)
    if note:
        annotations[names.ANNOTATION_ATTEMPTS] = "".join(map(to_line, attempts[-_MOST_KEPT:]))
    spec = {key: value for key, value in copy.deepcopy(item["spec"]).items() if key not in ("selector", "suspend")}
    spec["parallelism"] = spec["completions"]
    if names.LABEL_QUEUE in labels:
        spec["suspend"] = True
    template = spec["template"]
    template["metadata"]["labels"] = {**_kept(template["metadata"]["labels"]), names.LABEL_ATTEMPT: str(number)}
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
    """Changes a pod: the name of replica 0, its memory, the nodes that it keeps off."""
    if "hostname" in spec:
        spec["hostname"] = prefixes[1] + spec["hostname"].removeprefix(prefixes[0])
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        for variable in container.get("env") or ():
            if variable["name"] == ENV_RANK0_HOST:
                variable["value"] = prefixes[1] + variable["value"].removeprefix(prefixes[0])
        if container["name"] == MAIN_CONTAINER:
            _grow(container.get("resources") or {}, factor)
    if before:
        _keep_off(spec, avoid, before)


def _keep_off(spec: Object, avoid: Sequence[str], before: set[str]) -> None:
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.setdefault("nodeSelectorTerms", [{}]):
        fields = [field for field in term.get("matchFields") or () if not before.intersection(field["values"])]
        # a requirement on fields has one value
        fields += [{"key": "metadata.name", "operator": "NotIn", "values": [host]} for host in avoid]
        term["matchFields"] = fields


def _grow(asked: Object, factor: float) -> None:
    """Multiplies the memory by a factor; what is kept back of a request stays as it is.

    >>> asked = {"limits": {"memory": "2000M"}, "requests": {"memory": "976M"}}
    >>> _grow(asked, 1.5)
    >>> asked["limits"]["memory"], asked["requests"]["memory"]
    ('3000M', '1976M')
    """
    sizes = {of: re.fullmatch(r"(\d+)([A-Za-z]*)", str((asked.get(of) or {}).get("memory"))) for of in asked}
    first = sizes.get("limits") or sizes.get("requests")
    more = round(int(first[1]) * (factor - 1)) if first else 0
    for of, size in sizes.items():
        if size and first and size[2] == first[2]:
            asked[of]["memory"] = f"{int(size[1]) + more}{size[2]}"


def _create(api: KubeApi, item: Object) -> Object:
    """The object, whoever has made it."""
    try:
        return api.create(item)
    except ApiError as e:
        if e.status != _CONFLICT:
            raise
    there = api.get(_path(item))
    if number_of(there) != number_of(item):
        raise TorchXError(f"the name `{item['metadata']['name']}` is taken by something else")
    return there


def _path(item: Object) -> str:
    return path_of(names.OWNERS[JOB], item["metadata"]["namespace"], item["metadata"]["name"])


def _prefix(app_id: str, number: int) -> str:
    """How the names of all Jobs and hosts of an attempt begin."""
    return app_id if number < 2 else f"{app_id}-a{number}"


def _kept(marks: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in marks.items() if not _BY_CONTROLLER.fullmatch(key)}


def _is_cancelled(item: Object) -> bool:
    return names.ANNOTATION_CANCELLED in names.annotations_of(item)
