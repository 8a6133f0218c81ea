"""Maps images to folders, since local jobs do not run in containers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping

from torchx.errors import SpecError
from torchx.schedulers.local.request import ReplicaParam
from torchx.specs.api import CfgVal, Role


class ImageProvider(ABC):
    """Makes an image available, and determines how a role is started in it. Subclasses may override any method."""

    @abstractmethod
    def fetch(self, image: str) -> str:
        """Make the image available and return its root folder."""

    def fetch_role(self, role: Role) -> str:
        """:meth:`fetch` for a role; may also change the role's environment."""
        return self.fetch(role.image)

    def get_cwd(self, image: str) -> str | None:  # noqa: ARG002  # for subclasses
        """Return the working directory of the replicas; None: that of the caller."""
        return None

    def get_entrypoint(self, img_root: str, role: Role) -> str:  # noqa: ARG002  # for subclasses
        """Return the program to start."""
        return role.entrypoint

    def get_replica_param(  # the signature is part of the public interface
        self,
        img_root: str,
        role: Role,
        stdout: str | None = None,
        stderr: str | None = None,
        combined: str | None = None,
    ) -> ReplicaParam:
        """Return how to start one replica.

        Args:
            role: with macros substituted; it may be modified.
            stdout, stderr, combined: paths of its logs.
        """
        return ReplicaParam(
            [self.get_entrypoint(img_root, role), *role.args],
            role.env,
            stdout,
            stderr,
            combined,
            self.get_cwd(role.image),
        )


class CWDImageProvider(ImageProvider):
    """Uses the current directory for any image."""

    def __init__(self, cfg: Mapping[str, CfgVal]) -> None:
        self.cfg = cfg
        self._cwd = os.getcwd()

    def fetch(self, image: str) -> str:  # noqa: ARG002  # the contract's signature
        return self._cwd

    def get_cwd(self, image: str) -> str | None:  # noqa: ARG002  # the contract's signature
        return self._cwd


class LocalDirectoryImageProvider(ImageProvider):
    """The image is the path of a folder, which is searched first for the role's entrypoint."""

    def __init__(self, cfg: Mapping[str, CfgVal]) -> None:
        self.cfg = cfg

    def fetch(self, image: str) -> str:
        root = os.path.abspath(os.path.expanduser(image))
        if not os.path.isdir(root):
            raise SpecError(
                f"image `{image}` is not a folder", hint="on this scheduler an image is the path of a folder"
            )
        return root

    def get_cwd(self, image: str) -> str | None:
        return os.path.abspath(os.path.expanduser(image))

    def get_entrypoint(self, img_root: str, role: Role) -> str:
        inside = os.path.join(img_root, role.entrypoint)
        return inside if os.path.isfile(inside) else role.entrypoint
