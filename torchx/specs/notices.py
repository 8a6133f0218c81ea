"""Who is to hear of a job, and of what: the words of ``torchx run --notify`` and ``--notify-on``.

A job carries them in ``AppDef.metadata``, under :data:`NOTIFY` and :data:`NOTIFY_ON`. Addresses are in no job: they are
in ``[notify]`` of the config files of whoever submits.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchx.errors import SpecError

NOTIFY = "torchx/notify"
"""The key of ``AppDef.metadata`` that holds the ways, such as ``slack,exec:/home/me/hook.sh``."""

NOTIFY_ON = "torchx/notify-on"
"""The key that holds the events, such as ``fail``; ``end`` when it is missing."""

CHANNELS = ("desktop", "slack", "webhook", "mail", "exec:PATH")
EVENTS = ("start", "end", "fail", "hang")


def wish_of(metadata: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The ways and the events that a job carries; none when nobody wants to hear of it.

    Raises:
        SpecError: a word is not one of :data:`CHANNELS` or :data:`EVENTS`.

    >>> wish_of({NOTIFY: "slack, exec:./hook.sh", NOTIFY_ON: "start,fail"})
    (['slack', 'exec:./hook.sh'], ['start', 'fail'])
    >>> wish_of({NOTIFY: "mail"}), wish_of({})
    ((['mail'], ['end']), ([], []))
    """
    channels = _words(metadata.get(NOTIFY, ""))
    for channel in channels:
        if not (channel in CHANNELS[:-1] or (channel.startswith("exec:") and channel[5:])):
            raise SpecError(f"`{channel}` is not a way to be notified", hint=f"one of: {', '.join(CHANNELS)}")
    events = _words(metadata.get(NOTIFY_ON, "")) or ["end"]
    for event in events:
        if event not in EVENTS:
            raise SpecError(f"`{event}` is not an event to be notified of", hint=f"one of: {', '.join(EVENTS)}")
    return channels, events if channels else []


def hang_event(seen: str) -> str:
    """What a notice of an alarm is noted as, by what was seen.

    >>> hang_event("no output for 10 min: it could not be looked into")
    'hang-21ae981a'
    """
    import binascii

    return f"hang-{binascii.crc32(seen.strip().encode()):08x}"


def _words(text: str) -> list[str]:
    return [word for word in dict.fromkeys(map(str.strip, text.split(","))) if word and word != "none"]
