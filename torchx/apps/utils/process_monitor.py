"""Starts a program when one file appears, and ends it when another file appears or after a timeout.

``python -m torchx.apps.utils.process_monitor --timeout 3600 --exit_on_file /data/done -- tensorboard --logdir /data``

Files may be fsspec URLs. The exit code is that of the program; 0 if the exit file ended it; 34 after the timeout, or
``$TORCHX_TIMEOUT_EXIT_CODE``, which is 0 for a program that is meant to run until the timeout. A timeout before the
program has started is always 34.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time

TIMEOUT_EXIT_CODE = 34
"""Exit code after the timeout."""

ENV_TIMEOUT_EXIT_CODE = "TORCHX_TIMEOUT_EXIT_CODE"
"""Exit code after the timeout, set by components whose program is meant to run until then."""

_GRACE_S = 10.0  # from SIGTERM to SIGKILL


def parse_args(argv: list[str]) -> argparse.Namespace:
    """Parse the conditions and the program."""
    parser = argparse.ArgumentParser(description="runs a program until a file appears or a time limit is reached")
    parser.add_argument("--timeout", type=float, default=0.0, help="seconds to run for; 0 for no limit")
    parser.add_argument("--poll_rate", type=float, default=1.0, help="seconds between checks of the files")
    parser.add_argument("--start_on_file", default="", help="wait for this file before the program is started")
    parser.add_argument("--exit_on_file", default="", help="end the program when this file appears")
    parser.add_argument("entrypoint", help="the program")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Run the program and exits with the code described above.

    Raises:
        SystemExit: always, unless the exit code is 0.
    """
    args = parse_args(argv)
    # Before the program starts, so that a signal that ends us also ends the program.
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
    """Forwards SIGTERM and SIGINT to the program; before it starts, they end this process."""

    def __init__(self) -> None:
        self._program: subprocess.Popen[bytes] | None = None
        self._starting = False
        self._early = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._received)

    def starting(self) -> None:
        """From now on, signals are kept for the program."""
        self._starting = True

    def to(self, program: subprocess.Popen[bytes]) -> None:
        """Forward signals to the program, which has started."""
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
    # Not a command-line option, because an older torchx in the image would reject it.
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
    """Return whether the file exists; on an error warns once and return False, so that it is checked again."""
    from fsspec.core import url_to_fs

    try:
        fs, name = url_to_fs(path)
        fs.invalidate_cache()
        return bool(fs.exists(name))
    except Exception as e:  # each store has its own errors
        if path not in _warned:
            _warned.add(path)
            print(f"process_monitor: `{path}` cannot be looked for: {e}", file=sys.stderr)
        return False


_warned: set[str] = set()


if __name__ == "__main__":
    main(sys.argv[1:])
