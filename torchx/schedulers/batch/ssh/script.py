r"""A script as one command line for any login shell, and its answer told apart from everything that shells and ssh say.

``sshd`` hands a command line to the user's login shell: sh, bash, zsh, csh, fish, each with its own rules for quotes.
The line made here means the same in all of them: it starts ``sh`` with words in single quotes that hold no quote, no
line end and no ``!``. All else of the script is written as octal digits, which ``printf %b`` (POSIX) turns back.

The script's output stands between two marks on stdout and on stderr. What a login script prints before, and a logout
script or ``ssh`` itself after them, is not taken for output; and where the last mark is missing, so may be output.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchx.errors import CommandError
from torchx.schedulers.kit.shell import quote
from torchx.util.records import dataclass

_MOST_LINE = 100_000
"""Characters of a command line. Linux takes 128 KiB in one argument of a program, and sshd passes the line as one."""

_UNSAFE = re.compile(rb"[^A-Za-z0-9_ ./:=,@%+-]")
_DECODE = """sh -c 'eval "$(printf %b "$1")"' sh '"""
_READ = "sh -c 'eval \"$(dd bs=1 count={} 2>/dev/null)\"'"


@dataclass(frozen=True)
class Answer:
    """What came back from a script.

    Attributes:
        returncode: of the script; None when its end was not heard of.
        stdout, stderr: of the script alone.
        noise: what else was said on stderr, by ssh for the most part.
        began: whether the script is known to have been started.
    """

    returncode: int | None
    stdout: bytes
    stderr: bytes
    noise: str
    began: bool = True


def join(argv: Sequence[str]) -> str:
    """An argv as a line of a POSIX shell.

    Raises:
        CommandError: an argument holds a NUL, which no system passes on.
    """
    if any("\0" in word for word in argv):
        raise CommandError(f"`{argv[0]}` cannot be run: an argument has a NUL character in it", argv=list(argv))
    return " ".join(quote(word) for word in argv)


def enclose(script: str, mark: str) -> str:
    """``script`` in the C locale, its output between marks, its exit code behind the last one on stderr."""
    return (
        f"LC_ALL=C; export LC_ALL; printf %s {mark}; printf %s {mark} >&2\n"
        f"(\n{script}\n)\ntorchx_code=$?\n"
        f'printf %s {mark}; printf "{mark}%s;" "$torchx_code" >&2'
    )


def command_line(script: str) -> tuple[str, bytes]:
    """A line that makes any login shell run ``script`` in ``sh``, and what must come first on its stdin.

    >>> command_line("echo $HOME")[0]
    'sh -c \\'eval "$(printf %b "$1")"\\' sh \\'echo \\\\0044HOME\\''
    """
    data = script.encode("utf-8", "surrogateescape")
    line = _DECODE + _UNSAFE.sub(lambda m: b"\\0%03o" % m[0][0], data).decode("ascii") + "'"
    if len(line) <= _MOST_LINE:
        return line, b""
    return _READ.format(len(data)), data


def parse(mark: str, stdout: bytes, stderr: bytes) -> Answer:
    """What the script wrote, and how it ended.

    >>> parse("@", b"Welcome!@out@", b"@err@3;bye").returncode
    3
    """
    key = mark.encode()
    out, err = stdout.split(key), stderr.split(key)
    code, semicolon, after = err[-1].partition(b";")
    ended = len(out) == 3 and len(err) == 3 and bool(semicolon) and code.isdigit()
    noise = err[0] + (after if ended else b"".join(err[1:]))
    return Answer(
        int(code) if ended else None,
        out[1] if ended else b"",
        err[1] if ended else b"",
        noise.decode("utf-8", "replace").strip(),
        began=len(out) > 1 or len(err) > 1,
    )
