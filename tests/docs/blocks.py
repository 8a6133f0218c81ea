"""Find the code blocks of a Markdown page, and run them as a reader would, one after the other.

A block runs by its language: ``python`` in one namespace for the page; ``bash`` and ``shell`` with ``bash -e``; ``console`` line by line,
each ``$ command`` against the output shown below it. That is a real one: what differs from run to run (:func:`normal`) is not compared. ``...``
stands for any text, and alone on a line for any lines. Other languages are not run. Comments on the lines above a block change that:

* ``<!-- file: NAME -->`` the block is the content of that file
* ``<!-- terminal: COLUMNS -->`` the commands run on a terminal of that width, as people see them; their exit codes do not matter
* ``<!-- needs: MODULE -->`` the block runs where that module is installed
* ``<!-- not run: REASON -->``
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs"))
from _site import terminal  # the path is set above

_BLOCK = re.compile(
    r"^(?P<notes>(?:<!-- [^\n]*? -->\n)*)```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_NOTE = re.compile(r"^<!-- (file|terminal|needs|not run): (.*?) -->$", re.MULTILINE)
_DIFFERS = (
    (r"(?<=-)[b-z][b-z0-9]{13}\b", "<id>"),
    (r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+Z)?", "<date>"),
    (r"\b[A-Z][a-z][a-z] +\d+ \d\d:\d\d:\d\d\b", "<date>"),
    (r"(?m)^\d\d:\d\d:\d\d(?=  )", "<time>"),
    (r"\b\d+(?:\.\d+)? (?:ms|s|min|h|days?)\b|\b\d+\.\d+s\b", "<duration>"),
    (r"\bjust now\b", "<duration> ago"),
    (r"(?:file://)?/\S*/(?=local/torchx/)", "<home>/"),
    (r"\b\d+\.\d\d+\b", "<number>"),
    (r"(?<=process )\d+\b", "<number>"),
    (r"(?m)^cancell(?:ed|ing) (\S+?)(?:, SIGKILL in .*)?$", r"cancelled \1"),  # by then it is over, or not yet
    (r"[ \t]+", " "),
)
"""What differs from run to run: ids, times, folders, results of a computation; and with these the width of columns."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    body: str
    file: str = ""
    terminal: str = ""
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
        said = {kind.replace(" ", "_"): value for kind, value in _NOTE.findall(match["notes"])}
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
            seen = _seen(block, command) if block.terminal else _output(block, ["bash", "-e", "-c", command])
            assert matches(expected, seen), f"{block.where}: $ {command}\nshows\n{expected}\nbut printed\n{seen}"


def normal(text: str) -> str:
    """The text without what differs from run to run.

    >>> normal("echo-k492mg39v99w60  SUCCEEDED  24 s ago")
    'echo-<id> SUCCEEDED <duration> ago'
    """
    for pattern, word in _DIFFERS:
        text = re.sub(pattern, word, text)
    return text


def matches(expected: str, seen: str) -> bool:
    """Whether ``seen`` is as shown, but for what differs from run to run; blanks at the end do not count.

    >>> matches("a ... c", "a b c\\n")
    True
    >>> matches("a\\n...\\nd", "a\\nb\\nc\\nd\\n")
    True
    >>> matches("a", "b")
    False
    """
    pattern = []
    for line in normal(expected.rstrip()).splitlines():
        if line.strip() == "...":
            pattern.append(r"(?:.*\n)*?")
        else:
            pattern.append(r".*?".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ \t]*\n")
    text = normal(seen.rstrip())
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


def _seen(block: Block, command: str) -> str:
    """What a person has before them at the end, with long lines whole: folders have other names elsewhere."""
    screen = terminal.Screen(10_000)
    env = {**os.environ, "NO_COLOR": "1", "TERM": "xterm"}
    for _, written in terminal.chunks(command, env=env, columns=int(block.terminal)):
        screen.feed(written)
    return _anywhere("\n".join(screen.texts()))


def _anywhere(said: str) -> str:
    """Without a warning that depends on the reader's machine."""
    return re.sub(r"^torchx: warning: the job asks for .*\n", "", said, flags=re.MULTILINE)


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
    return _anywhere(done.stdout)
