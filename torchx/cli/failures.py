"""How the command line fails: one line that names the cause, one that says what to do, and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from torchx.errors import EXIT_INTERRUPTED, EXIT_OK, TorchXError
from torchx.util.secrets import mask_told
from torchx.util.term import has_color, printable

EXIT_BUG = 70
"""Something was raised that nobody foresaw (sysexits.h: EX_SOFTWARE)."""

EXIT_IO = 74
"""A file, or standard output, could not be read or written (sysexits.h: EX_IOERR)."""

EXIT_BROKEN_PIPE = 141
"""The reader of our output went away: what a shell reports for every program that SIGPIPE ends."""

EXIT_CODES = """\
Exit codes:
  0  done                            7    the job is gone
  1  the job failed; doctor: bad     70   a bug
  2  wrong usage                     74   a file, or the output, cannot be read or written
  3  what was named is not there     75   the job has not ended (--exit-code)
  4  the scheduler failed            124  the time of --timeout is up
  5  the scheduler cannot do that    130  interrupted
  6  a package is missing            141  the reader of the output went away"""

_WHERE = "`torchx --log_level=DEBUG ...` shows where this comes from"
_MORE = "TORCHX_DEBUG=1 shows the traceback"

_debug = False
_shows_progress = False


class UsageError(TorchXError):
    """The command line itself is wrong."""


def guard(work: Callable[[], None]) -> int:
    """Runs ``work`` and returns the exit code; whatever it raises becomes a line on stderr."""
    try:
        try:
            work()
        finally:
            sys.stdout.flush()
    except SystemExit as e:
        return _code_of(e)
    except TorchXError as e:
        _traceback_if_wanted()
        error(str(e) or type(e).__name__, hint=e.hint or ("" if _wants_traceback() else _WHERE))
        return e.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except OSError as e:
        _traceback_if_wanted()
        if e.filename is None:
            _silence_stdout()  # a full disk behind stdout would complain once more, here and at exit
        where = f"`{e.filename}`: " if e.filename else ""
        if not where and isinstance(e, FileNotFoundError) and _is_nowhere():
            error("the current directory was deleted", hint="go to one that is there: `cd ~`")
            return EXIT_IO
        error(f"{where}{e.strerror or e}", hint="" if _wants_traceback() else _MORE)
        return EXIT_IO
    except BaseException as e:
        _traceback_if_wanted()
        said = " ".join(str(e).split()) or "no message"
        error(f"{type(e).__name__}: {said}", hint=f"this is a bug in torchx{_place(e)}; {_MORE}")
        return EXIT_BUG
    return EXIT_OK


def error(message: str, *, hint: str = "") -> None:
    """One line, red on a terminal, and what to do about it."""
    _say("error", message, "\033[31m")
    if hint:
        color = has_color(sys.stderr)
        text = printable(hint)
        print(f"\033[36mhint:\033[0m {text}" if color else f"hint: {text}", file=sys.stderr)


def warn(message: str) -> None:
    """One line of warning on stderr."""
    _say("warning", message, "\033[33m")


def note(message: str) -> None:
    """One line on stderr: what happens now, or what can be done next."""
    _end_progress()
    print(f"\033[90m{message}\033[0m" if has_color(sys.stderr) else message, file=sys.stderr, flush=True)


def progress(text: str) -> None:
    """Shows how things are on one line of a terminal, in place of what it showed before; empty: nothing any more."""
    global _shows_progress
    sys.stderr.write(f"\r\033[K{text}")
    sys.stderr.flush()
    _shows_progress = bool(text)


def _end_progress() -> None:
    """Whatever is printed next has a line of its own."""
    if _shows_progress:
        progress("")


def show_tracebacks(on: bool) -> None:
    """What ``--log_level=DEBUG`` asks for."""
    global _debug
    _debug = on


def _say(kind: str, message: str, color: str) -> None:
    _end_progress()
    sys.stdout.flush()  # so that the two streams stay in order on one terminal
    head = f"torchx: {kind}:"
    text = printable(mask_told(message.strip(), sys.argv))
    print(f"{color}{head}\033[0m {text}" if has_color(sys.stderr) else f"{head} {text}", file=sys.stderr)


def _is_nowhere() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _wants_traceback() -> bool:
    return _debug or os.environ.get("TORCHX_DEBUG", "0") not in ("", "0")


def _traceback_if_wanted() -> None:
    if _wants_traceback():
        import traceback

        traceback.print_exc()


def _place(e: BaseException) -> str:
    """In whose code it was raised: ours, or a plugin's."""
    tb = e.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    if tb is None:
        return ""
    module = str(tb.tb_frame.f_globals.get("__name__", "?"))
    return f" at {module}:{tb.tb_lineno}"


def _silence_stdout() -> None:
    """Points stdout nowhere, so that the interpreter's last flush does not fail again."""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    except (OSError, ValueError, AttributeError):  # stdout is not a file: nothing to protect
        pass


def _code_of(e: SystemExit) -> int:
    if e.code is None or isinstance(e.code, int):
        return e.code or EXIT_OK
    print(e.code, file=sys.stderr)
    return 1
