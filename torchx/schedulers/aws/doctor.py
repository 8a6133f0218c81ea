"""Checks of ``torchx doctor`` for AWS: identity, queue and its compute environments, IAM roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torchx.errors import BackendError, ConfigError, NotFoundError
from torchx.schedulers.aws.batch import queues
from torchx.schedulers.aws.client import Clients, call
from torchx.schedulers.aws.errors import DENIED, AwsError
from torchx.schedulers.kit.findings import Check, Finding, bad, doubt
from torchx.specs.api import CfgVal, Role

_ROLES = ("job_role_arn", "execution_role_arn", "role")
_UNSEEN = "cannot be inspected: AWS denies it, though jobs may still work"


def checks(clients: Clients, cfg: Mapping[str, CfgVal], roles: Sequence[Role]) -> list[Check]:
    """Check of an account, of the queue and IAM roles in the run options ``cfg``, and of a job with these roles."""
    queue = str(cfg.get("queue") or "")
    return [
        # fails without valid credentials or a region
        Check("identity", lambda: _identity(clients), certain=(BackendError, ConfigError), vital=True),
        *([Check("queue", lambda: _queue(clients, queue, roles), certain=(NotFoundError,))] if queue else []),
        *(Check(option, partial(_role, clients, option, str(cfg[option]))) for option in _ROLES if cfg.get(option)),
    ]


def _identity(clients: Clients) -> str:
    return str(call(clients.client("sts"), "get_caller_identity", "the AWS identity is not known").get("Arn"))


def _queue(clients: Clients, name: str, roles: Sequence[Role]) -> str | Finding:
    queue = queues.look_at(clients.client("batch"), name)
    if queue is None:
        return doubt(f"`{name}` {_UNSEEN}")
    try:
        queues.refuse_closed(queue)
    except BackendError as e:
        return bad(str(e), e.hint)
    if queue.status in ("CREATING", "UPDATING"):
        look = f"`aws batch describe-job-queues --job-queues {name} --query 'jobQueues[].status'`"
        return doubt(f"`{name}` is {queue.status.lower()}", f"wait until it is VALID: {look}")
    why = queues.why_stuck(queue, max((int(role.resource.cpu) for role in roles), default=1), [])
    if why:
        return bad(f"no job could start: {why}", f"another queue: `-cfg queue=NAME`, not `{name}`")
    return f"`{name}` is {queue.state.lower()}: {', '.join(sorted(queue.kinds)) or 'unmanaged'}"


def _role(clients: Clients, option: str, name: str) -> str | Finding:
    short = name.rpartition("/")[2]
    try:
        call(clients.client("iam"), "get_role", f"role `{short}` is not found", RoleName=short)
    except AwsError as e:
        if e.code in DENIED:
            return doubt(f"`{short}` {_UNSEEN}")
        if e.code != "NoSuchEntity":
            raise
        fix = f"`aws iam list-roles --query 'Roles[].Arn'` shows them: `-cfg {option}=ARN`"
        return bad(f"there is no role `{short}`", fix)
    return f"`{short}` is there"
