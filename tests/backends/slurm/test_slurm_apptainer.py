"""Roles in containers, by a real apptainer on the nodes: Debian sid has one, beside its Slurm.

Runs where ``TORCHX_SLURM_SUITES`` has ``sid`` in it: its file system takes three minutes the first time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.inside import InsideContract, Place
from tests.backends.slurm import releases
from tests.backends.slurm.cluster import NoClusterHereError
from tests.backends.slurm.conftest import becomes, ended, lines, running
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, AppState, BindMount, Resource, Role

SMALL = Resource(cpu=1, gpu=0, memMB=200)
_SANDBOX = """
set -e
sed -i 's/^root default capabilities = full/root default capabilities = no/' /etc/apptainer/apptainer.conf
mkdir -p "$1/box"
cd "$1/box"
mkdir bin etc dev proc sys tmp root var var/tmp usr
cp /usr/bin/busybox bin/busybox
chroot . /bin/busybox --install -s /bin
echo 'root:x:0:0:root:/root:/bin/sh' >etc/passwd
echo 'root:x:0:' >etc/group
echo 'the image' >etc/what
apptainer --quiet build "$1/image.sif" "$1/box"
"""


@pytest.fixture(scope="module", autouse=True)
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[releases.Release]:
    """The cluster that has apptainer, instead of the one that the other modules have."""
    if "sid" not in os.environ.get("TORCHX_SLURM_SUITES", "").split(","):
        pytest.skip("apptainer needs Debian sid: TORCHX_SLURM_SUITES=sid installs it, in three minutes")
    if not str(tmp_path_factory.getbasetemp()).startswith("/tmp/"):
        pytest.skip("the nodes share /tmp with this machine, and nothing else: give `--basetemp=/tmp/...`")
    release = releases.Release("sid")
    was_up = release.is_up()
    with pytest.MonkeyPatch.context() as patch:
        try:
            release.up()
        except NoClusterHereError as e:
            pytest.skip(f"no Slurm of sid here: {e}")
        patch.setenv("PATH", f"{release.bin}:{os.environ['PATH']}")
        patch.chdir(tmp_path_factory.mktemp("cwd"))
        yield release
        if not was_up:
            release.down()


@pytest.fixture(scope="module")
def images(slurm: releases.Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same image twice: `box`, a sandbox, and `image.sif`."""
    folder = tmp_path_factory.mktemp("images")
    slurm.run("sh", "-c", _SANDBOX, "sh", str(folder))
    return folder


def run(scheduler: SlurmScheduler, image: Path | str, command: str, *, cfg: dict | None = None, **role: Any) -> str:
    role.setdefault("resource", SMALL)
    app = AppDef("box", [Role("r", str(image), entrypoint="sh", args=["-c", command], **role)])
    return scheduler.submit(app, {"container": "apptainer", **(cfg or {})})


@pytest.mark.parametrize("name", ["box", "image.sif"])
def test_the_program_runs_in_the_image(scheduler: SlurmScheduler, images: Path, name: str) -> None:
    """It sees the image's files, the role's environment and its own mounts; what it writes and its exit code arrive."""
    data = images / f"data {name}"
    data.mkdir()
    (data / "in").write_text("from outside\n")
    script = (
        'cat /etc/what /data/in; echo "$GREETING|$PATH|$LD_LIBRARY_PATH|$TORCHX_RANK0_HOST"; echo out >/out/made;'
        " touch /data/no 2>/dev/null || echo read-only; exit 7"
    )
    env = {"GREETING": 'it\'s "me" $HOME', "PATH": "/own:/bin", "LD_LIBRARY_PATH": "/libs"}
    mounts = [BindMount(str(data), "/data", read_only=True), BindMount(str(images), "/out")]
    app_id = run(scheduler, images / name, script, env=env, mounts=mounts)
    done = ended(scheduler, app_id)
    assert (done.state, done.msg.partition(": ")[2][:11]) == (AppState.FAILED, "exit code 7")
    what, outside, said, refused = lines(scheduler, app_id)
    assert (what, outside, refused) == ("the image\n", "from outside\n", "read-only\n")
    host = done.roles_statuses[0].replicas[0].hostname
    greeting, path, libraries, rank0 = said.strip().split("|")
    assert (greeting, path, rank0) == ('it\'s "me" $HOME', "/own:/bin", host)
    assert libraries.startswith("/libs")  # apptainer adds a folder of its own, for --nv
    assert (images / "made").read_text() == "out\n"
    scheduler.delete(app_id)


