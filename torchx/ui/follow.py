"""Follows a job's log through a ``torchx log`` process, which ends when the page stops reading."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator
from typing import Any

_PAUSE_S = 0.1  # between batches, so that a job that writes 10,000 lines a second causes 10 messages a second
_CHUNK = 1 << 20
_PATIENCE_S = 5.0


async def log_lines(target: str, *, last: int, stream: str | None) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yields the last lines of each replica, then new lines until the job has ended, in batches.

    A batch is a list of ``{"role", "replica", "line"}``; the last one may be ``{"error": stderr of torchx log}``.
    The arguments are those of ``torchx log``; ``last`` is the number of lines of each replica to begin with.
    """
    argv = [sys.executable, "-m", "torchx", "log", "--json", "--follow", "--tail", str(last)]
    argv += ["--streams", stream] if stream else []
    process = await asyncio.create_subprocess_exec(
        *argv, target, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    stderr = asyncio.create_task(process.stderr.read())
    try:
        rest = b""
        while chunk := await process.stdout.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            if lines:
                yield [json.loads(line) for line in lines if line]
                await asyncio.sleep(_PAUSE_S)
        if await process.wait():
            yield [{"error": (await stderr).decode(errors="replace").strip()}]
    finally:
        stderr.cancel()
        try:
            if process.returncode is None:
                process.terminate()
                await asyncio.wait_for(process.wait(), _PATIENCE_S)
        except asyncio.TimeoutError:
            pass
        finally:
            _kill(process)


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kills the process and marks it as ended.

    asyncio would do both later, when its loop may be closed; then Popen warns that the process is still running.
    """
    transport = process._transport  # type: ignore[attr-defined]  # no public name
    popen = transport.get_extra_info("subprocess")
    transport.close()
    if popen.returncode is None:
        popen.returncode = -signal.SIGKILL
