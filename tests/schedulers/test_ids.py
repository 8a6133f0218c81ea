"""Ids: unique, short, safe in any name."""

from __future__ import annotations

import functools
import operator

import pytest

from torchx.schedulers.ids import END_CANDIDATES, START_CANDIDATES, make_unique, random_id, random_uint64


def test_ids_start_with_a_letter_and_spell_no_words() -> None:
    """Only the documented characters, the first of them a letter."""
    for _ in range(200):
        found = random_id()
        assert found[0] in START_CANDIDATES
        assert set(found[1:]) <= set(END_CANDIDATES)


def test_ids_do_not_repeat() -> None:
    """Ten thousand ids are ten thousand different ones."""
    assert len({random_id() for _ in range(10_000)}) == 10_000


@pytest.mark.parametrize("length", [1, 2, 5, 12])
def test_the_length_is_kept(length: int) -> None:
    """Never longer than asked for; make_unique adds a dash and that many."""
    assert all(len(random_id(length)) <= length for _ in range(100))
    name, _, tail = make_unique("my-job", length).rpartition("-")
    assert name == "my-job" and 1 <= len(tail) <= length


def test_a_length_below_one_is_refused() -> None:
    """There is no id of no characters."""
    with pytest.raises(ValueError, match="max_length"):
        random_id(0)


def test_uint64_fits() -> None:
    """64 bits, no more and no fewer, and not the same ones twice."""
    numbers = [random_uint64() for _ in range(200)]
    assert all(0 <= number < 2**64 for number in numbers)
    assert len(set(numbers)) == 200
    assert functools.reduce(operator.or_, numbers) == 2**64 - 1
