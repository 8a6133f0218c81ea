"""Runs a program from the moment that one file appears until another does, or for a time at most.

``python -m torchx.apps.utils.process_monitor --timeout 3600 --exit_on_file /data/done -- tensorboard --logdir /data``

Files may be URLs of fsspec. Ends with the program's exit code; with 0 when the exit file ended it,
with 34 when time did, or with ``$TORCHX_TIMEOUT_EXIT_CODE``: 0 for a program that is meant to run until time is over.
Time that is over before the program could be started is 34 all the same.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time

TIMEOUT_EXIT_CODE = 34
"""Exit code when the time is over."""

ENV_TIMEOUT_EXIT_CODE = "TORCHX_TIMEOUT_EXIT_CODE"
"""Set by components whose program is meant to run until time is over: the exit code then."""

_GRACE_S = 10.0  # from SIGTERM to SIGKILL


def parse_args(argv: list[str]) -> argparse.Namespace:
    """When to start, when to end, and the program."""
    parser = argparse.ArgumentParser(description="runs a program until a file appears or a time limit is reached")
    parser.add_argument("--timeout", type=float, default=0.0, help="seconds to run for; 0 for no limit")
    parser.add_argument("--poll_rate", type=float, default=1.0, help="seconds between checks of the files")
    parser.add_argument("--start_on_file", default="", help="wait for this file before the program is started")
    parser.add_argument("--exit_on_file", default="", help="end the program when this file appears")
    parser.add_argument("entrypoint", help="the program")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Runs the program and leaves with the exit code described above.

    Raises:
        SystemExit: always, unless the program ended with 0.
    """
    args = parse_args(argv)
    # Before anything is started: a signal that ends us must end the program as well.
    signals = _Forwarder()
    end = time.monotonic() + args.timeout if args.timeout > 0 else float("inf")
    while args.start_on_file and not _exists(args.start_on_file):
        if time.monotonic() >= end:
            sys.exit(TIMEOUT_EXIT_CODE)
        time.sleep(min(args.poll_rate, max(end - time.monotonic(), 0)))
    words = args.args[1:] if args.args[:1] == ["--"] else args.args
    signals.starting()
    try:
        program = subprocess.Popen([args.entrypoint, *words])
    except OSError as e:
        sys.exit(f"`{args.entrypoint}` cannot be started: {e.strerror}")
    signals.to(program)
    code = _watch(program, end, args)
    if code != 0:
        sys.exit(code)


class _Forwarder:
    """Passes SIGTERM and SIGINT on to the program; before there is one, they end us."""

    def __init__(self) -> None:
        self._program: subprocess.Popen[bytes] | None = None
        self._starting = False
        self._early = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._received)

    def starting(self) -> None:
        """From now on a signal is kept for the program."""
        self._starting = True

    def to(self, program: subprocess.Popen[bytes]) -> None:
        """The program has been started."""
        self._program = program
        if self._early:
            program.send_signal(self._early)

    def _received(self, number: int, _: object) -> None:
        if self._program is not None:
            self._program.send_signal(number)
        elif self._starting:
            self._early = number
        else:
            sys.exit(128 + number)


def _watch(program: subprocess.Popen[bytes], end: float, args: argparse.Namespace) -> int:
    while True:
        left = end - time.monotonic()
        wait = None if left == float("inf") and not args.exit_on_file else max(0.0, min(left, args.poll_rate))
        try:
            code = program.wait(timeout=wait)
        except subprocess.TimeoutExpired:
            pass
        else:
            return code if code >= 0 else 128 - code
        if time.monotonic() >= end:
            _stop(program)
            return _timeout_exit_code()
        if args.exit_on_file and _exists(args.exit_on_file):
            _stop(program)
            return 0


def _timeout_exit_code() -> int:
    # Not an option: components pass it on to images with an older torchx, too, which would refuse an option.
    text = os.environ.get(ENV_TIMEOUT_EXIT_CODE, "")
    return int(text) if text.isdecimal() else TIMEOUT_EXIT_CODE


def _stop(program: subprocess.Popen[bytes]) -> None:
    program.terminate()
    try:
        program.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def _exists(path: str) -> bool:
    """Whether the file is there; a store that does not answer says neither, and is asked again."""
    from fsspec.core import url_to_fs

    try:
        fs, name = url_to_fs(path)
        fs.invalidate_cache()
        return bool(fs.exists(name))
    except (OSError, ValueError, ImportError) as e:
        if path not in _told:
            _told.add(path)
            print(f"process_monitor: `{path}` cannot be looked for: {e}", file=sys.stderr)
        return False


_told: set[str] = set()


if __name__ == "__main__":
    main(sys.argv[1:])
