"""Lets ``torchx stacks`` read the stack of this process, which it dumps on a signal.

``faulthandler`` does this even while the process waits in a collective. The stack goes to a private in-memory file with
the number of the signal in its name. A program without torchx can do the same with three lines::

    import faulthandler, os, signal

    number = signal.SIGRTMIN + 13
    faulthandler.register(number, open(os.memfd_create(f"torchx-stacks-{number:d}"), "a"))

A stack shows the line in which a rank waits; PyTorch's Flight Recorder shows which call of that line. A thread of this
process reads it when a byte arrives on a pipe, whose file descriptor is in the name of another in-memory file.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

_RECORDERS = ("_dump_nccl_trace", "_dump_fr_trace")  # of NCCL, and of all others
_CALLS = 8  # the last ones of each process group
_file: IO[str] | None = None
_pipe: tuple[int, int] | None = None


def offer() -> None:
    """Dump the stack on ``SIGRTMIN + 13`` from now on. Idempotent; does nothing except on Linux."""
    global _file
    if _file is not None or sys.platform != "linux":
        return
    import faulthandler
    import signal

    number = int(signal.SIGRTMIN) + 13
    if signal.getsignal(number) != signal.SIG_DFL:  # the program handles it
        return
    try:
        _file = open(os.memfd_create(f"torchx-stacks-{number}"), "a")  # noqa: SIM115  # for as long as the process lives
        faulthandler.register(number, _file, all_threads=False)
    except OSError:
        return  # a sandbox: only py-spy may work


def offer_calls() -> None:
    """Start the thread that reports the latest collectives of each process group. Idempotent; Linux only."""
    global _pipe
    if _pipe is not None or sys.platform != "linux":
        return
    import threading

    try:
        _pipe = os.pipe()
        answer = os.memfd_create(f"torchx-calls-{_pipe[0]}")
    except OSError:
        return
    threading.Thread(target=_report_calls, args=(_pipe[0], answer), name="torchx-calls", daemon=True).start()


def _report_calls(requests: int, answer: int) -> None:
    import json

    while os.read(requests, 1 << 12):
        try:
            text = json.dumps(_calls())
        except (RuntimeError, TypeError, ValueError, LookupError):  # not a public interface of PyTorch
            text = "{}"
        os.ftruncate(answer, 0)
        os.pwrite(answer, text.encode(), 0)


def _calls() -> dict[str, list[list[Any]]]:
    """Return the latest calls by process group.

    Each has the description of the group, operation, number, input sizes, completion, record id, and whether the GPU
    has begun it, which PyTorch records only with ``TORCH_NCCL_ENABLE_TIMING=1``.
    """
    import pickle

    c10d = sys.modules.get("torch._C._distributed_c10d")
    requests = getattr(sys.modules.get("torchx.distributed.checkpoints"), "_requests", None)
    ours = getattr(getattr(requests, "_group", None), "group_name", None)  # always has a pending call
    found: dict[str, list[list[Any]]] = {}
    for dump in filter(None, (getattr(c10d, name, None) for name in _RECORDERS)):
        # without the stacks of calls: PyTorch takes seconds to symbolize them
        for e in pickle.loads(dump(True, False, False)).get("entries", ()):  # noqa: S301  # PyTorch's, of this process
            (name, about), (kind, _, op) = e["process_group"], e["profiling_name"].partition(":")
            if not e.get("is_p2p") and name != ours:
                over = bool(e.get("retired")) or e.get("state") == "completed"
                began = e.get("state") == "started"
                call = [about, op, e["collective_seq_id"], e["input_sizes"], over, e["record_id"], began]
                found.setdefault(f"{kind}:{name}", []).append(call)
    return {group: [c for c in calls[:-_CALLS] if not c[4]][:1] + calls[-_CALLS:] for group, calls in found.items()}
