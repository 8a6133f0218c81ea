"""A test over a table fails, and names each row that does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tables import rows


@rows("n", range(3))
def test_fixtures_reach_each_row(n: int, tmp_path: Path) -> None:
    """And what a row leaves behind is there for the next."""
    assert len([*tmp_path.iterdir()]) == n
    (tmp_path / str(n)).touch()


def test_each_row_that_fails_is_named() -> None:
    """Those after it are tried, too."""

    @rows("n", range(4), ids=lambda n: f"row {n}")
    def odd(n: int, other: int) -> None:
        assert n % other, "it is even"

    with pytest.raises(
        pytest.fail.Exception, match=r"(?s)2 of 4 rows:\n\[row 0\] .*it is even.*\n\[row 2\] .*it is even"
    ):
        odd(other=2)
