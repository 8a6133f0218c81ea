"""What a project's ``.torchxconfig`` may do on this machine: announces it, and lets programs run only with consent.

A project's file is that of the current directory, unless this is the home, or ``$TORCHXCONFIG`` names the file: it may
come from somebody else. Consent is given once for a file and its content, as with direnv.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from torchx.config.ini import Entry, Sections, read
from torchx.errors import ConfigError
from torchx.settings import ENV_TRUST, make_private, torchx_home
from torchx.util import term
from torchx.util.notices import logger
from torchx.util.term import printable

_SCHEDULERS = "(?!secrets|notify|metrics|named_resources)[^:]+"
RULES = (
    # section, key, value (regular expressions; the last may match anywhere), what it does, whether it needs consent
    ("cli:run|secrets|notify", ".*", "cmd:", "runs a command, for a secret", True),
    ("notify", "via", "exec:", "runs a program, for notices", True),
    ("notify", "via", "slack|webhook|mail", "sends the outcome of your jobs to addresses in the config files", False),
    ("cli:run|secrets|notify", ".*", r"file:(~|/|.*\.\./)", "reads that file, for a secret", False),
    ("cli:run", "component", r"\.py:", "imports that file, when `torchx run` names no component", False),
    ("local_cwd", "prepend_cwd", "(?i)true|yes|on|1", "runs programs of this folder before those on PATH", False),
    (_SCHEDULERS, "setup", ".", "runs these lines of shell before the programs of jobs", True),
    ("workspace", "uv", "(?i)true|yes|on|1", "installs the packages of uv.lock where jobs run", False),
    ("logs", "to", "://", "sends the logs of your jobs there", False),
    (_SCHEDULERS, "ssh", ".", "connects to that host, with your SSH keys", False),
    (_SCHEDULERS, "image_repo|bucket", ".", "sends your code there", False),
    ("torchx:tracker|tracker:.*", ".*", "://", "connects your jobs to that tracker", False),
)

_found: dict[str, tuple[str, list[tuple[Entry, str, bool]]]] = {}
"""Path of a file -> digest of its content, and its entries for which there is a rule, with their announcements."""


def scan(path: str, sections: Sections) -> None:
    """Find out what a project's file does, and announces it once for this content, unless stderr is discarded."""
    rows = [
        (entry, f"{entry.where()}: `{printable(f'{key} = {entry.text}')}` {does}", asks)
        for name, section in sections.items()
        for key, entry in section.items()
        for where, which, what, does, asks in RULES
        if re.fullmatch(where, name.partition("@")[0]) and re.fullmatch(which, key) and re.search(what, entry.text)
    ]
    if not rows:
        return
    digest = _digest(path, sections)
    _found[path] = digest, rows
    with suppress(OSError):
        if not _is_marked(digest, "seen") and not os.path.samestat(os.fstat(2), os.stat(os.devnull)):
            for said in dict.fromkeys(said for _, said, _ in rows):
                logger("torchx.config").warning("%s", said)
            _mark(digest, "seen", path)


def permit(program: str) -> None:
    """Raise ConfigError if a project's file names this program, and the user does not trust that file.

    Args:
        program: ``cmd:COMMAND``, ``exec:PATH`` or ``setup:LINES``; anything else is permitted.
    """
    text = program.removeprefix("setup:")
    for path, (digest, rows) in _found.items() if program.startswith(("cmd:", "exec:", "setup:")) else ():
        entry = next((entry for entry, _, asks in rows if asks and text in entry.text), None)
        if entry is None or os.environ.get(ENV_TRUST) == "1" or _is_marked(digest, "trusted"):
            continue
        what = f"{entry.where()}: `{printable(program)}` runs a program that this folder chose"
        if term.ask is None or not term.ask(f"{what}. Trust this config file, until it changes"):
            hint = f"read it, then `torchx configure --trust`; {ENV_TRUST}=1 trusts all folders"
            raise ConfigError(f"{what}, and you have not trusted its config file", hint=hint)
        with suppress(OSError):
            _mark(digest, "trusted", path)


def trust(path: str) -> None:
    """Record that the user trusts a project's file, as it was read; raise OSError if that is impossible."""
    os.stat(path)
    if path in _found:
        _mark(_found[path][0], "trusted", path)


def is_ours(path: str) -> None:
    """Announce nothing of a file that torchx itself has just written."""
    path = os.path.abspath(path)
    with suppress(OSError):
        _mark(_digest(path, read(path)), "seen", path)


def _digest(path: str, sections: Sections) -> str:
    import hashlib

    text = repr([path, *((n, k, e.text, e.line) for n, s in sections.items() for k, e in s.items())])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _mark(digest: str, kind: str, path: str) -> None:
    make_private(torchx_home("trust"))
    with open(os.open(torchx_home("trust", f"{digest}.{kind}"), os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(f"{path}\n")


def _is_marked(digest: str, kind: str) -> bool:
    return os.path.exists(torchx_home("trust", f"{digest}.{kind}"))
