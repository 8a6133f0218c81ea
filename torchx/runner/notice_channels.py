"""The ways on which notices go: a program, the desktop, a webhook, mail; and what the config files say of them."""

from __future__ import annotations

import os
import time

from torchx.errors import ConfigError
from torchx.util.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from torchx.specs.api import AppStatus

SECTION = "notify"
KEYS = ("via", "on", "slack", "webhook", "mail", "mail_from", "smtp", "smtp_user", "smtp_password")
"""The keys of ``[notify]``. ``slack``, ``webhook`` and ``smtp_password`` are references to secrets."""

PAUSES_S = (1.0, 5.0, 30.0, 120.0, 300.0)
"""Between the tries of what may work later: a server that does not answer, or says so."""

_ANSWER_S = 30.0
_HOOK_S = 60.0
_MOST_TEXT = 3000  # characters; chats refuse more


class _RefusedError(Exception):
    """It was not sent; the text says why."""


class _PassesError(_RefusedError):
    """The reason may pass."""


@dataclass(frozen=True)
class Notice:
    """What is said of a job.

    Attributes:
        event: ``start``, ``end`` or ``hang``.
        state: of the job, by name.
        text: its status page.
    """

    event: str
    handle: str
    name: str
    state: str
    text: str

    @property
    def title(self) -> str:
        """One line."""
        return f"{'SILENT' if self.event == 'hang' else self.state}: {self.name} ({self.handle})"

    @classmethod
    def of(cls, event: str, handle: str, name: str, status: AppStatus) -> Notice:
        """The notice of a job in that state, without secrets that are at hand."""
        from torchx.util.redaction import redact

        text = redact(f"app:      {handle}\n{status.format()}\n")
        return cls(
            event, handle, name, str(status.state), text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."
        )


def settings_of(channel: str) -> dict[str, Any]:
    """What a channel needs, secrets looked up: it may be used long after this process, and by another.

    Raises:
        ConfigError: the config files do not say it; or a program is not there.
    """
    kind, _, place = channel.partition(":")
    if kind == "exec":
        path = os.path.abspath(os.path.expanduser(place))
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise ConfigError(f"`{channel}`: `{path}` is not a program", hint="name a file that may be executed")
        return {"path": path, "cwd": os.getcwd()}
    if kind == "desktop":
        return {}
    from torchx.config import get_section

    section = get_section(SECTION)
    if kind in ("slack", "webhook"):
        url = _secret(section, kind)
        if not url.startswith(("https://", "http://")):
            raise ConfigError(f"what `[notify] {kind}` refers to is not an address that begins with https://")
        return {"url": url}
    if not section.get("mail"):
        raise ConfigError("`[notify]` does not say to whom mail goes", hint="write `mail = me@example.org` there")
    mail = {"to": section["mail"], "from": section.get("mail_from") or section["mail"]}
    mail.update(server=section.get("smtp") or "localhost", user=section.get("smtp_user", ""))
    return {**mail, "password": _secret(section, "smtp_password") if mail["user"] else ""}


def deliver(channel: str, settings: dict[str, Any], notice: Notice, pauses_s: Iterable[float] | None = None) -> str:
    """Sends a notice; empty, or why it could not be sent. Nothing is raised: whoever wants a notice wants the job more.

    Args:
        pauses_s: between the tries of what may work later; None: :data:`PAUSES_S`.
    """
    kind = channel.partition(":")[0]
    pauses = iter(PAUSES_S if pauses_s is None else pauses_s)
    while True:
        try:
            _SENDERS[kind](settings, notice)
            return ""
        except _PassesError as e:
            pause = next(pauses, None)
            if pause is None:
                return str(e)
            time.sleep(pause)
        except _RefusedError as e:
            return str(e)
        except Exception as e:
            return f"{type(e).__name__}: {e}" if str(e) else type(e).__name__


def _secret(section: dict[str, str], key: str) -> str:
    from torchx.errors import SpecError
    from torchx.schedulers.kit.secrets import look_up
    from torchx.specs.secret import VALUES, Secret
    from torchx.util.redaction import learn

    hint = f"write `{key} = env:NAME`, `cmd:COMMAND` or `file:PATH` there"
    if not section.get(key):
        raise ConfigError(f"`[notify]` does not say where `{key}` is", hint=hint)
    try:
        reference = Secret(section[key])
    except SpecError:
        reference = None
    if reference is None or reference.kind not in VALUES:
        raise ConfigError(f"`[notify] {key}` is not a reference to a secret", hint=hint)
    value = look_up(key, reference)
    learn(value)
    return value