def test_code_of_the_workspace_runs_in_another_image(scheduler: SlurmScheduler, images: Path) -> None:
    """With `container_image` the role's own image, the folder of its code, is where the program starts."""
    code = images / "my code"
    code.mkdir()
    (code / "run.sh").write_text('echo "in $PWD"; cat /etc/what')
    app_id = run(scheduler, code, "sh run.sh", cfg={"container_image": str(images / "image.sif")})
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id) == [f"in {code}\n", "the image\n"]
    scheduler.delete(app_id)


def test_left_to_the_job_it_is_apptainer(scheduler: SlurmScheduler, images: Path) -> None:
    """`container=auto` finds that there is no pyxis; GPUs are asked of Slurm, and of apptainer by --nv."""
    gpus = Resource(cpu=1, gpu=2, memMB=200)
    say = "cat /etc/what; echo $CUDA_VISIBLE_DEVICES"
    app_id = run(scheduler, images / "image.sif", say, cfg={"container": "auto"}, resource=gpus)
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id, streams=None)[:2] == ["the image\n", "0,1\n"]
    folder = scheduler._log_folder(scheduler._here, app_id)
    assert folder is not None
    assert "exec --nv --bind" in Path(folder.path, "job.sh").read_text()
    scheduler.delete(app_id)


def test_errors_of_the_program_and_of_the_image(scheduler: SlurmScheduler, images: Path) -> None:
    """A traceback file written inside is read; a program or an image that is not there is said by apptainer."""
    image = images / "image.sif"
    told = run(scheduler, image, 'echo "no data" >"$TORCHELASTIC_ERROR_FILE"; exit 3')
    missing = scheduler.submit(
        AppDef("box", [Role("r", str(image), entrypoint="no-such", resource=SMALL)]), {"container": "apptainer"}
    )
    no_image = run(scheduler, images / "no.sif", "true")
    assert ended(scheduler, told).msg.endswith("exit code 3: no data")
    assert 'exit code 255: FATAL:   "no-such": executable file not found' in ended(scheduler, missing).msg
    assert "exit code 255: FATAL:" in ended(scheduler, no_image).msg
    assert "no.sif" in ended(scheduler, no_image).msg
    for app_id in (told, missing, no_image):
        scheduler.delete(app_id)


def test_a_container_that_is_cancelled_says_its_last_words(scheduler: SlurmScheduler, images: Path) -> None:
    """SIGTERM gets through to the program inside: twice, by Slurm and by apptainer, if it is slow to end."""
    app_id = run(
        scheduler,
        images / "image.sif",
        "trap 'echo saving; exit 1' TERM; echo up; while :; do sleep 1; done 2>/dev/null",
    )
    running(scheduler, app_id)
    becomes(lambda: lines(scheduler, app_id), ["up\n"])
    log = scheduler.log_iter(app_id, "r", 0, should_tail=True)
    scheduler.cancel(app_id)
    first, *last = log
    assert (first, set(last)) == ("up\n", {"saving\n"})
    assert ended(scheduler, app_id).state is AppState.CANCELLED
    scheduler.delete(app_id)


@pytest.fixture
def place(scheduler: SlurmScheduler, images: Path, tmp_path: Path) -> Iterator[Place]:
    """A replica whose image has no programs but busybox's: those of the node are mounted."""
    env = {"GREETING": "hello, 世界", "MARK_FILE": "mark"}
    mounts = [BindMount(path, path, read_only=True) for path in ("/usr", "/lib", "/lib64")]
    app_id = run(scheduler, images / "image.sif", f"cd {tmp_path}; : >mark; exec sleep 1000", env=env, mounts=mounts)
    running(scheduler, app_id)
    becomes((tmp_path / "mark").exists, True)

    def end() -> None:
        scheduler.cancel(app_id)
        ended(scheduler, app_id)

    yield Place(scheduler, app_id, "r", end)
    end()


class TestInsideApptainer(InsideContract):
    """The contract, in containers."""

    def test_it_is_the_image(self, place: Place) -> None:
        """Whose files are seen."""
        assert place.run("cat", "/etc/what").stdout == b"the image\n"
