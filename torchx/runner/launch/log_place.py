"""Where the logs of runs that have ended are kept, and whether they are, from ``[logs]`` of the config files."""

from __future__ import annotations

import os

from torchx.config import active_profile, load_files, warn_of_unknown
from torchx.errors import ConfigError
from torchx.settings import torchx_home

SECTION, KEYS = "logs", ("keep", "to")


def place() -> tuple[str, bool]:
    """Return the folder or URL of the archive, and whether logs are kept at the end of each run.

    A relative path begins in the folder of its config file.
    """
    section = load_files().section(SECTION, active_profile())
    for key in section.keys() - set(KEYS):
        warn_of_unknown(SECTION, key, f"`[{SECTION}]` has no key", KEYS)
    keep, to = section.get("keep"), section.get("to")
    word = keep.text.strip() if keep is not None else ""
    if keep is not None and word not in ("end", "no", ""):
        raise ConfigError(
            f"{keep.where()}: `keep` is `{keep.text}`", hint="`end` keeps the logs of each run at its end"
        )
    path = to.text.strip() if to is not None else ""
    if to is not None and path and "://" not in path:
        path = os.path.join(os.path.dirname(to.path), os.path.expanduser(path))
    return path or torchx_home("logs"), word == "end"
