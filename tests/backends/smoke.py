"""Which tests with real parts the gate runs: those that ``smoke.txt`` lists."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
LIST = FOLDER / "smoke.txt"


def listed() -> list[str]:
    """Tests as the list names them: ``folder/file.py::name``, with ``[parameter]`` for one of several."""
    lines = (line.partition("#")[0].split() for line in LIST.read_text().splitlines())
    return [words[0] for words in lines if words]


def is_listed(nodeid: str, tests: frozenset[str]) -> bool:
    """Whether the test with this id (``tests/backends/...``) is one of them, or a parameter of one of them."""
    name = nodeid.removeprefix("tests/backends/")
    return name in tests or name.partition("[")[0] in tests
