"""A job's log as a page reads it: a ``torchx log`` of its own, which ends when the page no longer listens."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator
from typing import Any

_PAUSE_S = 0.1  # between two batches: a job that writes 10,000 lines a second is ten messages a second
_CHUNK = 1 << 20
_PATIENCE_S = 5.0


async def log_lines(target: str, *, last: int, stream: str | None) -> AsyncGenerator[list[dict[str, Any]], None]:
    """The last lines of each replica, and then what it writes until the job has ended, in batches.

    Args:
        target: a job or a part of it, as ``torchx log`` takes it.
        last: so many lines of each replica to begin with.
        stream: ``stdout``, ``stderr``, ``combined``; None: the backend's usual one.

    A batch is a list of ``{"role", "replica", "line"}``; the last one may be ``{"error": what torchx log said}``.
    """
    argv = [sys.executable, "-m", "torchx", "log", "--json", "--follow", "--tail", str(last)]
    argv += ["--streams", stream] if stream else []
    process = await asyncio.create_subprocess_exec(
        *argv, target, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    said = asyncio.create_task(process.stderr.read())
    try:
        rest = b""
        while chunk := await process.stdout.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            if lines:
                yield [json.loads(line) for line in lines if line]
                await asyncio.sleep(_PAUSE_S)
        if await process.wait():
            yield [{"error": (await said).decode(errors="replace").strip()}]
    finally:
        said.cancel()
        try:
            if process.returncode is None:
                process.terminate()
                await asyncio.wait_for(process.wait(), _PATIENCE_S)
        except asyncio.TimeoutError:
            pass
        finally:
            _kill(process)


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kills what is left. asyncio itself would do it a moment later, and hear of its end later still: its loop may be
    closed by then, and a Popen that was told nothing complains."""
    transport = process._transport  # type: ignore[attr-defined]  # there is no public name for it
    popen = transport.get_extra_info("subprocess")
    transport.close()
    if popen.returncode is None:
        popen.returncode = -signal.SIGKILL
