"""Messages of ssh as one line and a hint. The texts are those of OpenSSH 7.4 to 9.9 on Linux and macOS."""

from __future__ import annotations

import pytest

from torchx.errors import CommandError, ConfigError
from torchx.schedulers.batch.ssh.errors import LoginError, UnreachableError, login_error

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
Host key for login has changed and you have requested strict checking.
Host key verification failed.
"""
OPEN_KEY = """\
Permissions 0644 for '/home/me/.ssh/id' are too open.
@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @
Load key "/home/me/.ssh/id": bad permissions
"""


@pytest.mark.parametrize(
    ("said", "error", "part"),
    [
        (CHANGED, LoginError, "not the one that is on record"),
        (
            "No ED25519 host key is known for login and you have requested strict checking.",
            LoginError,
            "not known here",
        ),
        ("Host key verification failed.", LoginError, "not known here"),
        ("me@login: Permission denied (publickey).", LoginError, "refuses our keys"),
        (
            "Received disconnect from 1.2.3.4 port 22:2: Too many authentication failures",
            LoginError,
            "refuses our keys",
        ),
        ("ssh: Could not resolve hostname login: Name or service not known", LoginError, "no host of that name"),
        ("ssh: Could not resolve hostname login: nodename nor servname provided", LoginError, "no host of that name"),
        ("ssh: connect to host login port 22: Connection refused", UnreachableError, "nothing listens there"),
        ("ssh: connect to host login port 22: Connection timed out", UnreachableError, "does not answer"),
        ("ssh: connect to host login port 22: Operation timed out", UnreachableError, "does not answer"),
        ("Connection timed out during banner exchange", UnreachableError, "does not answer"),
        ("ssh: connect to host login port 22: No route to host", UnreachableError, "does not answer"),
        ("ssh: connect to host login port 22: Network is unreachable", UnreachableError, "does not answer"),
        ("kex_exchange_identification: Connection closed by remote host", UnreachableError, "closed the connection"),
        ("kex_exchange_identification: read: Connection reset by peer", UnreachableError, "closed the connection"),
        ("Connection closed by UNKNOWN port 65535", UnreachableError, "closed the connection"),
        ("/home/me/.ssh/config: line 3: Bad configuration option: nosuch", ConfigError, "line 3: Bad configuration"),
        ("Bad owner or permissions on /home/me/.ssh/config", ConfigError, "/home/me/.ssh/config"),
        ("", UnreachableError, "the connection was closed"),
        ("something new\nand odd", CommandError, "and odd"),
    ],
)
def test_what_ssh_says(said: str, error: type[Exception], part: str) -> None:
    """The class of the error, the target, one line, and a hint."""
    found = login_error("me@login", said)
    assert type(found) is error
    assert "`me@login`" in str(found) and part in str(found)
    assert "\n" not in str(found)
    assert found.hint


def test_a_key_that_others_can_read() -> None:
    """The reason precedes the final `Permission denied`."""
    said = OPEN_KEY + "me@login: Permission denied (publickey).\n"
    assert "others can read" in str(login_error("me@login", said))
