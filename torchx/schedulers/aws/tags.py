"""By what a job of ours is known on AWS: its tags, its variables, its page in the console; and its times.

https://docs.aws.amazon.com/tag-editor/latest/userguide/tagging.html#tag-conventions
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torchx.settings import ENV_IMAGE
from torchx.version import __version__

TAG_VERSION = "torchx.pytorch.org/version"
TAG_APP_NAME = "torchx.pytorch.org/app-name"
TAG_USER = "torchx.pytorch.org/user"
TAG_SESSION = "torchx.pytorch.org/session"

ENV_ROLE_INDEX = "TORCHX_ROLE_IDX"
ENV_ROLE_NAME = "TORCHX_ROLE_NAME"
ENV_REPLICA_ID = "TORCHX_REPLICA_ID"
ENV_RANK0_HOST = "TORCHX_RANK0_HOST"
OURS = frozenset({ENV_IMAGE, ENV_ROLE_INDEX, ENV_ROLE_NAME, ENV_REPLICA_ID, ENV_RANK0_HOST})
"""Variables that torchx adds to those of a role."""
REPLICA = "@TORCHX_REPLICA_ID@"
"""Stands for the replica's number in a command that all replicas share."""
DEFAULT_ROLE_NAME = "node"
"""Of a job that says no name."""

_DOMAINS = {"aws-cn": "console.amazonaws.cn", "aws-us-gov": "console.amazonaws-us-gov.com"}
_MOST_TAG_CHARACTERS = 256
_NOT_IN_TAGS = r"[^\w\s+\-=.:/@]"


def tags(app_name: str, user: str, session: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The tags of a job, the user's own among them."""
    ours = {TAG_VERSION: __version__, TAG_APP_NAME: app_name, TAG_USER: user, TAG_SESSION: session}
    return {**(more or {}), **{name: tag_value(value) for name, value in ours.items() if value}}


def tag_value(text: str) -> str:
    """``text`` as the value of a tag.

    >>> tag_value("me; you")
    'me- you'
    """
    return re.sub(_NOT_IN_TAGS, "-", text)[:_MOST_TAG_CHARACTERS]


def console_url(arn: str, region: str, page: str) -> str | None:
    """Where a person looks at a job; None when no region is known.

    Args:
        arn: the job's; it says partition and region.
        region: else.
        page: ``<service>/home``, and what follows the region.

    >>> console_url("arn:aws:batch:eu-west-1:1:job/j1", "", "batch/home#jobs/detail/j1")
    'https://eu-west-1.console.aws.amazon.com/batch/home?region=eu-west-1#jobs/detail/j1'
    """
    parts = arn.split(":")
    where = parts[3] if len(parts) > 3 and parts[3] else region
    domain = _DOMAINS.get(parts[1] if len(parts) > 1 else "", "console.aws.amazon.com")
    home, _, place = page.partition("#")
    return f"https://{where}.{domain}/{home}?region={where}#{place}" if where else None
