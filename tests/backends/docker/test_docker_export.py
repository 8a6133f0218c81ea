"""Exported jobs on a real engine: compose alone gives the same outcome and output."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.golden_apps import golden_apps
from torchx.runner import Runner
from torchx.schedulers.docker_scheduler import create_scheduler
from torchx.specs import AppDef, BindMount, Resource, Role, Secret, VolumeMount
from torchx.specs.images import NamesOnly
from torchx.specs.wishes.setup import SETUP

SCRIPT = 'cat data.txt; echo "$A it\'s ${REPLICA}"; echo oops >&2; [ "$TOKEN" = "a\'b \\$" ] || exit 4; '


def compose() -> list[str]:
    """The words of the command; the test is skipped without."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("there is no docker compose here: apt-get install docker-compose")
    return ["docker", "compose"]


def test_compose_reads_all_golden_apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it makes of each is what was written: the words, the environment, the name of the image."""
    words, wrong = compose(), list[tuple[object, ...]]()
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    with Runner("test", {"local_docker": create_scheduler}) as runner, NamesOnly():
        for i, (name, app) in enumerate(golden_apps().items()):
            for role in app.roles:
                role.image = role.image if ":" in role.image else "base:1"  # a folder
                for mount in role.mounts:
                    if isinstance(mount, VolumeMount) and len(mount.src) < 2:  # the engine refuses the name
                        mount.src = "volume"
            info = runner.dryrun(app, "local_docker")
            runner.export(info, str(tmp_path / str(i)))
            written = yaml.safe_load((tmp_path / str(i) / "compose.yaml").read_text())["services"]
            argv = [*words, "-f", str(tmp_path / str(i) / "compose.yaml"), "config"]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                wrong.append((name, done.stderr))
                continue
            read = yaml.safe_load(done.stdout)["services"]
            for service, given in written.items():
                for key in ("image", "entrypoint", "command"):
                    if read[service][key] != given[key]:
                        wrong.append((name, key, given[key], read[service][key]))
    assert wrong == []


@pytest.mark.parametrize(("end", "code"), [("", 0), ("[ $REPLICA = 0 ] && sleep 1000; exit 7", 7)])
def test_compose_alone(docker_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, code: int) -> None:
    """Two replicas with code, set-up, a secret and a mount, from a folder that was moved; the first failure ends the others."""
    compose()
    project = tmp_path / "project"
    project.mkdir()
    (project / "data.txt").write_text("data\n")
    monkeypatch.chdir(project)
    env = {"TOKEN": Secret("env:TOKEN"), "REPLICA": "${replica_id}"}
    role = Role(
        "r",
        docker_image,
        entrypoint="sh",
        args=["-c", SCRIPT + end],
        env=env,
        num_replicas=2,
        resource=Resource(cpu=1, gpu=0, memMB=100),
        mounts=[BindMount(str(tmp_path), "/mnt dir", read_only=True)],
    )
    setup = {SETUP: "say() { echo 'x $y'; }; export A=$(say)"}
    with Runner("test", {"local_docker": create_scheduler}) as runner, NamesOnly():
        info = runner.dryrun(AppDef("exported", [role], metadata=setup), "local_docker", workspace=f"file://{project}")
        runner.export(info, str(tmp_path / "out"))
    name = info.request.app_id
    shutil.move(tmp_path / "out", tmp_path / "moved it")
    shutil.rmtree(project)
    os.chdir("/")
    argv = [
        "env",
        "-i",
        f"PATH={os.environ['PATH']}",
        f"HOME={tmp_path}",
        "TOKEN=a'b $",
        str(tmp_path / "moved it" / "run.sh"),
    ]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == code, done.stderr
        (logs,) = (tmp_path / "moved it" / "logs").iterdir()
        said = {log.name: log.read_text() for log in logs.iterdir()}
        for k in (0, 1):
            assert said[f"r-{k}.stdout.log"] == f"data\nx $y it's {k}\n"
            assert said[f"r-{k}.stderr.log"] == "oops\n"
        assert ("FAILED: r-1 ended with exit code 7" in done.stderr) is bool(code)
        left = subprocess.run(
            ["docker", "ps", "-aq", "--filter", f"name={name}"], capture_output=True, text=True, check=True
        )
        assert left.stdout == ""
    finally:
        images = subprocess.run(
            ["docker", "images", "-q", name], capture_output=True, text=True, check=True
        ).stdout.split()
        subprocess.run(["docker", "rmi", "-f", *images], capture_output=True, check=False)
