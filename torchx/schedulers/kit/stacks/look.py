"""Runs the probe in all replicas of a job concurrently, and summarizes the output."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from torchx.errors import TorchXError
from torchx.schedulers.kit.commands import last_line
from torchx.schedulers.kit.stacks import Stacks, parse, probe_text
from torchx.schedulers.kit.stacks.probe import NO_SPY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from torchx.schedulers.kit.inside.run import Ran
    from torchx.specs.api import AppStatus

    Replica = tuple[str, int]

_AT_ONCE = 32
_THERE = "/tmp/torchx-py-spy"  # noqa: S108  # the probe checks its owner


def look(
    run: Callable[[Sequence[str], str, int], Ran],
    status: AppStatus | None,
    there: Sequence[Replica],
    wanted: Sequence[Replica] | None,
    bring: Callable[[str, str, str, int], object] | None = None,
    *,
    hosts: Mapping[Replica, str] | None = None,
) -> Stacks:
    """Inspects replicas. Repeats it with a copy of this machine's py-spy where that is needed and missing.

    ``there`` are all replicas of the job, and ``wanted`` those to inspect; None: all that have not ended. ``bring``
    copies a file of this machine to a path inside a replica; None if that is impossible. ``hosts`` are those of
    replicas, if there is no status. If no replica could be inspected, the error of the first one is raised.
    """
    import shutil
    import tempfile
    from concurrent.futures import ThreadPoolExecutor

    from torchx.schedulers.kit.inside.run import python_words
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
                os.chmod(copy, 0o755)  # noqa: S103  # the original may be group-writable, which the probe rejects
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
    """Return the output of the probes, and why other replicas could not be inspected. Raises like :func:`look`."""
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
    """Print what the ranks of a silent job are doing, for :class:`torchx.supervisor.watchdog.Watchdog`."""
    from torchx.schedulers.kit.stacks.page import page
    from torchx.supervisor.watchdog import BUSY

    try:
        found = stacks()
        said = "\n".join([*([BUSY] if found.busy else []), found.sentence, *list(page(found))[1:]])
    except TorchXError as e:
        said = f"it could not be inspected: {e}"
    sys.stdout.write(said)
