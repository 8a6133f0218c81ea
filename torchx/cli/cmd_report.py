"""``torchx report``: what a support ticket about a job needs, in one file."""

from __future__ import annotations

import argparse
import io
import re
import sys
import time
from contextlib import suppress

from torchx.cli.argparse_util import Row, declare
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import UsageError, note
from torchx.cli.log_targets import JOB_HELP, OR_LAST, job_reference, or_last
from torchx.runner import Runner
from torchx.runner.ground.registry import run_registry
from torchx.util.procs import own_program
from torchx.util.redaction import redact
from torchx.util.secrets import mask_text, mask_value
from torchx.util.strings import size_text
from torchx.util.term import iso
from torchx.version import __version__

_LAST_LINES = "1000"
_MOST = 16 << 20
_WITHIN_S = 120.0
# File -> the verb whose output it has; JOB and SCHEDULER are those of the job.
_PARTS = {
    "status.json": "status JOB --json",
    "status.txt": "status JOB",
    "describe.json": "describe JOB --json",
    "why.json": "why JOB --json",
    "metrics.json": "metrics JOB --json",
    "request.txt": "rerun JOB --dryrun --full",
    "log.txt": f"log JOB --tail {_LAST_LINES}",
    "doctor.json": "doctor --json",
    "doctor-scheduler.json": "doctor -s SCHEDULER --json",
    "plugins.json": "plugins --json",
}
_EVENTS, _VERSIONS = "events.json", "versions.txt"
_PACKAGES = ("torch", "lightning", "transformers")  # and those that torchx names as requirements


class CmdReport(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        rows: tuple[Row, ...] = (
            ("app_handle", "JOB", JOB_HELP, {"type": job_reference, **OR_LAST}),
            ("-o --output", "FILE", "the file to write (default: report.tgz); it must not exist"),
            ("--dryrun --dry-run", "", "list the contents without writing the file"),
        )
        declare(subparser, rows)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        """Gather the output of verbs, list it on stderr, and write it; each part has its errors, and secrets masked."""
        import os
        import tarfile

        path = args.output or "report.tgz"
        if os.path.lexists(path):
            raise UsageError(f"`{path}` exists", hint="remove it, or name another file with -o")
        if not os.access(folder := os.path.dirname(path) or ".", os.W_OK | os.X_OK):
            raise UsageError(f"you may not write to the folder `{folder}`", hint="name another file with -o")
        handle = runner.resolve(or_last(runner, args.app_handle))
        runner.recorded(handle)  # its secrets are masked
        words = {"JOB": handle, "SCHEDULER": handle.partition("://")[0]}
        parts = {name: _output([words.get(word, word) for word in verb.split()]) for name, verb in _PARTS.items()}
        abouts = {name: f"torchx {verb}" for name, verb in _PARTS.items()}
        parts[_EVENTS], abouts[_EVENTS] = _events(handle), "changes of its state, when they were seen"
        parts[_VERSIONS], abouts[_VERSIONS] = _versions(), "of torchx, Python, the system, and packages"
        for name, data in parts.items():
            note(f"{size_text(len(data)):>8}  {name:<22} {abouts[name]}")
        if args.dryrun:
            return
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            try:
                with tarfile.open(fileobj=file, mode="w:gz") as tar:
                    for name, data in parts.items():
                        entry = tarfile.TarInfo(f"report/{name}")
                        entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
                        tar.addfile(entry, io.BytesIO(data))
                file.flush()
            except BaseException:  # no part of a report, for example on a full disk
                os.unlink(path)
                raise
        print(path)


def _output(words: list[str]) -> bytes:
    """Return the end of what a verb prints, and its errors, as far as it takes no more than two minutes."""
    import subprocess

    argv = own_program("torchx.cli.main", *words)
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        return f"no answer within {e.timeout:g} s\n".encode()
    text = done.stdout[-_MOST:].decode("utf-8", "replace")
    if "--json" in words:
        with suppress(ValueError):  # the text of an error
            import json

            return _document(json.loads(text))
    return mask_text(text).encode("utf-8", "replace")


def _document(found: object) -> bytes:
    import json

    return redact(json.dumps(mask_value("", found), indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _events(handle: str) -> bytes:
    registry = run_registry()
    found = registry.changes(0, until=registry.last_change())
    rows = [
        {"at": iso(one.at), "was": one.was and str(one.was), "state": str(one.state), "msg": one.msg}
        for one in found
        if one.handle == handle
    ]
    return _document(rows)


def _versions() -> bytes:
    import platform
    from importlib import metadata

    asked = [re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in metadata.requires("torchx") or ()]
    lines = [f"torchx {__version__}", f"Python {sys.version.split()[0]}", platform.platform()]
    for name in sorted({*asked, *_PACKAGES}):
        with suppress(metadata.PackageNotFoundError):
            lines.append(f"{name} {metadata.version(name)}")
    return "\n".join([*lines, ""]).encode()
