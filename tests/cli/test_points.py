"""The points of a sweep: what `--grid` and `--from` mean, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchx.cli.cmd_sweep import read_points
from torchx.cli.failures import UsageError
from torchx.errors import TorchXError


@pytest.mark.parametrize(
    ("grid", "values"),
    [
        ("x=1e-4,3e-4", ["1e-4", "3e-4"]),
        ("x=0..3", ["0", "1", "2", "3"]),
        ("x=-1..1", ["-1", "0", "1"]),
        ("x=0..10..5", ["0", "5", "10"]),
        ("x=a,0..1,b", ["a", "0", "1", "b"]),
        ('x="8,8","a ""b"""', ["8,8", 'a "b"']),
        ('x="0..3"', ["0..3"]),
        ("x=a=b", ["a=b"]),
        ("x={y}", ["{y}"]),
        ("x=,b", ["", "b"]),
        ("x=größe,日本", ["größe", "日本"]),
    ],
)
def test_values_of_a_grid(grid: str, values: list[str]) -> None:
    """Values are separated by commas; ranges include both ends; quotes keep commas and ranges."""
    assert read_points([grid], None, 100) == (["x"], [(value,) for value in values])


@pytest.mark.parametrize(
    ("grids", "said"),
    [
        ([], "no tasks"),
        (["lr"], "has no `=`"),
        (["lr="], "no values"),
        (["=1"], "is not a name"),
        (["1lr=1"], "is not a name"),
        (["lr=1", "lr=2"], "given twice"),
        (['lr="a'], "not closed"),
        (['lr="a"b,c'], "not closed"),
        (["lr=5..1"], "is empty"),
        (["lr=1..5..0"], "step of a range is 0"),
    ],
)
def test_grids_that_are_refused(grids: list[str], said: str) -> None:
    """The error says what is wrong."""
    with pytest.raises(UsageError, match=said):
        read_points(grids, None, 100)


@pytest.mark.parametrize("grids", [["x=0..999999999999"], ["x=0..9999", "y=0..999"]], ids=["one range", "a product"])
def test_too_many_points(grids: list[str]) -> None:
    """Points are counted before they are generated; the hint names the option that raises the limit."""
    with pytest.raises(UsageError, match="at most 100,000") as e:
        read_points(grids, None, 100_000)
    assert e.value.hint.startswith("`--max-tasks 10000000")


def test_files(tmp_path: Path) -> None:
    """Reads .csv with quotes, CRLF and a byte order mark, and .jsonl with keys in any order."""
    table = tmp_path / "p.csv"
    table.write_bytes('\ufefflr, name\r\n1e-4,"a,b"\r\n\r\n3e-4,"two\nlines"\r\n'.encode())
    assert read_points([], str(table), 10) == (["lr", "name"], [("1e-4", "a,b"), ("3e-4", "two\nlines")])
    lines = tmp_path / "p.jsonl"
    lines.write_text('{"a": 1, "b": "x\u2028y"}\n\n{"b": true, "a": 1e-05}\n{"a": [1, 2], "b": "{a}"}\n')
    assert read_points([], str(lines), 10) == (["a", "b"], [("1", "x\u2028y"), ("1e-05", "true"), ("[1, 2]", "{a}")])


def test_a_file_with_a_grid(tmp_path: Path) -> None:
    """Each row is combined with each point; the grid varies fastest."""
    table = tmp_path / "p.csv"
    table.write_text("a\n1\n2\n")
    assert read_points(["b=x,y"], str(table), 10) == (["a", "b"], [("1", "x"), ("1", "y"), ("2", "x"), ("2", "y")])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.csv", "a,b\n1,2\n3\n", "line 3 of .* has 1 value, and its first line 2 names"),
        ("p.csv", 'a,b\n1,2\n"3,4\n', "row that begins in line 3 of .* is not valid CSV"),
        ("p.csv", 'a,b\n1,2\n3,"4\n5,6\n', "row that begins in line 3 of .* is not valid CSV"),
        ("p.csv", "a,a\n1,2\n", "line 1 of .* duplicate name `a`"),
        ("p.csv", "1,b\n1,2\n", "line 1 of .*`1` is not a name"),
        ("p.csv", "a,b\n", "has no rows"),
        ("p.csv", "", "has no rows"),
        ("p.jsonl", '{"a": 1}\n{"a": \n', "line 2 of .* is not valid JSON"),
        ("p.jsonl", '{"a": 1}\n[1]\n', "line 2 of .* is not an object"),
        ("p.jsonl", '{"a": 1}\n{"b": 1}\n', "line 2 of .*`a` is not in all rows"),
        ("p.jsonl", '{"a": null}\n', "line 1 of .* is null"),
        ("p.txt", "a\n1\n", "unknown file format"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    """The error names the line."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TorchXError, match=said):
        read_points([], str(path), 100)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, or one that is not UTF-8, is an error."""
    with pytest.raises(TorchXError, match="No such file"):
        read_points([], str(tmp_path / "none.csv"), 100)
    (tmp_path / "p.csv").write_bytes(b"a\n\xff\n")
    with pytest.raises(TorchXError, match="not UTF-8"):
        read_points([], str(tmp_path / "p.csv"), 100)
