"""A job inside the running pods of another one, such as that of `utils.session`: a process in each pod, by exec.

Its app id is that of the other job with a name of its own, ``team:session-x1.train-x2``. Its files are in the pods,
below ``/tmp/torchx/NAME``, because there is no other place that they share: they end with the pods. ``inner.sh`` runs a
replica; it needs no client.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from torchx.errors import BackendError, ConfigError, NotFoundError, NotSupportedError, Unsent
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.batch.folders import JOB_FILE, JobFolder, folder_name
from torchx.schedulers.batch.logs import BatchLog
from torchx.schedulers.kit.allocations import check_wishes, say_unused
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures import SHELL, Evidence, signal_name
from torchx.schedulers.kit.inside import described
from torchx.schedulers.kit.inside.kept import folders
from torchx.schedulers.kit.replicas import Replica, replicas
from torchx.schedulers.kit.secrets import is_value, revealed, split
from torchx.schedulers.kit.shell import env_words, exports, quote, read_script
from torchx.schedulers.kit.simulations import cannot
from torchx.schedulers.kit.verdict import describe
from torchx.schedulers.kit.views import View
from torchx.schedulers.kubernetes import inside
from torchx.schedulers.kubernetes.base import KubeScheduler, split_id
from torchx.schedulers.kubernetes.pod_files import PodFiles
from torchx.schedulers.kubernetes.pods.specs import ENV_RANK0_HOST, PLACEHOLDERS
from torchx.schedulers.kubernetes.request import unique_id
from torchx.schedulers.kubernetes.shipped_code import Code
from torchx.settings import ENV_JOB_ID, ENV_STEPS, ENV_WORKSPACE_HASH
from torchx.specs.api import AppDef, AppState, Role, is_terminal
from torchx.specs.ready import has_order
from torchx.specs.secret import Secret
from torchx.specs.serialize import appdef_to_dict, masked
from torchx.specs.wishes import Wishes
from torchx.supervisor.layout import ERROR_FILE, STEPS_FILE
from torchx.util.records import dataclass, field, replace

if TYPE_CHECKING:
    from torchx.schedulers.kit.files import Files
    from torchx.schedulers.kit.inside import InsideProcess, Tty
    from torchx.schedulers.kit.inside.kept import Kept
    from torchx.schedulers.kit.logs import LogQuery
    from torchx.schedulers.kit.metrics import ReplicaMetrics
    from torchx.schedulers.kit.simulations import Simulation
    from torchx.schedulers.kubernetes.client import KubeApi
    from torchx.schedulers.kubernetes.names import Object
    from torchx.schedulers.kubernetes.options import KubernetesOpts

_HOME = "/tmp/torchx"  # noqa: S108  # in a pod
_WITHIN = "running pods"
_UNUSED = (
    *("queue", "service_account", "priority_class", "image_repo", "efa_device_count", "kind", "gang", "local_queue"),
    *("runtime", "image_secret", "secret_files", "pod_overlay", "ttl_s", "deadline_s", "node_selector", "tolerations"),
    *("spread", "pack", "claims", "topology", "bucket"),
)
_RUNNING = "running"
_OTHERS = "others"  # why a replica was stopped: another one had failed
_WAIT_S = 20.0
_STATE = """\
cd "$1" 2>/dev/null && [ -e started ] || { echo none; exit; }
begun=$(cat begun 2>/dev/null); echo "${begun:-0}" # it may be there, but not yet written
if [ ! -e end ] && { [ ! -s pid ] || kill -0 "$(cat pid)" 2>/dev/null; }; then echo running; exit; fi
cat end 2>/dev/null || echo lost"""
_STOP = """\
cd "$1" && [ ! -e end ] || exit 0
if [ -e stop ]; then kill -KILL "$(cat child)"; else echo "$2" >stop; kill "$(cat pid)"; fi 2>/dev/null
exit 0"""
_LISTEN = 'n=$2; while [ -d "$1" ] && [ ! -e "$1/end" ] && [ "$n" -gt 0 ]; do n=$((n - 1)); sleep 1; done'
_ENTER = '. "$0"; exec "$@"'
_FRESH = r"""for torchx_old in $(env | sed -n 's/^\(TORCHX_[A-Z0-9_]*\)=.*/\1/p'); do unset "$torchx_old"; done"""
_LAUNCH = """\
mkdir started 2>/dev/null || exit 0 # the answer to an earlier call was lost
set -- sh inner.sh
if command -v setsid >/dev/null 2>&1; then : >group; set -- setsid "$@"; fi
"$@" </dev/null >/dev/null 2>&1 &"""


@dataclass
class InnerJob:
    """The request for a job inside pods.

    Attributes:
        app_id: with the namespace, and the name of the job whose pods it uses.
        codes: packed workspaces by hash.
    """

    app: AppDef
    app_id: str
    opts: KubernetesOpts
    codes: dict[str, Code] = field(default_factory=dict, repr=False)
    images_to_push: dict[str, tuple[str, str]] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return what runs in each pod, without secrets and code."""
        lines = [f"# inside the pods of {_session(self.app_id)}; files: {_folder(self.app_id)}"]
        for member in self.members("RANK0_HOST"):
            env = {**split(member.role.env)[0], **dict.fromkeys(split(member.role.env)[1], "***")}
            words = [*env_words(env), *map(quote, (member.role.entrypoint, *member.role.args))]
            code = " with the workspace" if ENV_WORKSPACE_HASH in env else ""
            lines += [f"# {member.role.name}/{member.k}{code}", *exports(env), " ".join(words)]
        return "\n".join(lines) + "\n"

    def members(self, rank0: str) -> list[Replica]:
        """Return the replicas, with their environment."""
        namespace, name = split_id(self.app_id)
        own = name.rpartition(".")[2]
        found = list(replicas(self.app, own, rank0_env=ENV_RANK0_HOST))
        for member in found:
            job = member.role.env.get(ENV_JOB_ID, "")
            if job.endswith(f"/{own}"):  # the handle names the pods, too
                member.role.env[ENV_JOB_ID] = f"{job.removesuffix(own)}{namespace}:{name}"
            member.role.env[ENV_RANK0_HOST] = rank0
        return found


