"""Where old component files look for ``torch_dist_role``, which is gone: they are told what to use."""

from __future__ import annotations

from typing import NoReturn

from torchx.errors import SpecError


class GoneError(SpecError, ImportError):
    """It is imported, and was there once: programs that try the import and have another way go on."""


def __getattr__(name: str) -> NoReturn:
    if name != "torch_dist_role":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise GoneError(
        f"`torchx.components.base.{name}` no longer exists",
        hint="`torchx.components.dist.torchrun(...)` returns an AppDef, whose `roles[0]` is that role",
    )
