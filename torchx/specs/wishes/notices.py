"""Notifications of a job (``torchx run --notify`` and ``--notify-on``).

``AppDef.metadata`` stores the channels under :data:`NOTIFY` and the events under :data:`NOTIFY_ON`. Addresses are not
part of the job: they come from ``[notify]`` in the config files of the submitting user.
"""

from __future__ import annotations

from torchx.errors import SpecError

NOTIFY = "torchx/notify"
"""Metadata key of the channels, for example ``slack,exec:/home/me/hook.sh``."""

NOTIFY_ON = "torchx/notify-on"
"""Metadata key of the events, for example ``fail``; by default ``end``."""

CHANNELS = ("desktop", "slack", "webhook", "mail", "exec:PATH")
EVENTS = ("start", "end", "fail", "hang")


def parse_channels(text: str) -> tuple[str, ...]:
    """Return the channels of notifications, none for ``none``; raises SpecError for an unknown one.

    >>> parse_channels("slack, exec:./hook.sh"), parse_channels("none")
    (('slack', 'exec:./hook.sh'), ())
    """
    return _words(text, "channel", CHANNELS)


def parse_events(text: str) -> tuple[str, ...]:
    """Return the events to notify of, by default the end; raises SpecError for an unknown one."""
    return _words(text, "event", EVENTS) or ("end",)


def hang_event(seen: str) -> str:
    """Return the id under which a watchdog alarm is recorded as sent, derived from its sentence.

    >>> hang_event("no output for 10 min: it could not be looked into")
    'hang-21ae981a'
    """
    import binascii

    return f"hang-{binascii.crc32(seen.strip().encode()):08x}"


def _words(text: str, kind: str, choices: tuple[str, ...]) -> tuple[str, ...]:
    words = [word for word in dict.fromkeys(map(str.strip, text.split(","))) if word and word != "none"]
    for word in words:
        if word not in choices and not (kind == "channel" and word.startswith("exec:") and word[5:]):
            raise SpecError(f"`{word}` is not a notification {kind}", hint=f"one of: {', '.join(choices)}")
    return tuple(words)
