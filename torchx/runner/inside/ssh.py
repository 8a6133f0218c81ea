"""Replicas as OpenSSH hosts: entries for ``~/.ssh/config`` that connect through ``torchx exec``."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterable

from torchx.errors import ConfigError
from torchx.schedulers.kit.shell import quote, read_script
from torchx.util.procs import own_program

_ENTRY = """\
Host {name}
  User {user}
  ProxyCommand {proxy}
  # Each connection has a host key of its own; torchx knows to whom it leads.
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


def host_names(app_id: str, replicas: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Return the host name of each replica of a job; it contains the role if there are several.

    >>> host_names("train-x1", [("trainer", 0)]), host_names("ns:a", [("a", 0), ("b c", 1)])
    ({('trainer', 0): 'torchx-train-x1-0'}, {('a', 0): 'torchx-ns-a-a-0', ('b c', 1): 'torchx-ns-a-b-c-1'})
    """
    chosen = list(replicas)
    several = len({role for role, _ in chosen}) > 1
    names = {(role, k): f"torchx-{app_id}-{f'{role}-' if several else ''}{k}" for role, k in chosen}
    return {replica: re.sub(r"[^A-Za-z0-9_.-]", "-", name) for replica, name in names.items()}


def entry(handle: str, replica: tuple[str, int], *, name: str, user: str, keys: str) -> str:
    """Return the entry for one replica, with this host name and user inside it;
    owners of the public ``keys`` may log in.
    """
    home = os.environ.get("TORCHX_HOME")
    torchx = ["env", f"TORCHX_HOME={quote(os.path.abspath(home))}"] if home else []
    torchx += map(quote, own_program("torchx.cli.main"))
    script = read_script(__file__, "sshd.sh")
    words = ["sh", "-c", script, "sh", keys]
    # ssh expands % in the value, and passes it as one line to a shell.
    proxy = " ".join([*torchx, "exec", quote(f"{handle}/{replica[0]}/{replica[1]}"), "--", *map(_on_one_line, words)])
    return _ENTRY.format(name=name, user=user, proxy=proxy.replace("%", "%%"))


def public_keys(folder: str = "~/.ssh") -> str:
    """Return the user's public keys, from the SSH agent and from files; raises ConfigError if the user has none."""
    found: dict[str, None] = {}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # there is no agent
        listed = subprocess.run(["ssh-add", "-L"], capture_output=True, text=True, check=False, timeout=10)
        found.update(dict.fromkeys(listed.stdout.splitlines() if listed.returncode == 0 else ()))
    path = os.path.expanduser(folder)
    for name in sorted(os.listdir(path)) if os.path.isdir(path) else ():
        if name.endswith(".pub") and not name.endswith("-cert.pub"):
            with contextlib.suppress(OSError), open(os.path.join(path, name), encoding="utf-8", errors="replace") as f:
                found.update(dict.fromkeys(line.strip() for line in f if line.strip()))
    if not found:
        raise ConfigError("you have no SSH key", hint="`ssh-keygen -t ed25519` makes one")
    return "\n".join(found)


def _on_one_line(word: str) -> str:
    r"""Quotes a word for ``sh`` without newlines in the result.

    >>> print(_on_one_line("plain"), _on_one_line("a\nb"))
    plain "$(printf %b 'a\0012b')"
    """
    if "\n" not in word:
        return quote(word)
    data = word.encode("utf-8", "surrogateescape")
    safe = re.sub(rb"[^A-Za-z0-9_ ./:=,@+-]", lambda m: b"\\0%03o" % m[0][0], data).decode("ascii")
    return f"\"$(printf %b '{safe}')\""
