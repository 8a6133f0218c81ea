"""What keeps jobs from running on AWS: who one is there, the queue and what is behind it, roles."""

from __future__ import annotations

from functools import partial

from torchx.errors import BackendError, ConfigError, NotFoundError, TransientError
from torchx.schedulers.aws.batch import queues
from torchx.schedulers.aws.client import Clients, call
from torchx.schedulers.aws.errors import DENIED, AwsError
from torchx.schedulers.findings import BAD, GOOD, UNKNOWN, Check, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx.specs.api import CfgVal, Role

ROLES = ("job_role_arn", "execution_role_arn", "role")


def checks(clients: Clients, cfg: Mapping[str, CfgVal], roles: Sequence[Role]) -> list[Check]:
    """The questions about an account, or about a job with these roles there.

    Args:
        cfg: the run options: a queue, names or ARNs of IAM roles.
    """
    named = {option: str(cfg[option]) for option in ROLES if cfg.get(option)}
    found = [Check("identity", lambda: _identity(clients))]
    if cfg.get("queue"):
        found.append(Check("queue", lambda: _queue(clients, str(cfg["queue"]), roles)))
    return found + [Check(option, partial(_role, clients, option, name)) for option, name in named.items()]


def _identity(clients: Clients) -> Finding:
    try:
        who = call(clients.client("sts"), "get_caller_identity", "who you are is not known")
    except TransientError:
        raise
    except (AwsError, BackendError, ConfigError) as e:  # no credentials, others than AWS knows, no region
        return Finding(BAD, "identity", str(e), e.hint)
    return Finding(GOOD, "identity", f"{who.get('Arn')}")


def _queue(clients: Clients, name: str, roles: Sequence[Role]) -> Finding:
    try:
        queue = queues.look_at(clients.client("batch"), name)
    except NotFoundError as e:
        return Finding(BAD, "queue", str(e), f"{e.hint} `aws batch describe-job-queues` shows them: `-cfg queue=NAME`")
    if queue is None:
        return Finding(UNKNOWN, "queue", f"`{name}` may not be looked at, which jobs do not need")
    try:
        queues.refuse_closed(queue)
    except BackendError as e:
        return Finding(BAD, "queue", str(e), f"`{e.hint}`" if e.hint.startswith("aws") else e.hint)
    why = queues.why_stuck(queue, max((int(role.resource.cpu) for role in roles), default=1), [])
    if why:
        return Finding(BAD, "queue", f"no job could start: {why}", f"another queue: `-cfg queue=NAME`, not `{name}`")
    return Finding(GOOD, "queue", f"`{name}` is {queue.state.lower()}: {', '.join(sorted(queue.kinds)) or 'unmanaged'}")


def _role(clients: Clients, option: str, name: str) -> Finding:
    short = name.rpartition("/")[2]
    try:
        call(clients.client("iam"), "get_role", f"role `{short}` is not found", RoleName=short)
    except AwsError as e:
        if e.code in DENIED:
            return Finding(UNKNOWN, option, f"`{short}` may not be looked at, which jobs do not need")
        if e.code != "NoSuchEntity":
            raise
        fix = f"`aws iam list-roles --query 'Roles[].Arn'` shows them: `-cfg {option}=ARN`"
        return Finding(BAD, option, f"there is no role `{short}`", fix)
    return Finding(GOOD, option, f"`{short}` is there")
