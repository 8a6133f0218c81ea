"""``--notify`` and ``--notify-on``: who is to hear of a job."""

from __future__ import annotations

from torchx.cli.argparse_util import ArgOnceAction
from torchx.cli.failures import UsageError
from torchx.specs.notices import NOTIFY, NOTIFY_ON, wish_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def add_notices(add: Callable[..., Any]) -> None:
    """Declares who is to hear of a job."""
    add(
        "--notify",
        action=ArgOnceAction,
        metavar="WAY,...",
        help="have the status page sent when the job ends: `desktop`, `slack`, `webhook`, `mail`, `exec:PATH`, `none`; "
        "addresses are in [notify] of .torchxconfig",
    )
    add(
        "--notify-on",
        "--notify_on",
        action=ArgOnceAction,
        metavar="EVENT,...",
        help="of what: `start`, `end`, `fail`, `hang` (default: end)",
    )


def notices_wanted(notify: str, notify_on: str) -> dict[str, str]:
    """Metadata that say who is to hear of the job: the command line, else ``[notify]`` of the config files.

    Args:
        notify: as ``--notify`` has it.
        notify_on: as ``--notify-on`` has it.
    """
    from torchx.config import load_files

    if not (notify or notify_on or "notify" in load_files().names()):
        return {}
    from torchx.config import get_section, warn_of_unknown
    from torchx.runner.notice_channels import KEYS, SECTION

    section = get_section(SECTION)
    for key in section.keys() - set(KEYS):
        warn_of_unknown(SECTION, key, f"`[{SECTION}]` has no key", KEYS)
    metadata = {
        NOTIFY: notify or section.get("via", ""),
        NOTIFY_ON: notify_on or section.get("on", ""),
    }
    if not metadata[NOTIFY] and notify_on:
        raise UsageError(
            "`--notify-on` says of what, and `--notify` how is missing", hint="for example `--notify mail`"
        )
    return {key: text for key, text in metadata.items() if text} if wish_of(metadata)[0] else {}
