r"""Encodes a script as one command line for any login shell, and separates its output from that of shells and ssh.

``sshd`` passes a command line to the user's login shell: sh, bash, zsh, csh, fish, each with its own quoting rules. The
line made here has the same meaning in all of them: it starts ``sh`` with words in single quotes that contain no quote,
line end or ``!``. Other characters of the script are written as octal digits, which ``printf %b`` (POSIX) decodes.

The script's output is enclosed in marks on stdout and stderr. Output of login scripts before it, and of logout scripts
or ``ssh`` after it, is discarded. If the last mark is missing, the output may be incomplete.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchx.errors import CommandError
from torchx.schedulers.kit.shell import quote
from torchx.util.records import dataclass

_MAX_LINE = 100_000
"""Maximum length of a command line: sshd passes it as one argument, which Linux limits to 128 KiB."""

_UNSAFE = re.compile(rb"[^A-Za-z0-9_ ./:=,@%+-]")
_DECODE = """sh -c 'eval "$(printf %b "$1")"' sh '"""
_READ = "sh -c 'eval \"$(dd bs=1 count={} 2>/dev/null)\"'"


@dataclass(frozen=True)
class Answer:
    """The result of a script.

    Attributes:
        returncode: of the script; None if its end was not reported.
        stdout, stderr: of the script alone.
        noise: other output on stderr, mostly of ssh.
        began: whether the script is known to have started.
    """

    returncode: int | None
    stdout: bytes
    stderr: bytes
    noise: str
    began: bool


def join(argv: Sequence[str]) -> str:
    """Return an argv as a line of a POSIX shell.

    Raises CommandError for NUL characters, which no system can pass on.
    """
    if any("\0" in word for word in argv):
        raise CommandError(f"`{argv[0]}` cannot be run: an argument contains a NUL character", argv=list(argv))
    return " ".join(quote(word) for word in argv)


def enclose(script: str, mark: str) -> str:
    """``script`` in the C locale, its output between marks, its exit code after the last one on stderr."""
    return (
        f"LC_ALL=C; export LC_ALL; printf %s {mark}; printf %s {mark} >&2\n"
        f"(\n{script}\n)\ntorchx_code=$?\n"
        f'printf %s {mark}; printf "{mark}%s;" "$torchx_code" >&2'
    )


def command_line(script: str) -> tuple[str, bytes]:
    """Return a line that makes any login shell run ``script`` in ``sh``, and the bytes that must come first on its
    stdin.

    >>> command_line("echo $HOME")[0]
    'sh -c \\'eval "$(printf %b "$1")"\\' sh \\'echo \\\\0044HOME\\''
    """
    data = script.encode("utf-8", "surrogateescape")
    line = _DECODE + _UNSAFE.sub(lambda m: b"\\0%03o" % m[0][0], data).decode("ascii") + "'"
    if len(line) <= _MAX_LINE:
        return line, b""
    return _READ.format(len(data)), data


def parse(mark: str, stdout: bytes, stderr: bytes) -> Answer:
    """Return the output of the script, and its exit code.

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