def request(app: AppDef, opts: KubernetesOpts, codes: dict[str, Any]) -> InnerJob:
    """Return the request for a job in the pods that ``opts.in_`` names.

    Raises:
        ConfigError: it is not the name of a job.
        NotSupportedError: the job needs what only pods of its own have.
    """
    check_wishes(Wishes.of(app), _WITHIN)
    if has_order(app):
        raise NotSupportedError(f"the roles have an order, which {_WITHIN} (`in`) do not keep", hint="omit `in`")
    given = str(opts.in_).rpartition("/")[2]
    namespace, name = split_id(given if ":" in given else f"{opts.namespace}:{given}")
    if not (namespace and name) or "." in name:
        raise ConfigError(f"run option `in` is `{opts.in_}`", hint="it is the handle of a running job with pods")
    say_unused(opts, _UNUSED, {"kind": "auto", "gang": "auto"})
    for role in app.roles:
        if role.mounts:
            raise NotSupportedError(
                f"role `{role.name}` has mounts, and {_WITHIN} (`in`) keep theirs", hint="omit them"
            )
        for name_, value in role.env.items():
            if value.startswith(PLACEHOLDERS) or (isinstance(value, Secret) and not is_value(value)):
                raise NotSupportedError(
                    f"variable `{name_}` comes from the cluster, which sets those of new pods only",
                    hint="give it to the session",
                )
    used = {code: codes[code] for role in app.roles if (code := role.env.get(ENV_WORKSPACE_HASH, "")) in codes}
    return InnerJob(app, f"{namespace}:{name}.{unique_id(app)}", opts, used)


def _session(app_id: str) -> str:
    """Return the id of the job whose pods are used; that of any other job is its own."""
    return app_id.rpartition(".")[0] or app_id


def _folder(app_id: str) -> str:
    return f"{_HOME}/{app_id.rpartition('.')[2]}"


