"""Placeholder for ``torch_dist_role``, which no longer exists: importing it raises an error with the replacement."""

from __future__ import annotations

from typing import NoReturn

from torchx.errors import SpecError


class GoneError(SpecError, ImportError):
    """The imported name no longer exists; also an ImportError, so that programs with a fallback continue."""


def __getattr__(name: str) -> NoReturn:
    if name != "torch_dist_role":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise GoneError(
        f"`torchx.components.base.{name}` no longer exists",
        hint="`torchx.components.dist.torchrun(...)` returns an AppDef, whose `roles[0]` is that role",
    )
