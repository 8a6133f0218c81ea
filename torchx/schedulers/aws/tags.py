"""Tags and environment variables of torchx jobs on AWS, and their pages in the console.

https://docs.aws.amazon.com/tag-editor/latest/userguide/tagging.html#tag-conventions
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torchx.errors import SpecError
from torchx.schedulers.kit.names import plain_metadata
from torchx.settings import ENV_IMAGE, ENV_REPLICA_ID, ENV_ROLE_NAME
from torchx.specs.api import AppDef
from torchx.version import __version__

TAG_VERSION = "torchx.pytorch.org/version"
TAG_APP_NAME = "torchx.pytorch.org/app-name"
TAG_USER = "torchx.pytorch.org/user"
TAG_SESSION = "torchx.pytorch.org/session"

ENV_ROLE_INDEX = "TORCHX_ROLE_IDX"
ENV_RANK0_HOST = "TORCHX_RANK0_HOST"
OURS = frozenset({ENV_IMAGE, ENV_ROLE_INDEX, ENV_ROLE_NAME, ENV_REPLICA_ID, ENV_RANK0_HOST})
"""Variables that torchx adds to those of a role."""
REPLICA = "@TORCHX_REPLICA_ID@"
"""Placeholder for the replica's number in a command that all replicas share."""
DEFAULT_ROLE_NAME = "node"
"""Role name of a job that does not record one."""

_DOMAINS = {"aws-cn": "console.amazonaws.cn", "aws-us-gov": "console.amazonaws-us-gov.com"}
_MAX_TAGS, _MAX_KEY_CHARACTERS, _MAX_TAG_CHARACTERS = 50, 128, 256
_NOT_IN_TAGS = r"[^\w\s+\-=.:/@]"


def tags(app: AppDef, user: str, session: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the tags of a job: torchx's, its metadata, and ``more`` of the user; SpecError for an invalid one."""
    ours = {TAG_VERSION: __version__, TAG_APP_NAME: app.name, TAG_USER: user, TAG_SESSION: session}
    given = {**plain_metadata(app), **(more or {})}
    for key, value in given.items():
        if why := _why_no_tag(key, value):
            raise SpecError(
                f"`{app.name}`: `{key}={value}`, of the metadata or the option `tags`, is not a valid tag: {why}",
                hint="letters, digits, spaces and `_ . : / = + - @` are allowed",
            )
    found = {**given, **{name: tag_value(value) for name, value in ours.items() if value}}
    if len(found) > _MAX_TAGS:
        raise SpecError(f"`{app.name}` has {len(found)} tags, and AWS allows {_MAX_TAGS}", hint="use less metadata")
    return found


def _why_no_tag(key: str, value: str) -> str:
    for what, text, most in (("key", key, _MAX_KEY_CHARACTERS), ("value", value, _MAX_TAG_CHARACTERS)):
        if odd := re.search(_NOT_IN_TAGS, text):
            return f"its {what} contains `{odd[0]}`"
        if len(text) > most:
            return f"its {what} has {len(text)} characters, at most {most} are allowed"
    if key.lower().startswith("aws:"):
        return "the prefix `aws:` is AWS's own"
    return "" if key else "its key is empty"


def tag_value(text: str) -> str:
    """Replace the characters of ``text`` that the value of a tag may not have.

    >>> tag_value("me; you")
    'me- you'
    """
    return re.sub(_NOT_IN_TAGS, "-", text)[:_MAX_TAG_CHARACTERS]


def console_url(arn: str, region: str, page: str) -> str | None:
    """URL of a job in the AWS console; None if no region is known, neither from its ARN nor as ``region``.

    ``page`` is ``<service>/home``, and the fragment of the URL.

    >>> console_url("arn:aws:batch:eu-west-1:1:job/j1", "", "batch/home#jobs/detail/j1")
    'https://eu-west-1.console.aws.amazon.com/batch/home?region=eu-west-1#jobs/detail/j1'
    """
    parts = arn.split(":")
    where = parts[3] if len(parts) > 3 and parts[3] else region
    domain = _DOMAINS.get(parts[1] if len(parts) > 1 else "", "console.aws.amazon.com")
    home, _, place = page.partition("#")
    return f"https://{where}.{domain}/{home}?region={where}#{place}" if where else None
