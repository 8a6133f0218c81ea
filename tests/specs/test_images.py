"""Digests of the image and the code of a role: how they are set and read."""

from __future__ import annotations

import pytest

from torchx.settings import ENV_IMAGE_DIGEST, ENV_WORKSPACE_HASH
from torchx.specs import AppDryRunInfo, Role
from torchx.specs.images import (
    digest_in,
    image_digests,
    report_image_digest,
    set_image_digest,
    set_workspace_hash,
    workspace_hashes,
)

HEX = "0123456789abcdef" * 4
ID = f"sha256:{HEX}"


def role(name: str = "a", image: str = "busybox:1") -> Role:
    return Role(name=name, image=image, entrypoint="x")


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        (ID, ID),
        (HEX, ID),
        (f"busybox@{ID}", f"busybox@{ID}"),
        (f"busybox:1.36@{ID}", f"busybox@{ID}"),
        (f"localhost:5000/me/train@{ID}", f"localhost:5000/me/train@{ID}"),
        (f"localhost:5000/me/train:v1@{ID}", f"localhost:5000/me/train@{ID}"),
        (f"sha512:{HEX}{HEX}", f"sha512:{HEX}{HEX}"),
        ("busybox:1.36", ""),
        ("", ""),
        ("/some/folder", ""),
        (HEX.upper(), ""),
        (f"sha256:{HEX[:-1]}", ""),
        (f"{ID}\n", ""),
        (f"a b@{ID}", ""),
    ],
)
def test_what_a_digest_is(text: str, digest: str) -> None:
    """Digests, references by digest (without tag) and ids of an engine are recognized; other texts are not."""
    assert digest_in(text) == digest


def test_a_builder_tells_the_role() -> None:
    """The digest is in the role's environment; an invalid one removes the previous one."""
    one = role()
    set_image_digest(one, f"reg/a@{ID}")
    set_workspace_hash(one, "sha256:1")
    assert one.env == {ENV_IMAGE_DIGEST: f"reg/a@{ID}", ENV_WORKSPACE_HASH: "sha256:1"}
    assert image_digests([one]) == {"a": f"reg/a@{ID}"}
    assert workspace_hashes([one, role("b")]) == {"a": "sha256:1"}
    set_image_digest(one, "<none>")
    set_workspace_hash(one, "")
    assert one.env == {}


def test_an_image_named_by_digest_needs_nobody_to_tell() -> None:
    """A reference by digest is a digest, a tag is not; the digest of a builder takes precedence."""
    pinned = role("pinned", f"reg/a:1@{ID}")
    assert image_digests([pinned, role("tag")]) == {"pinned": f"reg/a@{ID}"}
    set_image_digest(pinned, f"sha256:{'0' * 64}")
    assert image_digests([pinned]) == {"pinned": f"sha256:{'0' * 64}"}


def test_a_scheduler_tells_the_record() -> None:
    """Digests reported by `schedule` are stored in the request."""
    info = AppDryRunInfo("request", repr)
    assert info.submission.image_digests == {}
    report_image_digest(info, "a", HEX)
    report_image_digest(info, "b", "latest")
    assert info.submission.image_digests == {"a": ID}
