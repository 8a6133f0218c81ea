"""Error reporting of the command line: a line with the cause, a line with a hint, and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from torchx.errors import EXIT_INTERRUPTED, EXIT_OK, TorchXError
from torchx.util.secrets import mask_told
from torchx.util.term import has_color, is_tty, printable

EXIT_BUG = 70  # an unexpected exception (sysexits.h: EX_SOFTWARE)
EXIT_IO = 74  # an I/O error on a file or on stdout (sysexits.h: EX_IOERR)
EXIT_BROKEN_PIPE = 141  # the reader of our output closed the pipe; the code of shells for a program that SIGPIPE ended

EXIT_CODES = """\
Exit codes:
  0  success                         7    the job no longer exists
  1  the job or a check failed       70   a bug in torchx
  2  usage error                     74   I/O error on a file or on stdout
  3  not found                       75   the job has not ended (--exit-code)
  4  the scheduler failed            124  timed out (--timeout)
  5  not supported by the scheduler  130  interrupted
  6  a package is missing            141  broken pipe"""

_WHERE = "`torchx --log_level=DEBUG ...` shows the traceback"
_MORE = "TORCHX_DEBUG=1 shows the traceback"

_debug = False
_shows_progress = False


class UsageError(TorchXError):
    """The command line is wrong."""


def guard(work: Callable[[], None]) -> int:
    """Run ``work`` and return the exit code. Reports any exception in one line on stderr."""
    try:
        try:
            work()
        finally:
            sys.stdout.flush()
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int):
            return e.code or EXIT_OK
        print(e.code, file=sys.stderr)
        return 1
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
            _silence_stdout()  # flushing it at exit would fail again, for example on a full disk
        where = f"`{e.filename}`: " if e.filename else ""
        if not where and isinstance(e, FileNotFoundError) and _is_nowhere():
            error("the current directory was deleted", hint="change to an existing one: `cd ~`")
            return EXIT_IO
        error(f"{where}{e.strerror or e}", hint="" if _wants_traceback() else _MORE)
        return EXIT_IO
    except BaseException as e:
        _traceback_if_wanted()
        message = " ".join(str(e).split()) or "no message"
        error(f"{type(e).__name__}: {message}", hint=f"this is a bug in torchx{_place(e)}; {_MORE}")
        return EXIT_BUG
    return EXIT_OK


def error(message: str, *, hint: str = "") -> None:
    """Print an error, and a hint on how to fix it, to stderr."""
    _say("error", message, "\033[31m")
    if hint:
        color = has_color(sys.stderr)
        text = printable(hint)
        print(f"\033[36mhint:\033[0m {text}" if color else f"hint: {text}", file=sys.stderr)


def warn(message: str) -> None:
    _say("warning", message, "\033[33m")


def note(message: str) -> None:
    _end_progress()
    print(f"\033[90m{message}\033[0m" if has_color(sys.stderr) else message, file=sys.stderr, flush=True)


def progress(text: str) -> None:
    """Replace the progress line on the terminal; an empty text clears it, and a `^C` that the terminal echoed."""
    global _shows_progress
    _shows_progress = _shows_progress or bool(text)  # before it is written: an interrupt may come right after
    if _shows_progress or is_tty(sys.stderr):
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
    _shows_progress = bool(text)


def _end_progress() -> None:
    """Clear the progress line if there is one, so that the next message has a line of its own."""
    if _shows_progress:
        progress("")


def show_tracebacks(on: bool) -> None:
    """Turn tracebacks on or off; ``--log_level=DEBUG`` turns them on."""
    global _debug
    _debug = on


def _say(kind: str, message: str, color: str) -> None:
    _end_progress()
    sys.stdout.flush()  # keeps the two streams in order on a terminal
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
    """Return `` at MODULE:LINE`` of the code that raised it, which may be a plugin's."""
    import traceback

    *_, (frame, line) = traceback.walk_tb(e.__traceback__)
    return f" at {frame.f_globals.get('__name__', '?')}:{line}"


def _silence_stdout() -> None:
    """Redirects stdout to /dev/null, so that the flush at exit does not fail again."""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    except (OSError, ValueError, AttributeError):  # stdout is not a file
        pass
