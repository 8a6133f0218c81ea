"""What a Docker engine refuses."""

from __future__ import annotations

from torchx.schedulers.kit import rules

_NO_VOLUME = "which is not the name of a volume: letters, digits, `_.-`, two or more"
RULES = (
    *(*rules.images(), rules.PORTS, *rules.MOUNTS, rules.DEVICES),
    rules.volumes(rules.text(r"[a-zA-Z0-9][\w.-]+"), _NO_VOLUME),
)
