"""JSON of others: too deep, of another shape."""

from __future__ import annotations

import pytest

from torchx.errors import BackendError, NotFoundError, ParseError
from torchx.util.foreign import loads, reading


@pytest.mark.parametrize(
    "text", ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000, "", "{", b"\xff"]
)
def test_what_is_no_json(text: str | bytes) -> None:
    """It raises ValueError, whatever is wrong with it."""
    with pytest.raises(ValueError):
        loads(text)
    assert loads('{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize("answer", [{}, [], "x", 7, None, {"items": 7}, {"items": [None]}])
def test_another_shape(answer: object) -> None:
    """It is an error of the backend, in one line; an error of ours in the block is not changed."""
    with pytest.raises(BackendError, match=r"^the list has an unexpected shape: ") as error, reading("the list"):
        [item.get("x") for item in answer["items"]]  # type: ignore[index]
    assert isinstance(error.value, ParseError)
    with pytest.raises(NotFoundError, match=r"^gone$"), reading("the list"):
        raise NotFoundError("gone")
