"""Sends notices about jobs: by a program, to the desktop, to a webhook or by mail."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from torchx.util.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from urllib.error import HTTPError

    from torchx.specs.api import AppStatus

FAR = ("slack", "webhook", "mail")
"""The channels that work from any machine, not only from that of the submitting user."""

PAUSES_S = (1.0, 5.0, 30.0, 120.0, 300.0)
"""Pauses between attempts after transient errors, seconds."""

_ANSWER_S = 30.0
_HOOK_S = 60.0
_MAX_TEXT = 3000  # characters; chats reject longer texts


class _RefusedError(Exception):
    """A notice was not sent; the text is the reason."""


class _PassesError(_RefusedError):
    """The error may be transient."""


@dataclass(frozen=True)
class Notice:
    """A notice about a job.

    Attributes:
        event: ``start``, ``end`` or ``hang``.
        state: name of the job's state.
        text: the job's status page.
    """

    event: str
    handle: str
    name: str
    state: str
    text: str

    @property
    def title(self) -> str:
        """The notice in one line."""
        alarm = "IDLE" if "\nidle: " in self.text else "SILENT"
        return f"{alarm if self.event == 'hang' else self.state}: {self.name} ({self.handle})"

    @classmethod
    def of(cls, event: str, handle: str, name: str, status: AppStatus) -> Notice:
        """Create the notice for a job, with known secrets redacted."""
        from torchx.util.redaction import redact

        text = redact(f"app:      {handle}\n{status.format()}\n")
        text = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
        return cls(event, handle, name, str(status.state), text)


def deliver(channel: str, settings: dict[str, Any], notice: Notice, pauses_s: Iterable[float] | None = None) -> str:
    """Send a notice. Returns an empty string, or why it could not be sent. Never raises, to not disturb the job.

    Args:
        pauses_s: pauses between attempts after transient errors; None: :data:`PAUSES_S`.
    """
    pauses = iter(PAUSES_S if pauses_s is None else pauses_s)
    while True:
        try:
            _SENDERS[channel.partition(":")[0]](settings, notice)
            return ""
        except _PassesError as e:
            if (pause := next(pauses, None)) is None:
                return str(e)
            time.sleep(pause)
        except _RefusedError as e:
            return str(e)
        except Exception as e:
            return f"{type(e).__name__}: {e}" if str(e) else type(e).__name__


def sender_of(scheduler: str, app_id: str) -> bytes:
    """Return the program that sends the notices of a job, for :func:`torchx.supervisor.at_end.spawn`; empty if there is
    none.

    For the process that takes over a job whose owner was killed.
    """
    import glob
    import json

    from torchx.settings import torchx_home

    for path in glob.glob(f"{glob.escape(torchx_home('notices'))}/{scheduler}_*.json"):
        try:
            with open(path, encoding="utf-8") as file:
                plan = json.load(file)
        except (OSError, ValueError):
            continue  # removed meanwhile
        if plan["handle"].endswith(f"/{app_id}"):
            return os.fsencode(plan.get("program", ""))
    return b""


# -- the channels ----------------------------------------------------------------------------------


def _exec(settings: dict[str, Any], notice: Notice) -> None:
    _run([settings["path"]], notice, cwd=settings["cwd"])


def _desktop(settings: dict[str, Any], notice: Notice) -> None:  # noqa: ARG001  # the signature of all channels
    import shutil
    import sys

    if sys.platform == "darwin":
        script = "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run"
        _run(["osascript", "-e", script, notice.title, notice.text], notice)
        return
    if shutil.which("notify-send") is None:
        raise _RefusedError("there is no `notify-send`")
    urgency = "critical" if notice.state == "FAILED" else "normal"
    text = _escaped(notice.text)  # https://specifications.freedesktop.org/notification-spec: only the title is plain
    _run(["notify-send", "--app-name=torchx", f"--urgency={urgency}", "--", notice.title, text], notice)


def _run(argv: list[str], notice: Notice, *, cwd: str | None = None) -> None:
    import subprocess
    import tempfile

    words = {"EVENT": notice.event, "HANDLE": notice.handle, "NAME": notice.name, "STATE": notice.state}
    env = {**os.environ, **{f"TORCHX_NOTICE_{name}": value for name, value in words.items()}}
    with tempfile.TemporaryFile() as stderr:  # not a pipe, which a program in the background may keep open
        code = subprocess.run(
            argv,
            input=notice.text.encode(errors="replace"),
            env=env,
            cwd=cwd,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            timeout=_HOOK_S,
            check=False,
        ).returncode
        stderr.seek(0)
        said = stderr.read().decode(errors="replace").strip().splitlines()
    if code:
        raise _RefusedError(f"exit code {code}" + (f": {said[-1]}" if said else ""))


def _slack(settings: dict[str, Any], notice: Notice) -> None:
    # https://docs.slack.dev/messaging/formatting-message-text: there is no escape for what ends a block of code
    text = _escaped(notice.text).replace("```", "'''")
    _post(settings["url"], {"text": f"{_escaped(notice.title)}\n```\n{text}```"})


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _webhook(settings: dict[str, Any], notice: Notice) -> None:
    _post(settings["url"], {**notice.__dict__, "title": notice.title})


def _post(url: str, document: dict[str, str]) -> None:
    import json
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Stays(HTTPRedirectHandler):  # a second request would have no body
        http_error_301 = http_error_302 = http_error_303 = http_error_307 = http_error_308 = lambda *_: None

    data = json.dumps(document).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "torchx"}
    try:
        with build_opener(Stays).open(Request(url, data, headers), timeout=_ANSWER_S):  # noqa: S310  # `settings_of` checks it
            pass
    except HTTPError as e:
        text = f"the server answered {e.code}{_place_of(url, e) or f' {e.reason}'}"
        raise (_PassesError if e.code == 429 or e.code >= 500 else _RefusedError)(text) from None
    except (OSError, HTTPException) as e:
        raise _PassesError(f"the server cannot be reached: {getattr(e, 'reason', e)}") from None


def _place_of(url: str, answer: HTTPError) -> str:
    """Where a redirect leads, without anything that may be secret; empty for other answers."""
    from urllib.parse import urljoin, urlsplit

    if answer.code // 100 != 3:
        return ""
    try:
        host = urlsplit(urljoin(url, answer.headers["Location"])).hostname
    except ValueError:
        host = None
    return f", to {host or 'another address'}: correct the address"


def _mail(settings: dict[str, Any], notice: Notice) -> None:
    import smtplib
    import ssl
    from email.message import EmailMessage
    from urllib.parse import urlsplit

    server = settings["server"]
    parts = urlsplit(server if "://" in server else f"smtp://{server}")
    message = EmailMessage()
    message["Subject"] = " ".join(f"torchx: {notice.title}".split())
    message["From"], message["To"] = settings["from"], settings["to"]
    message.set_content(notice.text)
    where = (parts.hostname or "localhost", parts.port or 0)
    trust = ssl.create_default_context()  # without it, smtplib accepts any certificate
    try:
        with (
            smtplib.SMTP_SSL(*where, timeout=_ANSWER_S, context=trust)
            if parts.scheme == "smtps"
            else smtplib.SMTP(*where, timeout=_ANSWER_S)
        ) as smtp:
            if settings["user"]:
                if parts.scheme != "smtps":
                    smtp.starttls(context=trust)  # never send the password unencrypted
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
    except smtplib.SMTPNotSupportedError as e:
        raise _RefusedError(f"the server offers no login over TLS: {e}") from None
    except ssl.SSLCertVerificationError as e:
        raise _RefusedError(f"the server's certificate is not trusted here: {e.verify_message}") from None
    except OSError as e:
        raise _PassesError(f"the server cannot be reached: {e}") from None


_SENDERS: dict[str, Callable[[dict[str, Any], Notice], None]] = {
    "exec": _exec,
    "desktop": _desktop,
    "slack": _slack,
    "webhook": _webhook,
    "mail": _mail,
}
