"""Digests of the image and the code that a role actually runs.

A tag such as ``latest`` does not identify an image a month later; a digest does. There are two ways to set it:

* :func:`set_image_digest` while the role is built, by workspace builders or by a scheduler that resolves the image in
  its dry run. Replicas see the digest as ``$TORCHX_IMAGE_DIGEST``.
* :func:`report_image_digest` in ``Scheduler.schedule``, by an engine that reports which image it pulled. The run
  registry records this digest.

>>> from torchx.specs.api import AppDryRunInfo, Role
>>> role = Role(name="trainer", image="repo/train:latest", entrypoint="python")
>>> set_image_digest(role, "repo/train@sha256:" + "ab" * 32)
>>> image_digests([role])["trainer"][:22]
'repo/train@sha256:abab'
>>> info = AppDryRunInfo("request", repr)
>>> report_image_digest(info, "trainer", "sha256:" + "cd" * 32)
>>> info.submission.image_digests["trainer"][:11]
'sha256:cdcd'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torchx.settings import ENV_IMAGE_DIGEST, ENV_WORKSPACE_HASH
from torchx.specs.api import AppDryRunInfo, Role

# https://github.com/opencontainers/image-spec/blob/main/descriptor.md#digests; Podman's ids are bare hex digits.
_DIGEST = r"(?:(?P<name>[^\s@]+)@)?(?P<digest>sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})"
_ID = r"[0-9a-f]{64}"


class NamesOnly:
    """Context manager for dry runs: image builders compute the name of the image, but do not build it.

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
    """Set ``TORCHX_IMAGE_DIGEST`` in the role's environment.

    A digest is ``name@sha256:<hex>`` for an image in a registry, so that it can be pulled again, and ``sha256:<hex>``
    (or the bare hex digits) for the id of an image that only a local engine has. Anything else removes the variable:
    no digest is better than a wrong one.
    """
    _set(role, ENV_IMAGE_DIGEST, digest_in(digest))


def set_workspace_hash(role: Role | dict[str, str], content_hash: str) -> None:
    """Set ``TORCHX_WORKSPACE_HASH`` in the environment of a role, or in a given environment; empty removes it."""
    _set(role, ENV_WORKSPACE_HASH, content_hash)


def report_image_digest(info: AppDryRunInfo[Any], role_name: str, digest: str) -> None:
    """Report the image that a role runs, from ``Scheduler.schedule``.

    It takes precedence over :func:`set_image_digest`. A text that is not a digest is ignored.
    """
    found = digest_in(digest)
    if found:
        info.submission.image_digests[role_name] = found


def image_digests(roles: Iterable[Role]) -> dict[str, str]:
    """Return image digests by role name, from the role's environment or its image reference.

    Roles without a digest are omitted.

    >>> from torchx.specs.api import Role
    >>> image_digests([Role(name="a", image="busybox:1", entrypoint="x")])
    {}
    """
    found = {role.name: digest_in(role.env.get(ENV_IMAGE_DIGEST, "")) or digest_in(role.image) for role in roles}
    return {name: digest for name, digest in found.items() if digest}


def workspace_hashes(roles: Iterable[Role]) -> dict[str, str]:
    """Return workspace hashes by role name; roles without one are omitted."""
    return {role.name: role.env[ENV_WORKSPACE_HASH] for role in roles if role.env.get(ENV_WORKSPACE_HASH)}


def digest_in(text: str) -> str:
    """Return a digest, or a reference by digest without its tag; the empty string if ``text`` is neither.

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
