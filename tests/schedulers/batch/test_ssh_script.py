"""Scripts as command lines for any shell, and their answers among noise."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx.schedulers.batch.ssh.script import command_line, enclose, join, parse

# what a process can be given as an argument
WORDS = st.lists(
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=40), max_size=5
)


@settings(max_examples=40, deadline=None)
@given(WORDS)
def test_words_arrive(words: list[str]) -> None:
    """Any text arrives through the login shell and the shell that the line starts."""
    line, first = command_line(enclose(join(["printf", "%s\\0", *words]), "MARK:"))
    assert first == b""
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True, stdin=subprocess.DEVNULL)
    answer = parse("MARK:", done.stdout, done.stderr)
    assert answer.returncode == 0
    assert answer.stdout.decode() == "".join(f"{word}\0" for word in words or [""])


@given(WORDS)
def test_lines_are_plain(words: list[str]) -> None:
    """A line has no character with different meanings in different shells: csh's `!`, a line end, a stray quote."""
    line, _ = command_line(join(["echo", *words]))
    assert line.isascii() and line.isprintable()
    assert "!" not in line and "\n" not in line
    assert line.count("'") == 4


def test_a_long_script_comes_by_stdin() -> None:
    """The rest of stdin is the script's own input."""
    line, first = command_line(f"x={'y' * 150_000}; cat; printf %s ${{#x}}")
    assert len(line) < 100 and len(first) > 150_000
    done = subprocess.run(["sh", "-c", line], input=first + b"rest ", capture_output=True, check=True)
    assert done.stdout == b"rest 150000"


@settings(max_examples=200)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_garbage_is_no_answer(stdout: bytes, stderr: bytes) -> None:
    """Without both pairs of marks there is neither an exit code nor output."""
    answer = parse("torchx-0123456789abcdef:", stdout, stderr)
    assert (answer.returncode, answer.stdout, answer.stderr) == (None, b"", b"")


@pytest.mark.parametrize("cut", range(7))
def test_an_answer_that_was_cut(cut: int) -> None:
    """Incomplete output is not returned."""
    stdout, stderr = b"M:out" + b"M:"[:cut], (b"M:errM:0;")[: 3 + cut]
    answer = parse("M:", stdout, stderr)
    assert answer.returncode is None or (cut >= 2 and answer.stdout == b"out" and stderr.endswith(b";"))


@pytest.mark.parametrize(
    ("stdout", "stderr", "code", "began"),
    [
        (b"hi@out@bye", b"no@err@3;bye", 3, True),
        (b"", b"", None, False),
        (b"@out", b"", None, True),
        (b"", b"@", None, True),
        (b"@out@", b"@err@", None, True),
        (b"@out@", b"@err@3", None, True),
        (b"@out@", b"@err@x;", None, True),
        (b"@out@x@", b"@err@3;", None, True),
        (b"@out", b"@err@3;", None, True),
        (b"@out@", b"@err@0;", 0, True),
    ],
)
def test_what_an_answer_is(stdout: bytes, stderr: bytes, code: int | None, began: bool) -> None:
    """Complete between its marks on both streams, with a code; one mark shows that the script has started."""
    found = parse("@", stdout, stderr)
    assert (found.returncode, found.began) == (code, began)
    assert (found.stdout, found.stderr) == ((b"out", b"err") if code is not None else (b"", b""))
