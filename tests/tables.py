"""A test over the rows of a table, thousands of which would each take longer to set up than to check."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def rows(name: str, values: Iterable[Any], ids: Callable[[Any], str] = str) -> Callable[[Callable[..., None]], Any]:
    """As ``pytest.mark.parametrize`` with one name, but it is one test: each row that fails is in its message, by its id.

    What a row does to its fixtures is there for the next one.
    """
    table = [(ids(value), value) for value in values]
    assert table

    def decorate(test: Callable[..., None]) -> Any:
        @functools.wraps(test)
        def every(**fixtures: Any) -> None:
            wrong = []
            for one, value in table:
                try:
                    test(**{name: value}, **fixtures)
                except (Exception, pytest.fail.Exception) as e:
                    wrong.append(f"[{one}] {type(e).__name__}: {e}")
            if wrong:
                pytest.fail(f"{len(wrong)} of {len(table)} rows:\n" + "\n".join(wrong), pytrace=False)

        signature = inspect.signature(test)
        left = [parameter for parameter in signature.parameters.values() if parameter.name != name]
        every.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]  # pytest reads it
        return every

    return decorate
