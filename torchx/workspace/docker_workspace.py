"""Workspaces as container images: the workspace on top of the role's image, pushed where nodes can pull it."""

from __future__ import annotations

import os
import sys

from torchx.errors import BackendError, ConfigError, MissingDependencyError
from torchx.specs.api import runopts
from torchx.workspace.api import WorkspaceMixin, open_workspace, walk_workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import IO, Any, TextIO

    from torchx.specs.api import AppDef, CfgVal, Role

TORCHX_DOCKERFILE = "Dockerfile.torchx"
DEFAULT_DOCKERFILE = b"ARG IMAGE\nFROM $IMAGE\nCOPY . .\n"
_LABEL_VERSION = "torchx.pytorch.org/version"
_LOCAL_IMAGE = "sha256:"


class DockerWorkspaceMixin(WorkspaceMixin["dict[str, tuple[str, str]]"]):
    """Builds an image from the workspace, by its ``Dockerfile.torchx`` or by copying it onto the role's image.

    ``Dockerfile.torchx`` is given the build arguments ``IMAGE`` (the role's image) and ``WORKSPACE``.

    Args:
        docker_client: the client to use; by default it is made from the environment when it is first needed.
    """

    def __init__(self, *args: object, docker_client: Any | None = None, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.__docker_client = docker_client

    @property
    def _docker_client(self) -> Any:
        if self.__docker_client is None:
            self.__docker_client = _connect()
        return self.__docker_client

    def workspace_opts(self) -> runopts:
        opts = super().workspace_opts()
        opts.add("image_repo", type_=str, help="repository to push the built image to, such as `ghcr.io/me/jobs`")
        opts.add("quiet", type_=bool, default=False, help="do not show the progress of build and push")
        return opts

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, CfgVal]) -> None:
        import tempfile

        with tempfile.TemporaryFile() as context:
            write_build_context(context, workspace)
            context.seek(0)
            role.image = self._build(context, image=role.image, workspace=workspace, quiet=bool(cfg.get("quiet")))

    def _build(self, context: IO[bytes], *, image: str, workspace: str, quiet: bool) -> str:
        from torchx.version import __version__

        events = self._docker_client.api.build(
            fileobj=context,
            custom_context=True,
            dockerfile=TORCHX_DOCKERFILE,
            buildargs={"IMAGE": image, "WORKSPACE": workspace},
            labels={_LABEL_VERSION: __version__},
            pull=False,
            rm=True,
            decode=True,
        )
        built = ""
        for event in events:
            if event.get("error"):
                raise BackendError(
                    f"the image of workspace `{workspace}` could not be built: {event['error'].strip()}",
                    hint=f"the base image is `{image}`; see the build's output above"
                    if not quiet
                    else "run without `quiet`",
                )
            if event.get("stream") and not quiet:
                sys.stderr.write(event["stream"])
            built = event.get("aux", {}).get("ID", built)
        if not built:
            raise BackendError(f"the engine did not say which image it built from workspace `{workspace}`")
        return str(built)

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> dict[str, tuple[str, str]]:
        """Gives each locally built image its name in ``image_repo``: the content hash is its tag.

        Returns:
            Image id -> (repository, tag); the roles' images are changed to ``repository:tag``.

        Raises:
            ConfigError: there is such an image and no ``image_repo``.
        """
        images_to_push: dict[str, tuple[str, str]] = {}
        for role in app.roles:
            if not role.image.startswith(_LOCAL_IMAGE):
                continue
            repository = cfg.get("image_repo")
            if not repository:
                raise ConfigError(
                    f"the image built for role `{role.name}` has to be pushed, and there is no `image_repo`",
                    hint="give one: `-cfg image_repo=<registry>/<name>`, or run with `--workspace=`",
                )
            image, tag = role.image, role.image.removeprefix(_LOCAL_IMAGE)
            images_to_push[image] = (str(repository), tag)
            role.image = f"{repository}:{tag}"
        return images_to_push

    def push_images(self, images_to_push: dict[str, tuple[str, str]]) -> None:
        """Pushes each image under its name.

        Raises:
            BackendError: the registry refused.
        """
        for image, (repository, tag) in images_to_push.items():
            self._docker_client.images.get(image).tag(repository, tag=tag)
            print_push_events(self._docker_client.images.push(repository, tag=tag, stream=True, decode=True))


def write_build_context(out: IO[bytes], workspace: str) -> None:
    """Writes the tar of a build context: the workspace less ignored files, and a ``Dockerfile.torchx``.

    The same files give the same bytes: entries are sorted, owners are dropped.
    """
    import io
    import tarfile

    fs, root = open_workspace(workspace)
    has_dockerfile = False
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder, _, files in walk_workspace(fs, root):
            for name, info in files.items():
                path = os.path.join(folder[len(root) :].strip("/"), name)
                entry = tarfile.TarInfo(path)
                entry.mode = int(str(info.get("mode", 0o644))) & 0o7777
                entry.mtime = int(float(str(info.get("mtime") or 0)))
                has_dockerfile |= path == TORCHX_DOCKERFILE
                if info.get("islink"):
                    entry.type, entry.linkname = tarfile.SYMTYPE, str(info["destination"])
                    tar.addfile(entry)
                    continue
                with _open(fs, str(info["name"])) as f:
                    entry.size = int(str(info["size"]))
                    tar.addfile(entry, f)
        if not has_dockerfile:
            # As Docker does: an ignore rule does not keep the Dockerfile from the engine.
            own = f"{root}/{TORCHX_DOCKERFILE}"
            text = fs.cat_file(own) if fs.isfile(own) else DEFAULT_DOCKERFILE
            entry = tarfile.TarInfo(TORCHX_DOCKERFILE)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))


def print_push_events(events: Iterable[dict[str, str]], stream: TextIO = sys.stderr) -> None:
    """Shows the progress of a push, one line a change of a layer's status.

    Raises:
        BackendError: the registry refused.
    """
    shown: dict[str, str] = {}
    for event in events:
        if event.get("error"):
            raise BackendError(
                f"the push failed: {event['error'].strip()}", hint="is the registry reachable and logged in to?"
            )
        layer, status = event.get("id", ""), event.get("status", "")
        if status and shown.get(layer) != status:
            shown[layer] = status
            print(f"{layer}: {status}" if layer else status, file=stream)


def _open(fs: Any, path: str) -> IO[bytes]:
    found: IO[bytes] = fs.open(path, "rb") if hasattr(fs, "open") else open(path, "rb")  # noqa: SIM115  # the caller closes it
    return found


def _connect() -> Any:
    try:
        import docker
    except ImportError as e:
        raise MissingDependencyError(
            "images are built through the `docker` package, which is not installed", hint="pip install torchx[docker]"
        ) from e
    try:
        return docker.from_env()
    except docker.errors.DockerException as e:
        raise BackendError(
            f"no Docker engine answers: {str(e).splitlines()[0]}", hint="start one, or set `DOCKER_HOST`"
        ) from e
