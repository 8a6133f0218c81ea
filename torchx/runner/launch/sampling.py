"""The interval at which the usage of replicas is sampled, from section ``[metrics]`` of the config files."""

from __future__ import annotations

from collections.abc import Mapping

from torchx.config import warn_of_unknown
from torchx.config.ini import Entry
from torchx.errors import ConfigError
from torchx.settings import SAMPLE_S
from torchx.util.spans import parse_span

SECTION = "metrics"
KEYS = ("every",)
_MAX_S = 3600


def sample_s(section: Mapping[str, Entry]) -> float:
    """Seconds between two samples, from section ``[metrics]`` of the config files; 0: no samples."""
    for key in section.keys() - set(KEYS):
        warn_of_unknown(SECTION, key, f"`[{SECTION}]` has no key", KEYS)
    entry = section.get("every")
    if entry is None:
        return SAMPLE_S
    text = entry.text.strip()
    seconds = float(text) if text.isascii() and text.isdecimal() and len(text) < 10 else parse_span(text)
    if seconds is None or not 0 <= seconds <= _MAX_S:
        raise ConfigError(
            f"{entry.where()}: `every` is `{entry.text}`", hint="a duration up to `1h`, such as `15s`; `0`: no samples"
        )
    return seconds