# -- the ways --------------------------------------------------------------------------------------


def _exec(settings: dict[str, Any], notice: Notice) -> None:
    _run([settings["path"]], notice, cwd=settings["cwd"])


def _desktop(settings: dict[str, Any], notice: Notice) -> None:  # noqa: ARG001  # one of the ways
    import shutil
    import sys

    if sys.platform == "darwin":
        script = "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run"
        _run(["osascript", "-e", script, notice.title, notice.text], notice)
        return
    if shutil.which("notify-send") is None:
        raise _RefusedError("there is no `notify-send`")
    urgency = "critical" if notice.state == "FAILED" else "normal"
    _run(["notify-send", "--app-name=torchx", f"--urgency={urgency}", "--", notice.title, notice.text], notice)


def _run(argv: list[str], notice: Notice, *, cwd: str | None = None) -> None:
    import subprocess

    words = {"EVENT": notice.event, "HANDLE": notice.handle, "NAME": notice.name, "STATE": notice.state}
    env = {**os.environ, **{f"TORCHX_NOTICE_{name}": value for name, value in words.items()}}
    done = subprocess.run(
        argv, input=notice.text, text=True, env=env, cwd=cwd, capture_output=True, timeout=_HOOK_S, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise _RefusedError(f"exit code {done.returncode}" + (f": {said[-1]}" if said else ""))


def _slack(settings: dict[str, Any], notice: Notice) -> None:
    _post(settings["url"], {"text": f"{notice.title}\n```\n{notice.text}```"})


def _webhook(settings: dict[str, Any], notice: Notice) -> None:
    _post(settings["url"], {**notice.__dict__, "title": notice.title})


def _post(url: str, document: dict[str, str]) -> None:
    import json
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    data = json.dumps(document).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "torchx"}
    try:
        with urlopen(Request(url, data, headers), timeout=_ANSWER_S):  # noqa: S310  # `settings_of` has looked at it
            pass
    except HTTPError as e:
        text = f"the server answered {e.code} {e.reason}"
        raise (_PassesError if e.code == 429 or e.code >= 500 else _RefusedError)(text) from None
    except (OSError, HTTPException) as e:
        raise _PassesError(f"the server cannot be reached: {getattr(e, 'reason', e)}") from None


def _mail(settings: dict[str, Any], notice: Notice) -> None:
    import smtplib
    from email.message import EmailMessage
    from urllib.parse import urlsplit

    server = settings["server"]
    parts = urlsplit(server if "://" in server else f"smtp://{server}")
    message = EmailMessage()
    message["Subject"] = " ".join(f"torchx: {notice.title}".split())
    message["From"], message["To"] = settings["from"], settings["to"]
    message.set_content(notice.text)
    kind = smtplib.SMTP_SSL if parts.scheme == "smtps" else smtplib.SMTP
    try:
        with kind(parts.hostname or "localhost", parts.port or 0, timeout=_ANSWER_S) as smtp:
            if settings["user"]:
                if kind is smtplib.SMTP:
                    smtp.starttls()  # no password goes over a line that is open
                smtp.login(settings["user"], settings["password"])
            smtp.send_message(message)
    except smtplib.SMTPResponseException as e:
        said = e.smtp_error.decode(errors="replace") if isinstance(e.smtp_error, bytes) else str(e.smtp_error)
        text = f"the server answered {e.smtp_code} {said}"
        raise (_PassesError if 400 <= e.smtp_code < 500 else _RefusedError)(text) from None
    except smtplib.SMTPRecipientsRefused as e:
        codes = {code for code, _ in e.recipients.values()}
        text = f"the server refuses {', '.join(e.recipients)}"
        raise (_PassesError if all(400 <= code < 500 for code in codes) else _RefusedError)(text) from None
    except OSError as e:
        raise _PassesError(f"the server cannot be reached: {e}") from None


_SENDERS: dict[str, Callable[[dict[str, Any], Notice], None]] = {
    "exec": _exec,
    "desktop": _desktop,
    "slack": _slack,
    "webhook": _webhook,
    "mail": _mail,
}
