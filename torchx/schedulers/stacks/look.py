"""What every rank of a job is doing: the probe is run in each replica at once, and what it prints is put together."""

from __future__ import annotations

from torchx.errors import TorchXError
from torchx.schedulers.stacks import Stacks, parse, probe_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchx.schedulers.inside.run import Ran
    from torchx.specs.api import AppStatus

    Replica = tuple[str, int]

_AT_ONCE = 32


def look(
    run: Callable[[Sequence[str], str, int], Ran],
    status: AppStatus | None,
    there: Sequence[Replica],
    wanted: Sequence[Replica] | None,
) -> Stacks:
    """Looks into replicas.

    Args:
        run: runs a command inside a replica to its end.
        there: all replicas of the job.
        wanted: those to look into; None: all that have not ended.

    Raises:
        TorchXError: none of them could be looked into; the error of the first one.
    """
    from concurrent.futures import ThreadPoolExecutor

    from torchx.schedulers.inside.run import python_words
    from torchx.specs.api import is_terminal

    known = {(r.role, r.id): r for role in (status.roles if status else ()) for r in role.replicas}
    over = {replica for replica, r in known.items() if is_terminal(r.state)}
    replicas = wanted or [replica for replica in there if replica not in over] or there[:1]
    words = python_words(probe_text())

    def one(replica: Replica) -> Ran | TorchXError:
        try:
            return run(words, *replica)
        except TorchXError as e:
            return e

    with ThreadPoolExecutor(max(min(_AT_ONCE, len(replicas)), 1)) as pool:
        found = dict(zip(replicas, pool.map(one, replicas), strict=True))
    errors = {replica: e for replica, e in found.items() if isinstance(e, TorchXError)}
    if len(errors) == len(found) and errors:
        raise errors[replicas[0]]
    unread = {replica: str(e) for replica, e in errors.items()}
    texts = []
    for replica, ran in found.items():
        if isinstance(ran, TorchXError):
            continue
        if ran.exit_code:
            said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
            unread[replica] = said[-1] if said else f"the probe ended with exit code {ran.exit_code}"
            continue
        texts.append((*replica, known[replica].hostname if replica in known else "", ran.stdout))
    return parse(texts, unread, whole=len(replicas) == len(there))