def _script(job: InnerJob, member: Replica, app: AppDef, env: dict[str, str]) -> bytes:
    """Return the script that starts a replica in its pod."""
    top = _folder(job.app_id)
    here = f"{top}/{folder_name(member.role.name)}/{member.k}"
    own = {"TORCHELASTIC_ERROR_FILE": f"{here}/{ERROR_FILE}", ENV_STEPS: f"{here}/{STEPS_FILE}"}
    words = [*env_words(env), *map(quote, (member.role.entrypoint, *member.role.args))]
    record = {"format": 1, "name": job.app_id, "app": appdef_to_dict(masked(app), fallback=repr)}
    code = job.codes.get(env.get(ENV_WORKSPACE_HASH, ""))
    files = {
        f"../../{JOB_FILE}": json.dumps(record),
        "inner.sh": read_script(__file__, "inner.sh"),
        "env.sh": "\n".join([_FRESH, *exports({**env, **own}), f'cd "$(cat {quote(here)}/cwd)" || exit 78']),
        "task.sh": f"exec {' '.join(words)}",
    }
    mark = f"torchx-{secrets.token_hex(8)}"
    work = "$PWD/code" if code is not None else "$cwd"
    lines = ["umask 077; cwd=$PWD", f"mkdir -p {quote(here)} && cd {quote(here)} || exit 78", f'echo "{work}" >cwd']
    for name, text in files.items():
        lines += [f"[ -e started ] || cat >{quote(name)} <<'{mark}'", text, mark]
    if code is not None:
        text = base64.encodebytes(code.data).decode().strip()
        lines += [f"[ -e started ] || base64 -d >code.tgz <<'{mark}' || exit 78", text, mark]
    return "\n".join([*lines, _LAUNCH, ""]).encode("utf-8", "surrogateescape")


