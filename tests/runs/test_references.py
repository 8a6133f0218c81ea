"""References such as `@train~2`, the errors for those that mean no run, and runs that the newest references skip."""

from __future__ import annotations

import pytest

from torchx.errors import NotFoundError
from torchx.runs import RunRegistry
from torchx.runs.references import place

from .run_rows import add


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("@last", (None, 0)),
        ("@last~2", (None, 2)),
        ("@train", ("train", 0)),
        ("@a~b~3", ("a~b", 3)),
        ("@train~999999999", ("train", 999_999_999)),
        ("@", None),
        ("@~1", None),
        ("@last~", None),
        ("@last~x", None),
        ("@last~-1", None),
        ("@last~²", None),
        ("@last~٣", None),
        (f"@last~{2**64}", None),
    ],
)
def test_which_run_is_meant(reference, found) -> None:
    """A name and a number of ASCII digits that SQLite can count to; anything else is not a reference."""
    assert place(reference) == found


@pytest.mark.parametrize("reference", ["@last~x", "@last~²", f"@last~{2**64}", "@", "@last~2"])
def test_a_reference_to_no_run(registry: RunRegistry, reference: str) -> None:
    """Each is the same error with an example, whether it is malformed or counts too far back."""
    add(registry, "a")
    add(registry, "b")
    assert registry.find("@last~1").app_id == "a"
    with pytest.raises(NotFoundError, match="is not a reference to a run") as e:
        registry.find(reference)
    assert "`@last~1` the one before" in e.value.hint
