"""Builds and pushes images with a Docker engine (or a compatible one), and shows its output."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from torchx.errors import BackendError
from torchx.specs.api import Workspace
from torchx.version import __version__
from torchx.workspace.images.docker_context import TORCHX_DOCKERFILE, context_chunks
from torchx.workspace.images.engine_errors import engine_errors, objects
from torchx.workspace.images.progress import Display, Transfer

LABEL_VERSION = "torchx.pytorch.org/version"
_MAX_KEPT_LINES = 2000
# The engine writes the errors of a command in red, on terminals and elsewhere.
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# A Dockerfile need not use our build arguments.
_OUR_ARGUMENTS = re.compile(
    r"\[Warning\] One or more build-args \[(?:IMAGE|WORKSPACE|IMAGE WORKSPACE|WORKSPACE IMAGE)\].*"
)


def build(
    client: Any,
    workspace: Workspace,
    image: str,
    *,
    args: Mapping[str, str] | None = None,
    platform: str = "",
    quiet: bool = False,
    stream: TextIO | None = None,
) -> str:
    """Build the workspace onto ``image`` with the engine, which pulls that image only if it needs and lacks it.

    Returns the id of the new image, ``sha256:...``. The default platform is the engine's. With ``quiet``, only the
    output of a failed build is shown. ``args`` are further build arguments.

    Raises:
        BackendError: the build or the engine failed.
        SpecError: the workspace cannot be read.
    """
    display = Display(stream or sys.stderr, quiet=quiet)
    console = _Console(display, workspace, image)
    with engine_errors(f"the image of workspace `{workspace}` could not be built"):
        try:
            events = client.api.build(
                fileobj=context_chunks(workspace),
                custom_context=True,
                dockerfile=TORCHX_DOCKERFILE,
                buildargs={**(args or {}), "IMAGE": image, "WORKSPACE": str(workspace)},
                labels={LABEL_VERSION: __version__},
                platform=platform or None,
                pull=False,
                rm=True,
                forcerm=True,
                decode=True,
            )
            built = console.follow(objects(events))
        except BaseException:
            console.show_output()
            raise
        finally:
            display.close()
    if not built:
        raise BackendError(f"the engine reported no image id after it built workspace `{workspace}`")
    if display.is_live:
        display.line(f"Built {built[:19]} from {workspace} on {image}")
    return built


def push(client: Any, image: str, repository: str, tag: str, *, quiet: bool = False) -> str:
    """Pushes an image with the engine; returns ``repository@sha256:...``, empty if the engine reports no digest."""
    display = Display(sys.stderr, quiet=quiet)
    with engine_errors(f"image `{repository}:{tag}` could not be pushed"):
        try:
            client.images.get(image).tag(repository, tag=tag)
            digest = show_push(
                objects(client.images.push(repository, tag=tag, stream=True, decode=True)),
                display,
                short_name(repository, tag),
            )
        finally:
            display.close()
    if display.is_live:
        display.line(f"Pushed {short_name(repository, tag)}")
    return f"{repository}@{digest}" if digest else ""


def short_name(repository: str, tag: str) -> str:
    """Return the name for progress output, with a hash shortened to twelve digits."""
    return f"{repository}:{tag[:12] if len(tag) == 64 else tag}"


def show_push(events: Iterable[Mapping[str, Any]], display: Display, name: str = "") -> str:
    """Show the progress of a push: on a terminal one line that changes, else a line for each change of a layer.

    Returns the digest in the registry, or the empty string; raises BackendError if the registry rejected the push.
    """
    transfer = Transfer(display, f"Pushing {name}".strip())
    shown: dict[str, str] = {}
    digest = ""
    for event in events:
        if event.get("error"):
            host = name.partition("/")[0]
            raise BackendError(
                f"the push{f' of `{name}`' if name else ''} failed: {_one_line(event['error'])}",
                hint="is the registry reachable, and are you logged in to it?"
                + (f" `docker login {host}`" if name else ""),
            )
        digest = (event.get("aux") or {}).get("Digest", digest)
        layer, status = str(event.get("id") or ""), str(event.get("status") or "")
        if layer and display.is_live:
            _show_layer(transfer, layer, status, event)
        elif status and not display.is_live and shown.get(layer) != status:
            shown[layer] = status
            display.line(f"{layer}: {status}" if layer else status)
    return str(digest)


def _show_layer(transfer: Transfer, layer: str, status: str, event: Mapping[str, Any]) -> None:
    detail = event.get("progressDetail") or {}
    done = status.startswith(("Pushed", "Layer already exists", "Mounted", "Pull complete", "Already exists"))
    size = int(detail.get("total") or 0)
    transfer.layer(layer, sent=int(detail.get("current") or 0), size=size, done=done)


class _Console:
    """The output of a build."""

    def __init__(self, display: Display, workspace: Workspace, image: str) -> None:
        self._display = display
        self._workspace, self._image = workspace, image
        self._pull = Transfer(display, f"Pulling {image}")
        self._shown: dict[str, str] = {}
        self._unseen: list[str] = []
        self._step = ""

    def follow(self, events: Iterable[Mapping[str, Any]]) -> str:
        """Show all events; return the id of the built image. Raises ``BackendError`` if the build failed."""
        built = ""
        for event in events:
            if event.get("error"):
                step = f" at `{self._step}`" if self._step else ""
                raise BackendError(
                    f"the image of workspace `{self._workspace}` could not be built{step}: {_one_line(event['error'])}",
                    hint=f"see the build's output above; its `IMAGE` is `{self._image}`",
                )
            built = (event.get("aux") or {}).get("ID", built)
            if event.get("stream"):
                self._show_build(str(event["stream"]))
            elif event.get("status"):
                self._show_pull(event)
        return str(built)

    def show_output(self) -> None:
        """Show the output that was not shown yet."""
        lines, self._unseen = self._unseen, []
        loud = Display(self._display.stream)
        self._display.close()
        for line in lines[-_MAX_KEPT_LINES:]:
            loud.line(line)

    def _show_build(self, text: str) -> None:
        for line in _ESCAPES.sub("", text).splitlines():
            if not line.strip() or _OUR_ARGUMENTS.fullmatch(line.strip()):
                continue
            if line.startswith("Step ") and " : " in line:
                self._step = line.partition(" : ")[2].strip()
            self._display.doing(f"Building: {line}")
            self._keep_or_show(line)

    def _show_pull(self, event: Mapping[str, Any]) -> None:
        layer, status = str(event.get("id") or ""), str(event["status"])
        if self._display.is_live:
            if layer and event.get("progressDetail") is not None:
                _show_layer(self._pull, layer, status, event)
        elif self._shown.get(layer) != status:
            self._shown[layer] = status
            self._keep_or_show(f"{layer}: {status}" if layer else status)

    def _keep_or_show(self, line: str) -> None:
        if self._display.is_plain:
            self._display.line(line)
        else:
            self._unseen.append(line)


def _one_line(text: object) -> str:
    line = " ".join(str(text).split())
    # Our message contains the command already.
    return re.sub(r"The command '.*' returned a non-zero code: (\d+)", r"exit code \1", line)
