"""Which image and which code a role really runs: whoever finds it out says so here, and the record reads it here.

A tag such as ``latest`` says little about a job a month later; the digest says exactly what ran. Builders and
schedulers learn it at different times, so there are two ways to tell:

* :func:`set_image_digest` while the role is made (builders; a scheduler that resolves the image in its dryrun):
  the replicas see it as ``$TORCHX_IMAGE_DIGEST``.
* :func:`report_image_digest` from ``Scheduler.schedule`` on (an engine that says what it pulled): for the record.

>>> from torchx.specs.api import AppDryRunInfo, Role
>>> role = Role(name="trainer", image="repo/train:latest", entrypoint="python")
>>> set_image_digest(role, "repo/train@sha256:" + "ab" * 32)
>>> image_digests([role])["trainer"][:22]
'repo/train@sha256:abab'
>>> info = AppDryRunInfo("request", repr)
>>> report_image_digest(info, "trainer", "sha256:" + "cd" * 32)
>>> reported_image_digests(info)["trainer"][:11]
'sha256:cdcd'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torchx.settings import ENV_IMAGE_DIGEST, ENV_WORKSPACE_HASH
from torchx.specs.api import AppDryRunInfo, Role

# https://github.com/opencontainers/image-spec/blob/main/descriptor.md#digests; Podman's ids are bare hex digits.
# Compiled when there is one to read: most roles have none, and every command would pay for it.
_DIGEST = r"(?:(?P<name>[^\s@]+)@)?(?P<digest>sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})"
_ID = r"[0-9a-f]{64}"


class NamesOnly:
    """While it is entered, builders of images name the image that they would build, and build none: for dry runs.

    >>> with NamesOnly():
    ...     NamesOnly.on
    True
    >>> NamesOnly.on
    False
    """

    on = False

    def __enter__(self) -> None:
        NamesOnly.on = True

    def __exit__(self, *_: object) -> None:
        NamesOnly.on = False


def set_image_digest(role: Role, digest: str) -> None:
    """Puts the digest of the role's image into the role's environment, as ``TORCHX_IMAGE_DIGEST``.

    Args:
        digest: ``name@sha256:<hex>`` for an image that a registry has, so that it can be pulled again by it;
            ``sha256:<hex>`` (or the bare hex digits) for the id of an image that only a local engine has. Anything
            else takes the variable away: not to know is better than to say what is wrong.
    """
    _set(role, ENV_IMAGE_DIGEST, digest_in(digest))


def set_workspace_hash(role: Role | dict[str, str], content_hash: str) -> None:
    """Puts the hash of the role's workspace into its environment, as ``TORCHX_WORKSPACE_HASH``; empty removes it.

    Args:
        role: or an environment that was made of its own.
    """
    _set(role, ENV_WORKSPACE_HASH, content_hash)


def report_image_digest(info: AppDryRunInfo[Any], role_name: str, digest: str) -> None:
    """Records which image a role of this request runs; for ``Scheduler.schedule``.

    It goes before what :func:`set_image_digest` said. What is not a digest is ignored.
    """
    found = digest_in(digest)
    if found:
        info._image_digests[role_name] = found


def reported_image_digests(info: AppDryRunInfo[Any]) -> dict[str, str]:
    """Role name -> digest, as given to :func:`report_image_digest`."""
    return dict(info._image_digests)


def report_workspace_hash(info: AppDryRunInfo[Any], role_name: str, content_hash: str) -> None:
    """Records which code was sent for a role, where it changed since the dry run."""
    info._workspace_hashes[role_name] = content_hash


def reported_workspace_hashes(info: AppDryRunInfo[Any]) -> dict[str, str]:
    """Role name -> hash, as given to :func:`report_workspace_hash`."""
    return dict(info._workspace_hashes)


def image_digests(roles: Iterable[Role]) -> dict[str, str]:
    """Role name -> digest of its image: from its environment, or from its image where that names one.

    Roles whose digest nobody knows are left out.

    >>> from torchx.specs.api import Role
    >>> image_digests([Role(name="a", image="busybox:1", entrypoint="x")])
    {}
    """
    found = {role.name: digest_in(role.env.get(ENV_IMAGE_DIGEST, "")) or digest_in(role.image) for role in roles}
    return {name: digest for name, digest in found.items() if digest}


def workspace_hashes(roles: Iterable[Role]) -> dict[str, str]:
    """Role name -> hash of its workspace; roles without one are left out."""
    return {role.name: role.env[ENV_WORKSPACE_HASH] for role in roles if role.env.get(ENV_WORKSPACE_HASH)}


def digest_in(text: str) -> str:
    """``text`` if it is a digest or a reference by digest, tag dropped; else the empty string.

    >>> digest_in("reg:5000/a:latest@sha256:" + "0" * 64) == "reg:5000/a@sha256:" + "0" * 64
    True
    >>> digest_in("busybox:1.36")
    ''
    """
    if len(text) < 64:
        return ""
    if re.fullmatch(_ID, text):
        return f"sha256:{text}"
    match = re.fullmatch(_DIGEST, text)
    if match is None:
        return ""
    path, slash, last = (match["name"] or "").rpartition("/")
    name = f"{path}{slash}{last.partition(':')[0]}"
    return f"{name}@{match['digest']}" if name else match["digest"]


def _set(role: Role | dict[str, str], variable: str, value: str) -> None:
    env = role if isinstance(role, dict) else role.env
    if value:
        env[variable] = value
    else:
        env.pop(variable, None)
