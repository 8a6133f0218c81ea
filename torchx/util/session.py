"""The session id, which correlates the events of a program run and its child processes."""

from __future__ import annotations

import os

from torchx.settings import ENV_SESSION_ID

TORCHX_INTERNAL_SESSION_ID = ENV_SESSION_ID


def get_torchx_session_id() -> str | None:
    """Return the session id of this process, which may be inherited; None if there is none yet."""
    return os.environ.get(TORCHX_INTERNAL_SESSION_ID) or None


def get_session_id_or_create_new() -> str:
    """Return the session id; if there is none, create one that child processes inherit."""
    found = get_torchx_session_id()
    if found is None:
        # a random UUID (version 4), without importing `uuid`
        h = bytearray(os.urandom(16))
        h[6] = h[6] & 0x0F | 0x40
        h[8] = h[8] & 0x3F | 0x80
        x = h.hex()
        found = f"{x[:8]}-{x[8:12]}-{x[12:16]}-{x[16:20]}-{x[20:]}"
        os.environ[TORCHX_INTERNAL_SESSION_ID] = found
    return found
