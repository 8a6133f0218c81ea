"""What every rank of a job is doing: the probe is run in each replica at once, and what it prints is put together."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from torchx.errors import TorchXError
from torchx.schedulers.kit.commands import last_line
from torchx.schedulers.stacks import Stacks, parse, probe_text
from torchx.schedulers.stacks.probe import NO_SPY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from torchx.schedulers.inside.run import Ran
    from torchx.specs.api import AppStatus

    Replica = tuple[str, int]

_AT_ONCE = 32
_THERE = "/tmp/torchx-py-spy"  # noqa: S108  # the probe looks whose it is


def look(
    run: Callable[[Sequence[str], str, int], Ran],
    status: AppStatus | None,
    there: Sequence[Replica],
    wanted: Sequence[Replica] | None,
    bring: Callable[[str, str, str, int], object] | None = None,
    *,
    hosts: Mapping[Replica, str] | None = None,
) -> Stacks:
    """Looks into replicas, again with this machine's py-spy where there is none and it is needed.

    Args:
        run: runs a command inside a replica to its end.
        there: all replicas of the job.
        wanted: those to look into; None: all that have not ended.
        bring: copies a file of this machine to a path inside a replica; None: that cannot be done.
        hosts: those of replicas, where there is no status.

    Raises:
        TorchXError: none of them could be looked into; the error of the first one.
    """
    import shutil
    import tempfile
    from concurrent.futures import ThreadPoolExecutor

    from torchx.schedulers.inside.run import python_words
    from torchx.specs.api import is_terminal

    known = {(r.role, r.id): r for role in (status.roles if status else ()) for r in role.replicas}
    over = {replica for replica, r in known.items() if is_terminal(r.state)}
    replicas = wanted or [replica for replica in there if replica not in over] or there[:1]
    places = [os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)]
    spy = shutil.which("py-spy", path=os.pathsep.join(places)) or ""
    words = python_words(probe_text(spy, _THERE))

    def one(replica: Replica) -> Ran:
        found = run(words, *replica)
        if spy and bring is not None and NO_SPY.encode() in found.stdout:
            with suppress(TorchXError), tempfile.TemporaryDirectory() as folder:
                copy = shutil.copyfile(spy, os.path.join(folder, "py-spy"))
                os.chmod(copy, 0o755)  # noqa: S103  # pip's own may be writable for the group, and nobody runs such a one
                bring(copy, _THERE, *replica)
                found = run(words, *replica)
        return found

    with ThreadPoolExecutor(max(min(_AT_ONCE, len(replicas)), 1)) as pool:
        asked = {replica: pool.submit(one, replica) for replica in replicas}
    printed, unread = _printed(asked)
    named = {**(hosts or {}), **{replica: found.hostname for replica, found in known.items()}}
    texts = [(*replica, named.get(replica, ""), text) for replica, text in printed.items()]
    return parse(texts, unread, whole=len(replicas) == len(there))


def _printed(asked: Mapping[Replica, Future[Ran]]) -> tuple[dict[Replica, bytes], dict[Replica, str]]:
    """What the probes have printed, and why other replicas could not be looked into; errors as of :func:`look`."""
    errors = {replica: e for replica, ran in asked.items() if isinstance(e := ran.exception(), TorchXError)}
    if errors and len(errors) == len(asked):
        raise next(iter(errors.values()))
    unread, printed = {replica: str(e) for replica, e in errors.items()}, {}
    for replica in [replica for replica in asked if replica not in errors]:
        ran = asked[replica].result()
        if ran.exit_code:
            said = ran.stderr.decode("utf-8", "replace")
            unread[replica] = last_line(said, f"the probe ended with exit code {ran.exit_code}")
        else:
            printed[replica] = ran.stdout
    return printed, unread


def tell(stacks: Callable[[], Stacks]) -> None:
    """Prints what the ranks of a silent job are doing, as :class:`torchx.supervisor.watchdog.Watchdog` reads it."""
    from torchx.schedulers.stacks.page import page
    from torchx.supervisor.watchdog import BUSY

    try:
        found = stacks()
        said = "\n".join([*([BUSY] if found.busy else []), found.sentence, *list(page(found))[1:]])
    except TorchXError as e:
        said = f"it could not be looked into: {e}"
    sys.stdout.write(said)
