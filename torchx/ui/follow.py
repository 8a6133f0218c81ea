"""Follows a job's log through a ``torchx log`` process, which ends when the page stops reading."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from typing import Any

from torchx.util.procs import own_program

_PAUSE_S = 0.1  # between batches, so that a job that writes 10,000 lines a second causes 10 messages a second
_CHUNK = 1 << 20
_PATIENCE_S = 5.0


async def log_lines(target: str, *, last: int, stream: str | None) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yield the last lines of each replica, then new lines until the job has ended, in batches.

    A batch is a list of ``{"role", "replica", "line"}``; the last one may be ``{"error": stderr of torchx log}``.
    The arguments are those of ``torchx log``; ``last`` is the number of lines of each replica to begin with.
    """
    argv = own_program("torchx.cli.main", "log", "--json", "--follow", "--tail", str(last))
    argv += [*(["--streams", stream] if stream else []), "--", target]
    with tempfile.TemporaryFile() as stderr:
        # Not a process of asyncio: it prints to stderr if its loop is closed a moment before the process has ended.
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr)
        stdout = asyncio.StreamReader(limit=_CHUNK)
        try:
            pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(stdout), process.stdout
            )
            with contextlib.closing(pipe):
                begun: list[bytes] = []  # of the last line; adding each chunk to it would take the square of its length
                while chunk := await stdout.read(_CHUNK):
                    whole, newline, rest = chunk.rpartition(b"\n")
                    if newline:
                        yield [json.loads(line) for line in b"".join([*begun, whole]).split(b"\n") if line]
                        begun.clear()
                        await asyncio.sleep(_PAUSE_S)
                    begun.append(rest)
            if await asyncio.to_thread(process.wait):
                stderr.seek(0)
                yield [{"error": stderr.read().decode(errors="replace").strip()}]
        finally:
            await _end(process)


async def _end(process: subprocess.Popen[bytes]) -> None:
    """Return, or raise CancelledError, when the process has ended; a cancellation kills it at once."""
    process.terminate()
    try:
        await asyncio.to_thread(process.wait, _PATIENCE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait()
