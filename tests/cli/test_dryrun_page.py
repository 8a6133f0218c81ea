"""`torchx run --dryrun`: what is set and what is about the job, all of it with `--full`; no image and no network."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import Call

SLURM = ["-s", "slurm", "-cfg", "partition=gpu", "dist.ddp", "-j", "2x2", "--script", "train.py"]


def test_what_is_about_the_job(torchx: Call, project: Path) -> None:
    """Shows options that were set, and the job-specific part of the script."""
    page = torchx("run", "--dryrun", *SLURM).out
    assert "partition:  gpu  (-cfg)" in page
    assert "(default)" not in page
    assert "#SBATCH --nodes=2" in page
    assert "replica_1() {" in page
    assert "hosts_of()" not in page
    assert len(page.splitlines()) < 70
    full = torchx("run", "--dryrun", "--full", *SLURM).out
    assert full.count("(default)") > 20
    assert "hosts_of()" in full
    document = json.loads(torchx("run", "--dryrun", "--json", *SLURM).out)
    assert "hosts_of()" in document["request"]
    assert document["cfg"]["nomem"]["source"] == "default"


def test_what_was_left_out_is_said_to_people(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, a note says how much was omitted, and how to see it."""
    monkeypatch.setattr("torchx.cli.spec_page.is_tty", lambda stream: True)
    said = torchx("run", "--dryrun", *SLURM).err
    assert "\nhidden (--full): " in said
    assert " default options, " in said
    assert "lines of script common to all jobs\n" in said
    assert "hidden" not in torchx("run", "--dryrun", "--full", *SLURM).err


def test_packed_programs_are_shortened(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for people: a request with `--full`, or as JSON, has them whole."""
    monkeypatch.setattr("torchx.cli.spec_page.is_tty", lambda stream: True)
    words = ["run", "--dryrun", "-s", "slurm", "--check-nodes", "--stage", "/etc/hostname=/tmp/x"]
    page = torchx(*words, "utils.echo")
    assert re.search(r"b64decode\(.*[A-Za-z0-9+/]{8}\.\.\. \([0-9],[0-9]{3} characters\)", page.out)
    assert "packed programs" in page.err and max(map(len, page.out.splitlines())) < 700
    packed = r"[A-Za-z0-9+/]{1000,}"
    assert not re.search(packed, page.out)
    assert re.search(packed, torchx(*words, "--full", "utils.echo").out)
    assert re.search(packed, json.loads(torchx(*words, "--json", "utils.echo").out)["request"])


@pytest.mark.parametrize(
    ("scheduler", "cfg"),
    [
        ("local_docker", ""),
        ("local_docker", "image_repo=ghcr.io/me/x"),
        ("kubernetes", "image_repo=ghcr.io/me/x"),
        ("kubernetes_mcad", "image_repo=ghcr.io/me/x"),
        ("aws_batch", "image_repo=ghcr.io/me/x,queue=q"),
    ],
)
def test_no_image_is_built(
    torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, cfg: str
) -> None:
    """No image is built and no registry asked; the page names the image that would be built."""
    pytest.importorskip("docker")
    (project / "train.py").write_text("print(1)\n")

    def offline(*_: Any) -> None:
        raise AssertionError("a dry run has opened a connection")

    monkeypatch.setattr(socket.socket, "connect", offline)
    options = ["-s", scheduler, *(["-cfg", cfg] if cfg else [])]
    argv = ["run", "--dryrun", "--json", *options, "utils.python", "--image", "me:1", "--script", "train.py"]
    documents = []
    for code in ("print(1)\n", "print(2)\n", "print(1)\n"):
        (project / "train.py").write_text(code)
        outcome = torchx(*argv)
        assert (outcome.code, outcome.err) == (0, "")
        documents.append(json.loads(outcome.out))
    images = [document["app"]["roles"][0]["image"] for document in documents]
    assert images[0] == images[2] != images[1]
    assert all("to-be-built" in image for image in images)
    assert all(image in document["request"] for image, document in zip(images, documents, strict=True))


def test_a_repository_is_missed_all_the_same(torchx: Call, project: Path) -> None:
    """The dry run rejects what the submission would reject."""
    pytest.importorskip("docker")
    options = ["-s", "kubernetes", "-cfg", "code=registry"]
    outcome = torchx("run", "--dryrun", *options, "utils.python", "--image", "me:1", "-c", "1")
    assert (outcome.code, "there is no `image_repo`" in outcome.err) == (2, True)


def test_a_manifest_for_kubectl(torchx: Call, project: Path) -> None:
    """`--manifest` prints the objects alone, as YAML documents."""
    (project / "train.py").write_text("")
    found = torchx("run", "--dryrun", "--manifest", "-s", "kubernetes", "--image", "me:1", "--workspace=", "train.py")
    assert found.code == 0, found.err
    objects = [*yaml.safe_load_all(found.out)]
    assert {"apiVersion", "kind"} <= objects[-1].keys()
    assert "Assumed" in found.err
    implied = torchx("run", "--manifest", "-s", "kubernetes", "--image", "me:1", "--workspace=", "train.py")
    assert [o["kind"] for o in yaml.safe_load_all(implied.out)] == [o["kind"] for o in objects]
