"""Resolution of ``Role.overrides``, the late-bound values of a role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx.errors import SpecError
from torchx.util.strings import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from torchx.specs.api import Role


def resolve_into(role: Role) -> None:
    """Implement :meth:`torchx.specs.Role.resolve_overrides`."""
    names = [name for name in role.__dict__ if name != "overrides"]
    for name in role.overrides:
        if name not in names:
            raise SpecError(
                f"role `{role.name}` overrides `{name}`, which is not one of its fields",
                hint=did_you_mean(name, names) or f"one of: {', '.join(names)}",
            )
    late, role.overrides = role.overrides, {}
    for name, value in late.items():
        setattr(role, name, value_of(value))


def value_of(value: Any) -> Any:
    """Resolve an override: call a function, await an awaitable, return any other value."""
    if callable(value):
        value = value()
    return _await(value) if hasattr(value, "__await__") else value


def _await(awaitable: Awaitable[Any]) -> Any:
    import asyncio
    import concurrent.futures

    async def wait() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    # A running loop (in a notebook) cannot be waited for from its own thread.
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, wait()).result()
