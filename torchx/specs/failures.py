"""The ``structured_error_msg`` of a status: JSON that describes why a replica failed.

The format is the one that torchelastic writes to ``$TORCHELASTIC_ERROR_FILE``, so such a file can be used unchanged::

    {"message": {"message": "RuntimeError: boom", "errorCode": 1,
                 "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000"}},
     "signal": "SIGKILL", "class": "oom", "evidence": "...", "rank": 3, "role": "trainer", "replica": 1, "host": "n1"}

torchx adds ``signal`` and the keys after it. All keys except ``message`` are optional, and ``message`` may be a plain
string. Unknown keys are ignored.
"""

from __future__ import annotations

from typing import Any

from torchx.util.records import dataclass

_NONE = "<NONE>"
_SUMMARY_CHARS = 400
_TELLS_ITSELF = ("", "error", "unknown", "lost")  # classes whose sentence needs no line of the log
_SHOWN_CHARS = 60  # of the line that decided the class: enough to see that the message has it
_EXTENSIONS = {"role": str, "host": str, "rank": int, "replica": int, "kind": str, "evidence": str}


@dataclass(frozen=True)
class Failure:
    """Why a replica failed.

    Args:
        message: error message, usually ``ExceptionName: text``; may have several lines.
        exit_code: exit code of the process; None if it is unknown, or a signal killed the process.
        signal: name of the signal that killed the process, for example ``SIGKILL``; empty if none did.
        traceback: the Python traceback, or the last lines of stderr.
        timestamp: time of the failure as Unix time in seconds; 0 if unknown.
        rank: global rank of the failed worker, if torchrun or the worker reports it.
        kind: failure class, one of ``torchx.schedulers.kit.failures.classes.CLASSES``; ``class`` in the JSON text.
        evidence: the log line that determined the class.
        role: name of the role of the failed replica.
        replica: index of the failed replica within its role.
        host: host name of the failed replica.
    """

    message: str = ""
    exit_code: int | None = None
    signal: str = ""
    traceback: str = ""
    timestamp: float = 0
    rank: int | None = None
    kind: str = ""
    evidence: str = ""
    role: str = ""
    replica: int | None = None
    host: str = ""

    def summary(self) -> str:
        """Describe the failure in one line, without role, replica and host.

        >>> Failure("RuntimeError: boom", exit_code=1).summary()
        'exit code 1: RuntimeError: boom'
        >>> Failure(signal="SIGKILL").summary()
        'killed by SIGKILL (often: out of memory)'
        """
        parts = []
        message = " ".join(self.message.split())
        if self.signal:
            guess = self.signal == "SIGKILL" and not message and self.kind in ("", "unknown")
            parts.append(f"killed by {self.signal}{' (often: out of memory)' if guess else ''}")
        elif self.exit_code is not None:
            parts.append(f"exit code {self.exit_code}")
        if self.kind not in _TELLS_ITSELF and not (self.kind == "oom" and "memory" in message):
            line = " ".join(self.evidence.split())  # what decided the class
            told = line[:_SHOWN_CHARS] in message or (message and message in line)
            message = message if told else f"{message} ({line})" if message else line
        if message:
            parts.append(message if len(message) <= _SUMMARY_CHARS else f"{message[: _SUMMARY_CHARS - 3]}...")
        if self.kind == "oom" and "memory" not in message:
            parts.append("out of memory")
        return ": ".join(parts)

    def to_structured_msg(self) -> str:
        """Return the JSON text, which :func:`parse_failure` reads back."""
        import json

        message: dict[str, Any] = {"message": self.message}
        if self.exit_code is not None:
            message["errorCode"] = self.exit_code
        message["extraInfo"] = {"py_callstack": self.traceback, "timestamp": str(int(self.timestamp))}
        ours = {"signal": self.signal, **{_key(name): getattr(self, name) for name in _EXTENSIONS}}
        return json.dumps(
            {"message": message, **{key: value for key, value in ours.items() if value not in ("", None)}}
        )


def parse_failure(structured_error_msg: str | None) -> Failure | None:
    """Parse a ``structured_error_msg``. Text that is not JSON becomes the message. Returns None for an empty text.

    >>> parse_failure('{"message": {"message": "ValueError: x", "extraInfo": {"timestamp": "7"}}}').summary()
    'ValueError: x'
    >>> parse_failure("<NONE>") is None
    True
    """
    text = (structured_error_msg or "").strip()
    if text in ("", _NONE):
        return None
    import json

    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return Failure(text)
    if not isinstance(data, dict):
        return Failure(text)
    inner = data.get("message")
    details = inner if isinstance(inner, dict) else data
    extra = details.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    failure = Failure(
        message=_text(details.get("message")),
        exit_code=_exit_code(details.get("errorCode", data.get("errorCode"))),
        signal=_text(data.get("signal")),
        traceback=_text(extra.get("py_callstack")),
        timestamp=_seconds(extra.get("timestamp", data.get("timestamp"))),
        **{name: data[_key(name)] for name, kind in _EXTENSIONS.items() if type(data.get(_key(name))) is kind},
    )
    has_content = failure.summary() or failure.traceback or failure.kind
    return failure if has_content else Failure(text)


def _key(name: str) -> str:
    return "class" if name == "kind" else name


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _exit_code(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return seconds if 0 < seconds < float("inf") else 0.0
