"""What every rank of a job is doing: the probe is run in each replica at once, and what it prints is put together."""

from __future__ import annotations

from torchx.errors import TorchXError
from torchx.schedulers.stacks import Stacks, parse, probe_text
from torchx.schedulers.stacks.probe import NO_SPY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchx.schedulers.inside.run import Ran
    from torchx.specs.api import AppStatus

    Replica = tuple[str, int]

_AT_ONCE = 32
_THERE = "/tmp/torchx-py-spy"  # noqa: S108  # the probe looks whose it is


def _own_spy() -> str:
    import os
    import shutil
    import sys

    return shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable)) or ""


def look(
    run: Callable[[Sequence[str], str, int], Ran],
    status: AppStatus | None,
    there: Sequence[Replica],
    wanted: Sequence[Replica] | None,
    bring: Callable[[str, str, str, int], object] | None = None,
) -> Stacks:
    """Looks into replicas, again with this machine's py-spy where there is none and it is needed.

    Args:
        run: runs a command inside a replica to its end.
        there: all replicas of the job.
        wanted: those to look into; None: all that have not ended.
        bring: copies a file of this machine to a path inside a replica; None: that cannot be done.

    Raises:
        TorchXError: none of them could be looked into; the error of the first one.
    """
    from concurrent.futures import ThreadPoolExecutor

    from torchx.schedulers.inside.run import python_words
    from torchx.specs.api import is_terminal

    known = {(r.role, r.id): r for role in (status.roles if status else ()) for r in role.replicas}
    over = {replica for replica, r in known.items() if is_terminal(r.state)}
    replicas = wanted or [replica for replica in there if replica not in over] or there[:1]
    spy = _own_spy()
    words, again = python_words(probe_text(spy)), python_words(probe_text(_THERE))

    def one(replica: Replica) -> Ran | TorchXError:
        try:
            first = run(words, *replica)
        except TorchXError as e:
            return e
        if not (spy and bring is not None and NO_SPY.encode() in first.stdout):
            return first
        try:
            bring(spy, _THERE, *replica)
            return run(again, *replica)
        except TorchXError:
            return first

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
