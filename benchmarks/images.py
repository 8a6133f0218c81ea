"""One changed file in a large workspace: seconds until the registry has the image, by each builder.

As a program it prints the figure of one builder, and it is run by the row so that what it imports counts::

    python -m benchmarks.images oci WORKSPACE BASE REPOSITORY

Needs root: it starts an engine and a registry of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import stage
from benchmarks.contestants import OURS, Contestant
from benchmarks.timing import Cannot, Sample, program

FILES = 5_000
ROOT = Path(__file__).resolve().parents[1]


def changed_file(contestant: Contestant | None, where: stage.Stage) -> Sample:
    """Seconds from the change to the image in the registry; the base is ``docker build && docker push``."""
    if contestant is not None and contestant.name != OURS:
        return _refuse("needs an engine, and takes as long as `docker build && docker push`")
    try:
        scene = Scene.of(where)
    except Exception as problem:
        return _refuse(f"no engine or no registry: {problem}")
    if contestant is None:
        return scene.by_engine
    argv = [contestant.python, "-m", "benchmarks.images", "oci", str(scene.workspace), scene.base, scene.repository]
    ours = program(argv, {**where.env(contestant), "PYTHONPATH": str(ROOT)}, str(ROOT))

    def sample() -> float:
        scene.change()
        return ours()

    return sample


class Scene:
    """A workspace of ``workspace_mb`` megabytes, a registry with a base image, an engine."""

    _scenes: dict[str, Scene] = {}  # noqa: RUF012  # one for each stage, made when it is first asked for

    def __init__(self, where: stage.Stage) -> None:
        from tests.backends.docker import engine
        from tests.backends.docker.registry import Registry

        self._started_engine = engine.up()
        self._registry = Registry(Path(where.folder) / "registry")
        self._registry.start()
        atexit.register(self.close)
        self.base = f"{self._registry.host}/base/py:1"
        self.repository = f"{self._registry.host}/me/jobs"
        for command in (["tag", engine.image(), self.base], ["push", "-q", self.base]):
            engine.run("docker", *command)
        self.workspace = Path(where.folder) / "workspace"
        self._fill(where.sizes.get("workspace_mb", 500) * 1_000_000 // FILES)
        self._number = 0

    @staticmethod
    def of(where: stage.Stage) -> Scene:
        if where.folder not in Scene._scenes:
            Scene._scenes[where.folder] = Scene(where)
        return Scene._scenes[where.folder]

    def close(self) -> None:
        """Stops what was started, and removes what was built."""
        from tests.backends.docker import engine
        from tests.backends.docker.image_stage import forget_locally

        forget_locally(self._registry.host)
        self._registry.stop()
        if self._started_engine:
            engine.down()

    def change(self) -> None:
        self._number += 1
        (self.workspace / "d0" / "train.py").write_text(f"print({self._number}, {time.time()})\n")

    def by_engine(self) -> float:
        """Seconds of the two commands."""
        self.change()
        image = f"{self.repository}:engine{self._number}"
        started = time.perf_counter()
        for argv in (["build", "-q", "-t", image, "."], ["push", "-q", image]):
            done = subprocess.run(["docker", *argv], cwd=self.workspace, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Cannot(f"docker {argv[0]}: {done.stderr.strip()[-100:]}")
        return time.perf_counter() - started

    def _fill(self, size: int) -> None:
        """Half of it compresses well, as source code and logs do, and half not at all, as weights and images do."""
        text = b"".join(b"def function_%d(value):\n    return value * %d\n" % (n, n) for n in range(size // 44 + 1))
        for number in range(FILES):
            folder = self.workspace / f"d{number // 200}"
            folder.mkdir(parents=True, exist_ok=True)
            data = text[number % 1000 :][:size] if number % 2 else os.urandom(size)
            (folder / f"file{number}").write_bytes(data)
        (self.workspace / "Dockerfile").write_text(f"FROM {self.base}\nCOPY . .\n")
        (self.workspace / ".torchxignore").write_text("Dockerfile\n")


def _refuse(problem: str) -> Callable[[], float]:
    def sample() -> float:
        raise Cannot(problem)

    return sample


def main() -> None:
    builder, workspace, base, repository = sys.argv[1:]
    started = time.perf_counter()
    from torchx.specs.api import AppDef, CfgVal, Role, Workspace
    from torchx.workspace.docker_workspace import DockerWorkspaceMixin

    mixin = DockerWorkspaceMixin()
    app = AppDef("a", [Role("r", image=base, entrypoint="x", workspace=Workspace({workspace: ""}))])
    cfg: dict[str, CfgVal] = {"image_repo": repository, "builder": builder, "quiet": True}
    mixin.build_workspaces(app.roles, cfg)
    mixin.push_images(mixin.dryrun_push_images(app, cfg))
    print(time.perf_counter() - started)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
