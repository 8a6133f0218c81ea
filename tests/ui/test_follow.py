"""Who reads a log and is ended leaves nothing of it behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
from pathlib import Path

import pytest

from torchx.ui.follow import log_lines


def test_ended_while_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing the generator kills a `torchx log` that does not end, without a word on stderr."""
    program, pid = tmp_path / "log", tmp_path / "pid"
    program.write_text(f"#!/bin/sh\ntrap '' TERM\necho $$ > {pid}\necho '{{\"line\": \"one\"}}'\nexec sleep 1000\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    async def read(there: asyncio.Event) -> None:
        async with contextlib.aclosing(log_lines("job", last=1, stream=None)) as batches:
            async for _ in batches:
                there.set()

    async def go() -> None:
        there = asyncio.Event()
        reader = asyncio.create_task(read(there))
        await there.wait()
        for _ in range(2):
            reader.cancel()
            await asyncio.sleep(0.2)
        with pytest.raises(asyncio.CancelledError):
            await reader

    async def at_once() -> None:
        there = asyncio.Event()
        reader = asyncio.create_task(read(there))
        await there.wait()
        reader.cancel()
        await asyncio.sleep(0)
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader

    asyncio.run(go())
    for _ in range(10):  # asyncio would say that its loop is closed if the process ended a moment later
        asyncio.run(at_once())
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []
