"""Workspaces as container images: the workspace on top of the role's image, pushed where nodes can pull it.

There are two builders. ``docker`` builds with an engine, and supports a ``Dockerfile.torchx``. ``oci`` needs no engine:
it pushes the files straight to the registry, see :mod:`torchx.workspace.oci`.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from torchx.errors import BackendError, ConfigError, MissingDependencyError, install_extra
from torchx.specs.api import AppDef, CfgVal, Role, Workspace, runopts
from torchx.specs.images import NamesOnly, set_image_digest, set_workspace_hash
from torchx.util.records import dataclass
from torchx.util.reexports import reexports
from torchx.workspace.api import WorkspaceMixin
from torchx.workspace.images.docker_context import TORCHX_DOCKERFILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchx.workspace.oci import ImageBuilder, Plan

reexports(__name__)

__all__ = ["TORCHX_DOCKERFILE", "DockerWorkspaceMixin", "print_push_events"]

AUTO, DOCKER, OCI = "auto", "docker", "oci"
BUILDERS = (AUTO, DOCKER, OCI)
_LOCAL_IMAGE = "sha256:"
_TO_BUILD = "to-be-built:"
"""Prefix of the name that a dry run shows for an image to be built, followed by the start of the code's hash."""
# The engine may send nothing for minutes while it stores a layer; the default of docker-py is one minute.
_TIMEOUT_S = 600


@dataclass(frozen=True)
class _Built:
    """Result of a build: the role's new image, its digest, and the hash of the workspace."""

    image: str
    digest: str
    workspace_hash: str


