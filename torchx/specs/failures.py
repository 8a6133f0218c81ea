"""Why a replica failed: the JSON text in the ``structured_error_msg`` of a status, written and read.

The text is what torchelastic writes to ``$TORCHELASTIC_ERROR_FILE``, so that such a file can be passed on as it is::

    {"message": {"message": "RuntimeError: boom", "errorCode": 1,
                 "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000"}},
     "signal": "SIGKILL", "class": "oom", "evidence": "...", "rank": 3, "role": "trainer", "replica": 1, "host": "n1"}

``signal`` and what follows it are ours. Every key but ``message`` may be missing, and ``message`` may be a plain
string. Unknown keys are ignored.
"""

from __future__ import annotations

from typing import Any

from torchx.util.records import dataclass

_NONE = "<NONE>"
_SUMMARY_CHARS = 400
_WHO = {"role": str, "host": str, "rank": int, "replica": int, "kind": str, "evidence": str}
_OFTEN = {"SIGKILL": " (often: out of memory)"}


@dataclass(frozen=True)
class Failure:
    """Why a replica failed.

    Args:
        message: what happened, usually ``ExceptionName: text``; it may have several lines.
        exit_code: of the process; None when it did not exit by itself, or it is not known.
        signal: name of the signal that ended it, for example ``SIGKILL``; empty when none did.
        traceback: the Python traceback, or the last lines of stderr.
        timestamp: when, in seconds since the epoch; 0 when not known.
        rank: global rank of the worker that failed, where torchrun or the worker itself says it.
        kind: class of the cause, a word of ``torchx.schedulers.failures.classes.CLASSES``; ``class`` in the JSON text.
        evidence: the line that decided the class.
        role: name of the role of the replica that failed.
        replica: number of that replica in its role.
        host: where it ran.
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
        """What happened, in one line and without who it was.

        >>> Failure("RuntimeError: boom", exit_code=1).summary()
        'exit code 1: RuntimeError: boom'
        >>> Failure(signal="SIGKILL").summary()
        'killed by SIGKILL (often: out of memory)'
        """
        parts = []
        message = " ".join(self.message.split())
        if self.signal:
            guess = _OFTEN.get(self.signal, "") if not message and self.kind in ("", "unknown") else ""
            parts.append(f"killed by {self.signal}{guess}")
        elif self.exit_code is not None:
            parts.append(f"exit code {self.exit_code}")
        if message:
            parts.append(message if len(message) <= _SUMMARY_CHARS else f"{message[: _SUMMARY_CHARS - 3]}...")
        return ": ".join(parts)

    def to_structured_msg(self) -> str:
        """The JSON text; :func:`parse_failure` reads it back."""
        import json

        message: dict[str, Any] = {"message": self.message}
        if self.exit_code is not None:
            message["errorCode"] = self.exit_code
        message["extraInfo"] = {"py_callstack": self.traceback, "timestamp": str(int(self.timestamp))}
        ours = {"signal": self.signal, **{_key(name): getattr(self, name) for name in _WHO}}
        return json.dumps(
            {"message": message, **{key: value for key, value in ours.items() if value not in ("", None)}}
        )


def parse_failure(structured_error_msg: str | None) -> Failure | None:
    """Reads a ``structured_error_msg``. Text that is not JSON is the message itself; None when there is nothing to say.

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
        **{name: data[_key(name)] for name, kind in _WHO.items() if type(data.get(_key(name))) is kind},
    )
    known = failure.summary() or failure.traceback or failure.kind
    return failure if known else Failure(text)


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
