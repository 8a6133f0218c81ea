"""An API server in memory, which can fail on demand. Only `tests/backends/kubernetes` tests real servers."""

from __future__ import annotations

import itertools
import json
import re
from urllib.parse import parse_qs, unquote, urlsplit

import urllib3


class Response:
    """The part of a `urllib3` response that is used; the connection breaks before the byte ``cut``."""

    def __init__(self, status, body, headers=None, cut=None):
        self.status = status
        self._cut = cut
        self.headers = urllib3.HTTPHeaderDict(headers or {})
        self._body = body if isinstance(body, bytes) else json.dumps(body).encode()

    def read(self):
        return b"".join(self.stream(len(self._body) or 1))

    __iter__ = urllib3.HTTPResponse.__iter__

    def stream(self, size=1 << 16, decode_content=False):
        for i in range(0, len(self._body[: self._cut]), size):
            yield self._body[: self._cut][i : i + size]
        if self._cut is not None:
            raise urllib3.exceptions.ProtocolError("Connection broken: IncompleteRead")

    def close(self):
        pass

    release_conn = close


class Cluster:
    """Give it to a scheduler as its client.

    Attributes:
        watched: events that a watch tells before it ends.
        cuts: bytes after which the next logs break off, one after the other.
        rights: what the user may do, as ``(verb, group, resource)``; None: everything.
        used: the rights that were needed so far.
        away: called with the method and path of each call before the server sees it; what it returns is the answer,
            or is raised.
        cold: so many calls are answered as by a server whose RBAC caches are not there yet.

    Args:
        version: major and minor.
        groups: API groups with their version that it serves beside the built-in ones.
    """

    def __init__(self, version=(1, 37), groups=()):
        self.version = version
        self.groups = set(groups)
        self.objects = {}
        self.calls = []
        self.faults = []
        self.configuration = self
        self.rest_client = self
        self.pool_manager = self
        self.host = "https://cluster:6443"
        self.token = "sesame"
        self.logs = {}
        self.watched = []
        self.cuts = []
        self.rights = None
        self.used = set()
        self.away = lambda method, path: None
        self.cold = 0
        self._numbers = itertools.count()

    def clear(self):
        """Does nothing; part of the interface of a connection pool."""

    def auth_settings(self):
        return {"BearerToken": {"in": "header", "key": "authorization", "value": f"Bearer {self.token}"}}

    def request(self, method, url, body=None, headers=None, **_):
        """Handles one call. A fault: method, part of the path, response or exception, before or after the server acts."""
        parts = urlsplit(url)
        query = {k: v[0] for k, v in parse_qs(parts.query).items()}
        self.calls.append((method, parts.path, query))
        assert headers["authorization"] == "Bearer sesame"
        if (away := self.away(method, parts.path)) is not None:
            if isinstance(away, Exception):
                raise away
            return away
        fault = next((f for f in self.faults if f[0] == method and f[1] in parts.path), None)
        if fault:
            self.faults.remove(fault)
            if fault[3] == "after":
                self._serve(method, parts.path, query, body)
            if isinstance(fault[2], Exception):
                raise fault[2]
            return fault[2]
        return self._serve(method, parts.path, query, body)

    def _serve(self, method, path, query, body):
        if path == "/version":
            return Response(200, {"major": str(self.version[0]), "minor": f"{self.version[1]}+"})
        if path == "/apis":
            versions = [{"groupVersion": group} for group in sorted(self.groups)]
            return Response(200, {"kind": "APIGroupList", "groups": [{"versions": versions}]})
        group = re.match(r"/(apis/[^/]+/[^/]+|api/v1)", path)[1]
        if path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
            right = json.loads(body)["spec"]["resourceAttributes"]
            wanted = (right["verb"], right["group"], right["resource"])
            return Response(201, {"status": {"allowed": self.rights is None or wanted in self.rights}})
        if said := self._forbids(method, path, query, group):
            return refusal(403, "Forbidden", said)
        if group.startswith("apis/") and group not in ("apis/batch/v1", *(f"apis/{g}" for g in self.groups)):
            return refusal(404, "NotFound", "the server could not find the requested resource")
        rest = [unquote(part) for part in path.removeprefix(f"/{group}").strip("/").split("/") if part]
        if not rest:
            return Response(200, {"kind": "APIResourceList"})
        namespace = rest[1] if rest[0] == "namespaces" and len(rest) > 2 else None
        plural, *name = rest[2:] if namespace else rest
        base = f"{group}/{plural}"
        if name[1:] == ["log"]:
            cut = self.cuts.pop(0) if self.cuts else None
            return Response(200, self.logs.get((name[0], query.get("previous", "")), b""), cut=cut)
        if method == "POST":
            return self._create(base, namespace, json.loads(body), query)
        if "watch" in query:
            return Response(200, b"".join(json.dumps(event).encode() + b"\n" for event in self.watched))
        if name:
            return self._one(method, (base, namespace, name[0]), body)
        return self._list(base, namespace, query)

    def _forbids(self, method, path, query, group):
        """The message of RBAC, which is checked before the object is looked up; empty if allowed."""
        rest = [unquote(part) for part in path.removeprefix(f"/{group}").strip("/").split("/") if part]
        if not rest:
            return ""
        space, rest = (rest[1], rest[2:]) if rest[0] == "namespaces" and len(rest) > 2 else ("", rest)
        resource = "/".join([rest[0], *rest[2:]])
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(method)
        verb = verb or ("get" if len(rest) > 1 else "watch" if "watch" in query else "list")
        right = (verb, group.split("/")[1] if group.startswith("apis/") else "", resource)
        self.used.add(right)
        cold, self.cold = self.cold > 0, max(self.cold - 1, 0)
        if not cold and (self.rights is None or right in self.rights):
            return ""
        named = f' "{rest[1]}"' if len(rest) > 1 else ""
        of = f'in the namespace "{space}"' if space else "at the cluster scope"
        who = 'User "ann" cannot'
        return f'{resource}.{right[1]}{named} is forbidden: {who} {verb} resource "{resource}" in API group "{right[1]}" {of}'

    def _create(self, base, namespace, item, query):
        key = (base, namespace, item["metadata"]["name"])
        if base.endswith("/jobsets") and (said := _jobset_webhook(item)):
            return refusal(403, "Forbidden", f'admission webhook "vjobset.kb.io" denied the request: {said}')
        if key in self.objects:
            return refusal(409, "AlreadyExists", f"{key[2]} already exists")
        if "dryRun" not in query:
            number = next(self._numbers)
            item["metadata"].update(
                uid=f"uid-{number}", resourceVersion=f"v-{number}", creationTimestamp="2026-01-01T00:00:00Z"
            )
            self.objects[key] = item
        return Response(201, item)

    def _one(self, method, key, body):
        if key not in self.objects:
            return refusal(404, "NotFound", f'"{key[2]}" not found')
        if method == "DELETE":
            uid = self.objects.pop(key)["metadata"]["uid"]
            for other, item in list(self.objects.items()):
                if any(ref["uid"] == uid for ref in item["metadata"].get("ownerReferences", ())):
                    self._one("DELETE", other, None)
            return Response(200, {"kind": "Status"})
        if method == "PATCH":
            changes, metadata = json.loads(body), self.objects[key]["metadata"]
            now = metadata.get("resourceVersion")
            if changes.get("metadata", {}).get("resourceVersion", now) != now:
                return refusal(409, "Conflict", f'"{key[2]}": the object has been modified; please apply your changes')
            _merge(self.objects[key], changes)
            metadata["resourceVersion"] = f"v-{next(self._numbers)}"
        return Response(200, self.objects[key])

    def _list(self, base, namespace, query):
        one_of = re.fullmatch(r"(\S+) in \((.*)\)", query.get("labelSelector", ""))
        wanted = [pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair and not one_of]
        found = [
            item
            for (kind, space, _), item in self.objects.items()
            if kind == base
            and namespace in (None, space)
            and all((item["metadata"].get("labels") or {}).get(k) == v for k, v in wanted)
            and (not one_of or (item["metadata"].get("labels") or {}).get(one_of[1]) in one_of[2].split(","))
            and all(_field(item, pair) for pair in query.get("fieldSelector", "").split(",") if pair)
        ]
        start, limit = int(query.get("continue", 0)), int(query.get("limit", 0)) or len(found)
        more = {"continue": str(start + limit)} if start + limit < len(found) else {}
        return Response(200, {"kind": "List", "metadata": more, "items": found[start : start + limit]})

    # -- what a test does to it ------------------------------------------------------------------

    def of(self, kind):
        """Objects of a kind, by its plural."""
        return [item for (base, _, _), item in self.objects.items() if base.endswith(f"/{kind}")]

    def warn(self, item, reason, message, kind="Warning"):
        """Creates a warning event of a controller about an object."""
        metadata = item["metadata"]
        of = {
            "kind": item["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        }
        name = f"event-{next(self._numbers)}"
        event = {"metadata": {"name": name, "uid": name}, "involvedObject": of, "type": kind}
        self.objects["api/v1/events", of["namespace"], name] = {**event, "reason": reason, "message": message}

    def grant(self, rules):
        """Grants the rights in the rules of a Role, and no others."""
        self.rights = {
            (verb, group, resource)
            for rule in rules
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    def end_by_ttl(self, job, reason="Completed"):
        """Ends a Job and deletes it, its pods, and objects that it alone owned, like a TTL."""
        self.warn(job, reason, "Job completed", kind="Normal" if reason == "Completed" else "Warning")
        self.take(job)

    def take(self, item):
        """Deletes an object, and like the garbage collector, objects whose last owner it was."""
        uid = item["metadata"]["uid"]
        self.objects = {key: other for key, other in self.objects.items() if other is not item}
        for other in list(self.objects.values()):
            references = other["metadata"].get("ownerReferences") or ()
            left = [ref for ref in references if ref["uid"] != uid]
            if references and not left:
                self.take(other)
            elif len(left) < len(references):
                other["metadata"]["ownerReferences"] = left

    def run_pods(self, job, status, *, most=10**6):
        """Creates the pods of a Job, or some of them, with this status, like the Job controller."""
        spec = job["spec"]
        for k in range(min(spec["completions"], most)):
            name = f"{job['metadata']['name']}-{k}-abcde"
            metadata = {
                "name": name,
                "namespace": job["metadata"]["namespace"],
                "labels": spec["template"]["metadata"]["labels"],
                "annotations": {
                    **spec["template"]["metadata"].get("annotations", {}),
                    "batch.kubernetes.io/job-completion-index": str(k),
                },
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "uid": job["metadata"]["uid"]}],
                "uid": f"uid-{name}",
                "creationTimestamp": "2026-01-01T00:00:01Z",
            }
            pod = {
                "metadata": metadata,
                "spec": {**spec["template"]["spec"], "nodeName": f"n{k}"},
                "status": {**status},
            }
            self.objects["api/v1/pods", job["metadata"]["namespace"], name] = pod


def refusal(status, reason, message, headers=None):
    """An error response: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/"""
    return Response(status, {"kind": "Status", "reason": reason, "message": message, "code": status}, headers)


def _jobset_webhook(item):
    """The message of JobSet's webhook (release 0.8) on too long names of pods; empty if it accepts them."""
    for job in item["spec"]["replicatedJobs"]:
        last = job["template"]["spec"].get("completions", 1) - 1
        if len(f"{item['metadata']['name']}-{job['name']}-{job['replicas'] - 1}-{last}-abcde") > 63:
            return "JobSet name is too long, pod names generated for this JobSet will exceed 63 characters"
    return ""


def _field(item, pair):
    """Whether a field selector matches an object."""
    path, wanted = pair.split("=")
    for key in path.rstrip("!").split("."):
        item = item.get(key, {}) if isinstance(item, dict) else {}
    return (item == wanted) is not path.endswith("!")


def _merge(target, patch):
    for key, value in patch.items():
        if isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value
