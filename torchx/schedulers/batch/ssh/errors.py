"""Errors of ``ssh`` as one-line messages with a hint."""

from __future__ import annotations

import re

from torchx.errors import BackendError, CommandError, ConfigError, TransientError
from torchx.schedulers.kit.commands import last_line
from torchx.util.records import dataclass


class ConnectionLostError(TransientError):
    """The connection broke while a command ran; whether the command finished is unknown."""


class UnreachableError(TransientError):
    """The login node cannot be reached at the moment."""


class LoginError(BackendError):
    """The login node rejects the login, or its host key has changed."""


@dataclass(frozen=True)
class _Meaning:
    pattern: str  # searched in ssh's stderr, ignoring case
    error: type[BackendError] | type[ConfigError]
    message: str  # after "cannot log in to `target`: "
    hint: str


# The texts are those of OpenSSH 7.4 to 9.x (sshconnect.c, sshconnect2.c, readconf.c, packet.c, mux.c,
# https://github.com/openssh/openssh-portable) and of the C library. The first match counts.
_MEANINGS = (
    _Meaning(
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key for .* has changed|has changed and you have requested strict",
        LoginError,
        "its host key is not the one that is on record",
        "ask its administrators whether it was changed; if so, remove the old one with `ssh-keygen -R {host}`",
    ),
    _Meaning(
        r"host key is known for|Host key verification failed",
        LoginError,
        "its host key is not known here",
        "run `ssh {target}` once and compare the fingerprint that it shows",
    ),
    _Meaning(
        r"UNPROTECTED PRIVATE KEY FILE|bad permissions",
        LoginError,
        "ssh refuses a private key that others can read",
        "chmod 600 the key file",
    ),
    _Meaning(
        r"Permission denied|Too many authentication failures|No more authentication methods|Authentication failed",
        LoginError,
        "it refuses our keys",
        "`ssh {target}` must work first: load the key with `ssh-add`, or name it as IdentityFile in ~/.ssh/config",
    ),
    _Meaning(
        r"Could not resolve hostname|Name or service not known|nodename nor servname",
        LoginError,
        "there is no host of that name",
        "check the name, or the `Host` in ~/.ssh/config; a VPN may be needed",
    ),
    _Meaning(
        r"Connection refused",
        UnreachableError,
        "nothing listens there (connection refused)",
        "check host and port; the login node may be down for maintenance",
    ),
    _Meaning(
        r"timed out|Operation timed out|Timeout, server|No route to host|Network is unreachable|Host is down",
        UnreachableError,
        "it does not answer",
        "check the network or the VPN, and whether the host is up",
    ),
    _Meaning(
        r"Bad configuration option|bad configuration options|Bad owner or permissions|extra arguments at end of line",
        ConfigError,
        "ssh cannot read its configuration",
        "`ssh -G {target}` shows the same error",
    ),
    _Meaning(
        r"kex_exchange_identification|Connection closed by|Connection reset|banner|Connection to .* closed|Broken pipe",
        UnreachableError,
        "it closed the connection",
        "try again in a moment; if that fails, see the output of `ssh -v {target}`",
    ),
)


def login_error(target: str, said: str) -> BackendError | ConfigError:
    """Return the error for a failed login; ``said`` is what ssh wrote to stderr.

    >>> print(login_error("me@login", "ssh: connect to host login port 22: Connection refused"))
    cannot log in to `me@login`: nothing listens there (connection refused)
    """
    host = re.sub(r"^(ssh://)?([^@]*@)?", "", target)
    for meaning in _MEANINGS:
        found = re.search(meaning.pattern, said, re.IGNORECASE)
        if found:
            line = said[said.rfind("\n", 0, found.start()) + 1 :].splitlines()[0].strip()
            detail = f": {line}" if meaning.error is ConfigError else ""
            message = f"cannot log in to `{target}`: {meaning.message}{detail}"
            return meaning.error(message, hint=meaning.hint.format(target=target, host=host))
    hint = f"see the output of `ssh -v {target}`"
    if not said.strip():  # ssh logs this case at a higher log level only
        return UnreachableError(f"cannot log in to `{target}`: the connection was closed", hint=hint)
    message = f"cannot log in to `{target}`: {last_line(said)}"
    return CommandError(message, argv=["ssh", target], stderr=said, hint=hint)


def no_session(said: str) -> bool:
    """Whether the master rejected another session: it is alive, and nothing was started.

    >>> no_session("mux_client_request_session: session request failed: Session open refused by peer")
    True
    """
    return "Session open refused" in said or "open failed: administratively" in said


def no_master(said: str) -> bool:
    """Whether no master was running: nothing was started.

    >>> no_master("Control socket connect(/tmp/x): No such file or directory")
    True
    """
    return "Control socket connect(" in said or "muxclient: master hello exchange failed" in said
