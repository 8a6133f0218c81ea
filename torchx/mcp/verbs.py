"""Runs verbs of the command line for tools: each in a process of its own, which ends when the call is cancelled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from mcp.server.mcpserver.exceptions import ToolError

from torchx.errors import EXIT_JOB_FAILED, EXIT_NOT_ENDED
from torchx.mcp.answers import clean
from torchx.util.procs import own_program

_AT_ONCE = 8
_MAX_OUTPUT = 64 << 20
_MAX_ERROR = 2_000
_GRACE_S = 5.0
_TELLS_A_STATE = (EXIT_JOB_FAILED, EXIT_NOT_ENDED)  # with a document on stdout

_slots: anyio.CapacityLimiter | None = None


async def verb(
    *args: str, folder: str, env: Mapping[str, str] | None = None, timeout_s: float = 120.0, states: bool = False
) -> dict[str, Any]:
    """Return the JSON document that ``torchx ARGS`` prints.

    Args:
        folder: current directory of the verb.
        env: variables to add to the environment.
        states: exit codes that tell a state, beside a document, are not errors.

    Raises:
        ToolError: it failed; with its message, hint and exit code.
    """
    code, out, err = await run(args, folder=folder, env=env, timeout_s=timeout_s)
    if code and not (states and code in _TELLS_A_STATE and out):
        raise ToolError(message_of(args, code, err))
    try:
        found = json.loads(out)
    except ValueError:
        raise ToolError(f"`torchx {args[0]}` printed no JSON document: {clean(err[-_MAX_ERROR:])}") from None
    return found if isinstance(found, dict) else {"found": found}


def message_of(args: Sequence[str], code: int, err: str) -> str:
    """Return the error of a verb in one text: what it said, and its exit code."""
    lines = [line for line in clean(err).splitlines() if line.strip()]
    said = "\n".join(lines)[-_MAX_ERROR:] or "it said nothing"
    return f"`torchx {args[0]}` failed with exit code {code}: {said}"


async def run(
    args: Sequence[str], *, folder: str, env: Mapping[str, str] | None = None, timeout_s: float
) -> tuple[int, str, str]:
    """Run a verb; return its exit code, stdout and stderr.

    A cancelled call interrupts the verb as Ctrl-C does, so that it can leave nothing half-submitted.
    """
    global _slots
    _slots = _slots or anyio.CapacityLimiter(_AT_ONCE)
    argv = own_program("torchx.cli.main", *args)
    async with _slots:
        process = await anyio.open_process(
            argv, stdin=subprocess.DEVNULL, cwd=folder, env={**os.environ, **(env or {})}, start_new_session=True
        )
        out, err = bytearray(), bytearray()
        try:
            with anyio.fail_after(timeout_s):
                async with anyio.create_task_group() as readers:
                    readers.start_soon(_read, process.stdout, out)
                    readers.start_soon(_read, process.stderr, err)
                code = await process.wait()
        except TimeoutError:
            raise ToolError(f"`torchx {args[0]}` did not end within {timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                with anyio.CancelScope(shield=True):
                    await _end(process)
    if len(out) >= _MAX_OUTPUT:
        raise ToolError(f"`torchx {args[0]}` printed more than {_MAX_OUTPUT >> 20} MiB; ask for less")
    return code, out.decode(errors="replace"), err.decode(errors="replace")


async def _read(stream: Any, into: bytearray) -> None:
    async for piece in stream:
        into += piece[: max(_MAX_OUTPUT - len(into), 0)]


async def _end(process: anyio.abc.Process) -> None:
    process.send_signal(signal.SIGINT)
    with anyio.move_on_after(_GRACE_S):
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