class AllocatedJobs(View, KubeScheduler):
    """The view of a scheduler on jobs inside the pods of others."""

    def _api_of(self, app_id: str) -> KubeApi:
        return super()._api_of(_session(app_id))

    def _hosts(self, app_id: str) -> list[Object | None]:
        """Return the pods of the session, in the order of its replicas; None: it does not run."""
        session = _session(app_id)
        seen = self._look_at_pods(session)
        found = [seen.pods_of(role, k) for role, k in KubeScheduler.log_replicas(self, session) or ()]
        return [pods[-1] if inside.is_running(pods) else None for pods in found]

    def _files(self, app_id: str, pod: Object) -> PodFiles:
        return PodFiles(self._api_of(app_id), pod)

    def _roles_of(self, app_id: str, hosts: Sequence[Object | None]) -> Sequence[Role]:
        """Return the roles of a job, from its record or its folder; empty if there is no such job."""
        if (run := self._record(app_id)) is not None and (app := run.appdef()) is not None:
            return app.roles
        pod = next(filter(None, hosts), None)
        return JobFolder(cast("Files", self._files(app_id, pod)), _folder(app_id)).roles() if pod is not None else []

    def _layout(self, app_id: str) -> tuple[Sequence[Role], list[tuple[str, int, Object | None]]]:
        """Return the roles of a job, and each replica with its pod; None: it is gone."""
        hosts = self._hosts(app_id)
        roles = self._roles_of(app_id, hosts)
        names = [(role.name, k) for role in roles for k in range(role.num_replicas)]
        return roles, [(role, k, hosts[i] if i < len(hosts) else None) for i, (role, k) in enumerate(names)]

    def _spots(self, app_id: str) -> list[tuple[str, int, Object | None]]:
        """Return each replica with its pod; None: it is gone."""
        return self._layout(app_id)[1]

    def start(self, job: InnerJob, app: AppDef, known: dict[str, str]) -> str:
        """Start the replicas of a job, one in each pod; ``app``: with its set-up; ``known``: secrets."""
        with Unsent():
            session = _session(job.app_id)
            count = sum(role.num_replicas for role in app.roles)
            hosts = [*filter(None, self._hosts(job.app_id)[:count])]
            if not hosts:
                found = self.describe_session(session)
                said = f"it is {found.state}" if found is not None else "the cluster does not know it"
                raise ConfigError(
                    f"no pod of `{session}` is running: {said}",
                    hint="`torchx run -s kubernetes utils.session` starts one",
                )
            rank0 = str((hosts[0].get("status") or {}).get("podIP") or "localhost")
            members = replace(job, app=app).members(rank0 if count > 1 else "localhost")
            if count > len(hosts):
                raise ConfigError(
                    f"the job needs {count} pods, and `{session}` has {len(hosts)} running",
                    hint="start fewer replicas; several processes in one: `dist.ddp -j 1xN`",
                )
            scripts = [_script(job, m, app, revealed(m.role.env, known)) for m in members]
        for i, (pod, script) in enumerate(zip(hosts, scripts, strict=False)):
            ran = self._files(job.app_id, pod).run("sh", stdin=script)
            if ran.exit_code:
                said = ran.stderr.decode("utf-8", "replace").strip() or f"exit code {ran.exit_code}"
                for other, member in zip(hosts[:i], members, strict=False):
                    self._stop(job.app_id, member.role.name, member.k, other, _OTHERS)
                raise BackendError(f"the job could not be started in pod `{pod['metadata']['name']}`: {said}")
        return job.app_id

    def describe_session(self, session: str) -> DescribeAppResponse | None:
        """Describe the job whose pods are used."""
        return super().describe(session)

    def _stop(self, app_id: str, role: str, k: int, pod: Object, why: str) -> None:
        self._files(app_id, pod).run("sh", "-c", _STOP, "sh", self._at(app_id, role, k), why)

    def _at(self, app_id: str, role: str, k: int) -> str:
        return f"{_folder(app_id)}/{folder_name(role)}/{k}"

    # -- state -----------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        roles, spots = self._layout(app_id)
        if not spots:
            return None
        if all(pod is None for _, _, pod in spots):
            return self._with_its_session(app_id, roles)
        found = [self._replica(app_id, *spot) for spot in spots]
        if all(replica is None for replica in found):  # it was never started, or a container was started again
            return None
        known = [r or ReplicaFacts(role=role, replica=k, state=AppState.FAILED, reason="its files are gone")
                 for r, (role, k, _) in zip(found, spots, strict=True)]  # fmt: skip
        if any(r.state is AppState.FAILED for r in known):
            for r, (role, k, pod) in zip(known, spots, strict=True):
                if r.state is AppState.RUNNING and pod is not None:
                    self._stop(app_id, role, k, pod, _OTHERS)
        pods = {(role, k): pod for role, k, pod in spots}

        def look(failed: Sequence[ReplicaFacts], /) -> list[Evidence]:
            return [self._evidence(app_id, r.role, r.replica, pods.get((r.role, r.replica))) for r in failed]

        return describe(self._facts_of(app_id, known, roles), look)

    def _facts_of(self, app_id: str, known: Sequence[ReplicaFacts], roles: Sequence[Role]) -> JobFacts:
        """Return the facts about a job."""
        states = {r.state for r in known}
        ended = [r.ended for r in known if r.ended]
        return JobFacts(
            app_id=app_id,
            roles=[
                RoleFacts(name=name, replicas=[r for r in known if r.role == name])
                for name in dict.fromkeys(r.role for r in known)
            ],
            cancelled=AppState.CANCELLED in states and AppState.FAILED not in states,
            unattended=True,
            started=min((r.started for r in known if r.started), default=None),
            ended=max(ended) if len(ended) == len(known) else None,
            definition=roles,
        )

    def _replica(self, app_id: str, role: str, k: int, pod: Object | None) -> ReplicaFacts | None:
        """Return the facts about a replica; None if it was not started."""
        if pod is None:
            return ReplicaFacts(role=role, replica=k, state=AppState.FAILED, reason="its pod has ended", kind="node")
        ran = self._files(app_id, pod).run("sh", "-c", _STATE, "sh", self._at(app_id, role, k))
        begun, *words = ran.stdout.decode("utf-8", "replace").split() or ["none"]
        if not begun.isdigit() or not words:
            return None
        host = str(pod["spec"].get("nodeName") or "")
        facts = ReplicaFacts(role=role, replica=k, state=AppState.RUNNING, host=host, started=float(begun))
        if words == [_RUNNING]:
            return facts
        if len(words) != 3 or not words[0].isdigit():
            return replace(facts, state=AppState.FAILED, reason="its process in the pod was killed")
        code, why, at = int(words[0]), words[1], float(words[2])
        stopped = why != "-"
        state = AppState.FAILED if code or why == _OTHERS else AppState.SUCCEEDED
        state = AppState.CANCELLED if stopped and why != _OTHERS else state
        signal = signal_name(code - SHELL) if code > SHELL else ""
        exit_code = None if signal else code
        return replace(facts, state=state, exit_code=exit_code, signal=signal, ended=at, stopped=stopped)

    def _evidence(self, app_id: str, role: str, k: int, pod: Object | None) -> Evidence:
        if pod is None:
            return Evidence()
        folder = JobFolder(cast("Files", self._files(app_id, pod)), _folder(app_id))
        return folder.evidence([(role, k)])[0]

    def _with_its_session(self, app_id: str, roles: Sequence[Role]) -> DescribeAppResponse:
        """Return the answer for a job whose pods have ended."""
        session = _session(app_id)
        found = self.describe_session(session)
        cancelled = [
            ReplicaFacts(role=role.name, replica=k, state=AppState.CANCELLED, stopped=True)
            for role in roles
            for k in range(role.num_replicas)
        ]
        facts = self._facts_of(app_id, cancelled, roles)
        why = f"its session `{split_id(session)[1]}` has ended, and its files with it"
        return describe(
            replace(facts, state=AppState.CANCELLED, reason=why, ended=found.ended_at if found is not None else None)
        )

    def exists(self, app_id: str) -> bool:
        return self.describe(app_id) is not None

    def wait_for_end(self, app_id: str, timeout_s: float) -> None:
        begun, limit = time.monotonic(), min(timeout_s, _WAIT_S)
        spots = self._spots(app_id)
        if limit >= 1 and spots and (pod := spots[0][2]) is not None:
            try:
                at = self._at(app_id, *spots[0][:2])
                self._files(app_id, pod).run("sh", "-c", _LISTEN, "sh", at, str(int(limit)))
            except (BackendError, NotFoundError):
                pass  # the caller asks for the state next, which raises the error if it persists
            else:
                return
        time.sleep(max(min(limit - (time.monotonic() - begun), 1.0), 0))

    # -- inside ----------------------------------------------------------------------------------

    def log_replicas(self, app_id: str) -> list[tuple[str, int]] | None:
        return [(role, k) for role, k, _ in self._spots(app_id)] or None

    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        if query.keep:
            raise NotSupportedError(
                f"`--archive` is not available within {_WITHIN} (`in`)", hint="`keep` of `[logs]` keeps logs"
            )
        pods = {(role, k): pod for role, k, pod in self._spots(app_id)}
        logs = []
        for role, k in replicas:
            if (pod := pods.get((role, k))) is None:
                raise NotFoundError(
                    "the output of this job was in the pods of its session, which have ended",
                    hint="`torchx cp` and `--fetch` bring files out while the session runs",
                )
            files = cast("Files", self._files(app_id, pod))
            paths = JobFolder(files, _folder(app_id)).log_paths(role, k)
            logs.append(BatchLog(files, paths, query, partial(self._is_over, app_id)))
        return logs

    def _is_over(self, app_id: str) -> bool:
        found = self.describe(app_id)
        return found is None or is_terminal(found.state)

    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: Tty | None = None) -> InsideProcess:
        words = ["sh", "-c", _ENTER, f"{self._at(app_id, role, k)}/env.sh", *argv]
        return inside.PodProcess(self._api_of(app_id), self._running(app_id, role, k), words, tty)

    def _running(self, app_id: str, role: str, k: int) -> Object:
        pod = next((pod for r, n, pod in self._spots(app_id) if (r, n) == (role, k)), None)
        facts = self._replica(app_id, role, k, pod) if pod is not None else None
        if pod is None or facts is None or facts.state is not AppState.RUNNING:
            raise described(self.describe(app_id), app_id, role, k)
        return pod

    def kept(self, app_id: str, role: str, k: int, cwd: str) -> Sequence[Kept]:  # noqa: ARG002  # the ability's signature
        pod = next((pod for r, n, pod in self._spots(app_id) if (r, n) == (role, k)), None)
        if pod is None:
            return []
        at = self._at(app_id, role, k)
        ran = self._files(app_id, pod).run("sh", "-c", f"cat {quote(at)}/cwd")
        work = ran.stdout.decode("utf-8", "replace").strip()
        start = partial(inside.PodProcess, self._api_of(app_id), pod, tty=None)
        return folders([work, at], start, f"pod {pod['metadata']['name']}")

    def metrics(self, app_id: str) -> list[ReplicaMetrics] | None:  # noqa: ARG002  # those of the pods are not its own
        return []

    def simulate(self, app_id: str, fault: str, replica: tuple[str, int]) -> Simulation:  # noqa: ARG002  # the ability's
        raise cannot(self.backend, fault, "the job runs in pods that are not its own")

    # -- the end ---------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        """Let the programs end; the second time, kill them."""
        for role, k, pod in self._spots(app_id):
            if pod is not None:
                self._stop(app_id, role, k, pod, "user")

    def _delete_existing(self, app_id: str) -> None:
        self._cancel_existing(app_id)
        for _, _, pod in self._spots(app_id):
            if pod is not None:
                self._files(app_id, pod).run("rm", "-rf", _folder(app_id))
