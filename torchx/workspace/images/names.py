"""Names of images, such as ``ubuntu`` and ``host:5000/me/jobs:v1``, parsed as Docker does."""

from __future__ import annotations

import re

from torchx.errors import SpecError
from torchx.util.records import dataclass

DOCKER_HUB = "docker.io"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
# The grammar: https://pkg.go.dev/github.com/distribution/reference#pkg-overview
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class ImageName:
    """The name of an image: registry host (with port), repository, and tag or digest.

    >>> ImageName.parse("ubuntu")
    ImageName(registry='docker.io', repository='library/ubuntu', tag='latest', digest='')
    >>> str(ImageName.parse("localhost:5000/me/jobs:v1"))
    'localhost:5000/me/jobs:v1'
    """

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @staticmethod
    def parse(text: str) -> ImageName:
        """Parse the name of an image, or raise SpecError."""
        rest, at, digest = text.partition("@")
        if at and not DIGEST.fullmatch(digest):
            raise SpecError(f"`{text}` is not the name of an image: `{digest}` is not a digest")
        path, colon, tag = rest.rpartition(":")
        if not colon or "/" in tag:
            path, tag = rest, ""
        if (tag or path != rest) and not _TAG.fullmatch(tag):
            raise SpecError(f"`{text}` is not the name of an image: `{tag}` is not a tag")
        registry, repository = _split(path)
        if not _REPOSITORY.fullmatch(repository) or not _HOST.fullmatch(registry):
            raise SpecError(
                f"`{text}` is not the name of an image",
                hint="write `[HOST[:PORT]/]NAME[:TAG]`, the name in lower case, without `https://`",
            )
        return ImageName(registry, repository, tag or ("" if digest else "latest"), digest)

    @staticmethod
    def parse_repository(text: str) -> ImageName:
        """Parse the name of a repository, which has no tag, or raise SpecError."""
        registry, repository = _split(text)
        if not _REPOSITORY.fullmatch(repository) or not _HOST.fullmatch(registry):
            raise SpecError(
                f"`{text}` is not the name of an image repository",
                hint="write `[HOST[:PORT]/]NAME`, the name in lower case, without `https://` and without a tag",
            )
        return ImageName(registry, repository)

    @property
    def reference(self) -> str:
        """The reference for the registry's API: the digest if there is one, else the tag."""
        return self.digest or self.tag

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")


def _split(path: str) -> tuple[str, str]:
    first, slash, rest = path.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        if first in ("index.docker.io", "registry-1.docker.io"):
            first = DOCKER_HUB
        return first, rest if first != DOCKER_HUB or "/" in rest else f"library/{rest}"
    return DOCKER_HUB, path if slash else f"library/{path}"
