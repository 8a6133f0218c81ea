"""Find the code blocks of a Markdown page, and run them as a reader would, one after the other.

A block runs by its language: ``python`` in one namespace for the page; ``bash`` and ``shell`` with ``bash -e``; ``console`` line by line,
each ``$ command`` against the output shown below it, where ``...`` stands for any text, and alone on a line for any lines.
Other languages are not run. A comment on the line above a block changes that:

* ``<!-- file: NAME -->`` the block is the content of that file
* ``<!-- needs: MODULE -->`` the block runs where that module is installed
* ``<!-- not run: REASON -->``
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

_BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[^\n]*?) -->\n)?```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    body: str
    file: str = ""
    needs: str = ""
    not_run: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    with open(page) as file:
        text = file.read()
    found = []
    for match in _BLOCK.finditer(text):
        kind, _, value = (match["note"] or "").partition(": ")
        notes = {"file": "file", "needs": "needs", "not run": "not_run"}
        said = {notes[kind]: value} if kind in notes else {}
        line = text.count("\n", 0, match.start("body"))
        found.append(Block(page, line, match["language"], match["body"], **said))
    return found


def run(block: Block, namespace: dict[str, object]) -> None:
    """Run the block in the current directory; raises AssertionError with what was printed when it does not do as shown."""
    if block.file:
        os.makedirs(os.path.dirname(block.file) or ".", exist_ok=True)
        with open(block.file, "w") as file:
            file.write(block.body)
    elif block.language == "python":
        exec(compile("\n" * block.line + block.body, block.page, "exec"), namespace)
    elif block.language in ("bash", "shell"):
        _output(block, ["bash", "-e", "-o", "pipefail", "-c", block.body])
    elif block.language == "console":
        for command, expected in _steps(block.body):
            seen = _output(block, ["bash", "-e", "-c", command])
            assert matches(expected, seen), f"{block.where}: $ {command}\nshows\n{expected}\nbut printed\n{seen}"


def matches(expected: str, seen: str) -> bool:
    """Whether ``seen`` is as shown; trailing blanks, and blank lines at the end, do not count.

    >>> matches("a ... c", "a b c\\n")
    True
    >>> matches("a\\n...\\nd", "a\\nb\\nc\\nd\\n")
    True
    >>> matches("a", "b")
    False
    """
    pattern = []
    for line in expected.rstrip().splitlines():
        if line.strip() == "...":
            pattern.append(r"(?:.*\n)*?")
        else:
            pattern.append(r".*?".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ \t]*\n")
    text = seen.rstrip()
    return re.fullmatch("".join(pattern), f"{text}\n" if text else "") is not None


def _steps(body: str) -> list[tuple[str, str]]:
    """Each command, its continuation lines (``> ``) included, with the output shown below it."""
    steps: list[tuple[list[str], list[str]]] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            steps.append(([line[2:]], []))
        elif line.startswith("> ") and steps and not steps[-1][1]:
            steps[-1][0].append(line[2:])
        elif steps:
            steps[-1][1].append(line)
    return [("\n".join(command), "\n".join(output)) for command, output in steps]


def _output(block: Block, argv: list[str]) -> str:
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, f"{block.where}: exit code {done.returncode} of\n{argv[-1]}\n{done.stdout}"
    # Whether this is said depends on the reader's machine.
    return re.sub(r"^torchx: warning: the replicas ask for more than .*\n", "", done.stdout, flags=re.MULTILINE)
