"""How ``torchx stacks`` learns where this process is: it writes down its stack when it gets a signal.

``faulthandler`` does that even while the process waits in a collective. The stack goes to a file in memory that nobody
else has, whose name says which signal it is. A program that does without torchx offers the same with three lines::

    import faulthandler, os, signal

    number = signal.SIGRTMIN + 13
    faulthandler.register(number, open(os.memfd_create(f"torchx-stacks-{number:d}"), "a"))

A stack says in which line a rank waits; in which call of that line, PyTorch's Flight Recorder knows. It is asked by a
thread of this process, whenever a byte comes in by a pipe whose number stands in the name of another such file.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

__all__ = ["offer", "offer_calls"]

_RECORDERS = ("_dump_nccl_trace", "_dump_fr_trace")  # of NCCL, and of all others
_CALLS = 8  # the last ones of each process group
_file: IO[str] | None = None
_pipe: tuple[int, int] | None = None


def offer() -> None:
    """Writes the stack down on ``SIGRTMIN + 13``, from now on; does nothing twice, and nothing but on Linux."""
    global _file
    if _file is not None or sys.platform != "linux":
        return
    import faulthandler
    import signal

    number = int(signal.SIGRTMIN) + 13
    if signal.getsignal(number) != signal.SIG_DFL:  # the program has a use for it
        return
    try:
        _file = open(os.memfd_create(f"torchx-stacks-{number}"), "a")  # noqa: SIM115  # for as long as the process lives
        faulthandler.register(number, _file, all_threads=False)
    except OSError:
        return  # a sandbox: what can be asked by py-spy alone is asked by it


def offer_calls() -> None:
    """Tells the latest collectives of each process group when it is asked; on Linux alone, and once."""
    global _pipe
    if _pipe is not None or sys.platform != "linux":
        return
    import threading

    try:
        _pipe = os.pipe()
        answer = os.memfd_create(f"torchx-calls-{_pipe[0]}")
    except OSError:
        return
    threading.Thread(target=_tell_calls, args=(_pipe[0], answer), name="torchx-calls", daemon=True).start()


def _tell_calls(asked: int, answer: int) -> None:
    import json

    while os.read(asked, 1 << 12):
        try:
            text = json.dumps(_calls())
        except (RuntimeError, TypeError, ValueError, LookupError):  # it is no public interface of PyTorch
            text = "{}"
        os.ftruncate(answer, 0)
        os.pwrite(answer, text.encode(), 0)


def _calls() -> dict[str, list[list[Any]]]:
    """By process group: its description; of each call the operation, number, input sizes, and whether it is over."""
    import pickle

    c10d = sys.modules.get("torch._C._distributed_c10d")
    asker = getattr(sys.modules.get("torchx.distributed.checkpoints"), "_asker", None)
    ours = getattr(getattr(asker, "_group", None), "group_name", None)  # always has a call under way
    found: dict[str, list[list[Any]]] = {}
    for dump in filter(None, (getattr(c10d, name, None) for name in _RECORDERS)):
        # without the stacks of calls: to find their lines takes PyTorch seconds
        for e in pickle.loads(dump(True, False, False)).get("entries", ()):  # noqa: S301  # PyTorch's, of this process
            (name, about), (kind, _, op) = e["process_group"], e["profiling_name"].partition(":")
            if not e.get("is_p2p") and name != ours:
                over = bool(e.get("retired")) or e.get("state") == "completed"
                call = [about, op, e["collective_seq_id"], e["input_sizes"], over, e["record_id"]]
                found.setdefault(f"{kind}:{name}", []).append(call)
    return {group: [c for c in calls[:-_CALLS] if not c[4]][:1] + calls[-_CALLS:] for group, calls in found.items()}