class DockerWorkspaceMixin(WorkspaceMixin[dict[str, tuple[str, str]]]):
    """Builds an image from the workspace, with its ``Dockerfile.torchx`` or by copying it onto the role's image.

    ``Dockerfile.torchx`` gets the build arguments ``IMAGE`` (the role's image), ``WORKSPACE`` and those of the option
    ``build_args``. Without one, the
    workspace is copied to the image's working directory.

    Args:
        docker_client: the client to use; by default it is created from the environment on first use.
    """

    def __init__(self, *args: object, docker_client: Any | None = None, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.__docker_client = docker_client
        self.__plans: dict[str, Plan] = {}
        self.__pushed: dict[str, str] = {}
        self.__quiet: set[str] = set()

    @property
    def _docker_client(self) -> Any:
        if self.__docker_client is None:
            self.__docker_client = _connect()
        return self.__docker_client

    @functools.cached_property
    def _image_builder(self) -> ImageBuilder:
        from torchx.workspace.oci import ImageBuilder

        return ImageBuilder()

    def workspace_opts(self) -> runopts:
        opts = super().workspace_opts()
        opts.add("image_repo", type_=str, help="repository to push the built image to, such as `ghcr.io/me/jobs`")
        opts.add("quiet", type_=bool, default=False, help="do not show the progress of build and push")
        opts.add(
            "builder",
            type_=str,
            default=AUTO,
            help="what builds the image: `docker`, an engine; `oci`, no engine: files go straight to `image_repo`;"
            " `auto`, an engine when one answers",
        )
        opts.add("build_args", type_=dict[str, str], help=f"further arguments of `{TORCHX_DOCKERFILE}`: A:1,B:2")
        opts.add("platform", type_=str, help="platform of the image, such as `linux/arm64`, where the base has several")
        return opts

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        """Build the image of one role, or reuses that of a role with the same image and workspace."""
        if not role.workspace:
            return
        hook = type(self).build_workspace_and_update_role
        if hook is not DockerWorkspaceMixin.build_workspace_and_update_role:
            super().caching_build_workspace_and_update_role(role, cfg, build_cache)
            return
        key = (role.image, *role.workspace.projects.items())
        if key not in build_cache:
            build_cache[key] = self._build(role.image, role.workspace, cfg)
        _update(role, build_cache[key])  # type: ignore[arg-type]  # what was put there above

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, CfgVal]) -> None:
        _update(role, self._build(role.image, Workspace({workspace: ""}), cfg))

    def _build(self, image: str, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> _Built:
        if NamesOnly.on:
            from torchx.workspace.oci import read_workspace

            found = read_workspace(workspace).hash
            return _Built(f"{_TO_BUILD}{found.rpartition(':')[2][:12]}", "", found)
        if self._builder(cfg) == OCI:
            return self._plan(image, workspace, cfg)
        from torchx.workspace.images import docker_build
        from torchx.workspace.oci import read_workspace

        more: Any = cfg.get("build_args") or {}
        platform, quiet = str(cfg.get("platform") or ""), bool(cfg.get("quiet"))
        built = docker_build.build(self._docker_client, workspace, image, args=more, platform=platform, quiet=quiet)
        return _Built(built, built, read_workspace(workspace).hash)

    def _builder(self, cfg: Mapping[str, CfgVal]) -> str:
        """Select the builder; raise ``ConfigError`` if none can be used."""
        wanted = str(cfg.get("builder") or AUTO)
        if wanted not in BUILDERS:
            raise ConfigError(f"`{wanted}` is not an image builder", hint="builders: " + ", ".join(BUILDERS))
        why = ""
        if wanted == AUTO:
            try:
                if self.__docker_client is None:
                    _check_socket()  # before the import of the client's library, which takes longer
                self._docker_client  # noqa: B018  # connects
                return DOCKER
            except MissingDependencyError as e:  # the engine is there
                if not cfg.get("image_repo"):
                    hint = f"{e.hint}; or `-cfg image_repo=<registry>/<name>`, which needs no engine"
                    said = "building an image needs the Python package `docker`, which is not installed"
                    raise MissingDependencyError(said, hint=hint) from e
                wanted = OCI
            except BackendError as e:
                wanted, why = OCI, f"{e}, and "
        if wanted == OCI and not cfg.get("image_repo"):
            raise ConfigError(
                f"{why}an image built without an engine needs a registry, but there is no `image_repo`",
                hint="give one: `-cfg image_repo=<registry>/<name>`" + ("; or start a Docker engine" if why else ""),
            )
        if wanted == OCI and cfg.get("build_args"):
            raise ConfigError(
                f"{why}`build_args` are arguments of a `{TORCHX_DOCKERFILE}`, which only an engine builds",
                hint="use `builder=docker`, or omit them",
            )
        return wanted

    def _plan(self, image: str, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> _Built:
        from torchx.workspace.images.progress import Display

        repository, platform = str(cfg["image_repo"]), str(cfg.get("platform") or "")
        display = Display(sys.stderr, quiet=bool(cfg.get("quiet")))
        display.doing(f"Packing {workspace} onto {image}")
        try:
            plan = self._image_builder.plan(workspace, base=image, repository=repository, platform=platform)
        finally:
            display.close()
            self._image_builder.close()
        image = str(plan.name)
        self.__plans[image] = plan
        if cfg.get("quiet"):
            self.__quiet.add(image)
        return _Built(image, plan.reference, plan.workspace_hash)

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> dict[str, tuple[str, str]]:
        """Names each image built by this object in ``image_repo``, with its content hash as the tag.

        Returns:
            Image -> (repository, tag). Changes the roles' images to ``repository:tag``.

        Raises:
            ConfigError: there is an image to push, but no ``image_repo``.
        """
        images_to_push: dict[str, tuple[str, str]] = {}
        for role in app.roles:
            if role.image in self.__plans:
                repository, _, tag = role.image.rpartition(":")
                images_to_push[role.image] = (repository, tag)
            elif role.image.startswith((_LOCAL_IMAGE, _TO_BUILD)):
                if not cfg.get("image_repo"):
                    raise ConfigError(
                        f"the image built for role `{role.name}` has to be pushed, and there is no `image_repo`",
                        hint="give one: `-cfg image_repo=<registry>/<name>`, or run with `--workspace=`",
                    )
                repository, tag = str(cfg["image_repo"]), role.image.removeprefix(_LOCAL_IMAGE).replace(":", "-")
                images_to_push[role.image] = (repository, tag)
                if cfg.get("quiet"):
                    self.__quiet.add(role.image)
                role.image = f"{repository}:{tag}"
        return images_to_push

    def push_images(self, images_to_push: dict[str, tuple[str, str]]) -> None:
        """Pushes each image under its name. An image becomes visible only when it is complete.

        Raises:
            BackendError: the registry rejected the push or failed.
        """
        from torchx.workspace.images import docker_build
        from torchx.workspace.oci import push_visibly

        for image, (repository, tag) in images_to_push.items():
            if image in self.__plans:
                plan = self.__plans[image]
                try:
                    push_visibly(self._image_builder, plan, quiet=image in self.__quiet)
                finally:
                    self._image_builder.close()
                self.__pushed[image] = plan.reference
            else:
                digest = docker_build.push(self._docker_client, image, repository, tag, quiet=image in self.__quiet)
                self.__pushed[f"{repository}:{tag}"] = digest

    def pushed_digest(self, image: str) -> str:
        """Return ``repository@sha256:...`` of an image that :meth:`push_images` has pushed; empty if unknown."""
        return self.__pushed.get(image, "")


def _update(role: Role, built: _Built) -> None:
    role.image = built.image
    set_image_digest(role, built.digest)
    set_workspace_hash(role, built.workspace_hash)


def print_push_events(events: Iterable[dict[str, str]], stream: TextIO = sys.stderr) -> None:
    """Show the progress of a push: on a terminal one line that changes, else a line for each change of a layer.

    Raises:
        BackendError: the registry rejected the push.
    """
    from torchx.workspace.images.docker_build import show_push
    from torchx.workspace.images.progress import Display

    display = Display(stream)
    try:
        show_push(events, display)
    finally:
        display.close()


def _connect() -> Any:
    try:
        import docker
    except ImportError as e:
        raise MissingDependencyError(
            "this needs the Python package `docker`, which is not installed", hint=install_extra("docker")
        ) from e
    _check_socket()
    try:
        return docker.from_env(timeout=_TIMEOUT_S)
    except (docker.errors.DockerException, ValueError) as e:  # a ValueError for an invalid port
        raise _no_engine(str(e).splitlines()[0]) from e


def _check_socket() -> None:
    """Raise ``BackendError`` if no engine listens on its Unix socket; docker-py would also leak a socket."""
    import socket

    scheme, _, path = (os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock").partition("://")
    if scheme != "unix":
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError as e:
            raise _no_engine(f"`{path}`: {e.strerror or e}") from e


def _no_engine(reason: str) -> BackendError:
    return BackendError(f"no Docker engine answers: {reason}", hint="start one, or set `DOCKER_HOST`")
