"""Notifications of a job (``torchx run --notify`` and ``--notify-on``).

``AppDef.metadata`` stores the channels under :data:`NOTIFY` and the events under :data:`NOTIFY_ON`. Addresses are not
part of the job: they come from ``[notify]`` in the config files of the submitting user.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchx.errors import SpecError

NOTIFY = "torchx/notify"
"""Metadata key of the channels, for example ``slack,exec:/home/me/hook.sh``."""

NOTIFY_ON = "torchx/notify-on"
"""Metadata key of the events, for example ``fail``; by default ``end``."""

CHANNELS = ("desktop", "slack", "webhook", "mail", "exec:PATH")
EVENTS = ("start", "end", "fail", "hang")


def wish_of(metadata: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the channels and events of a job, none if it sends no notifications; raises SpecError for unknown ones.

    >>> wish_of({NOTIFY: "slack, exec:./hook.sh", NOTIFY_ON: "start,fail"})
    (['slack', 'exec:./hook.sh'], ['start', 'fail'])
    >>> wish_of({NOTIFY: "mail"}), wish_of({})
    ((['mail'], ['end']), ([], []))
    """
    channels = _words(metadata.get(NOTIFY, ""))
    for channel in channels:
        if not (channel in CHANNELS[:-1] or (channel.startswith("exec:") and channel[5:])):
            raise SpecError(f"`{channel}` is not a notification channel", hint=f"one of: {', '.join(CHANNELS)}")
    events = _words(metadata.get(NOTIFY_ON, "")) or ["end"]
    for event in events:
        if event not in EVENTS:
            raise SpecError(f"`{event}` is not a notification event", hint=f"one of: {', '.join(EVENTS)}")
    return channels, events if channels else []


def hang_event(seen: str) -> str:
    """Return the id under which a watchdog alarm is recorded as sent, derived from its sentence.

    >>> hang_event("no output for 10 min: it could not be looked into")
    'hang-21ae981a'
    """
    import binascii

    return f"hang-{binascii.crc32(seen.strip().encode()):08x}"


def _words(text: str) -> list[str]:
    return [word for word in dict.fromkeys(map(str.strip, text.split(","))) if word and word != "none"]
