"""Replicas in containers of a real Docker engine, on the look-alike's hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.backends.docker import engine
from tests.backends.lsf.lookalike.cluster import running
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs.api import AppDef, AppState, BindMount, Resource, Role

from .conftest import command, ended, eventually, lines

SMALL = Resource(1, 0, 512)


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """The test image on the engine of this machine, which is started (and stopped again) if none answers."""
    try:
        started = engine.up()
        tag = engine.image()
    except engine.Unavailable as e:
        pytest.skip(f"no Docker engine can be had: {e}")
    yield tag
    if started:
        engine.down()


def test_a_replica_in_a_container(scheduler, submit, image: str, tmp_path) -> None:
    """The options of docker are honoured; environment, mounts, exit code and the error file get through."""
    (tmp_path / "data").write_text("from the host\n")
    script = 'pwd; df -m /dev/shm | tail -1 | cut -d " " -f 1; cat /mnt/data; echo "$V"; echo oops >&2; exit 4'
    app_id = submit(
        script,
        image=image,
        env={"V": "a b'$(id)", "odd-name": "x"},
        mounts=[BindMount(str(tmp_path), "/mnt", True)],
        cfg={"shm_size": "32m", "container_workdir": "/usr"},
    )
    done = ended(scheduler, app_id)
    assert (done.state, done.msg) == (AppState.FAILED, "r/0 on 127.0.0.11: exit code 4: oops")
    assert lines(scheduler, app_id, streams="stdout") == ["/usr\n", "shm\n", "from the host\n", "a b'$(id)\n"]


def test_containers_of_one_job_meet(scheduler, submit, image: str) -> None:
    """On the host's network, a replica reaches a port of replica 0."""
    serve = "from http.server import *; HTTPServer(('', {port}), SimpleHTTPRequestHandler).handle_request()"
    fetch = """
import os, time, urllib.error, urllib.request
where = os.environ["TORCHX_RANK0_HOST"] + ":" + os.environ["TORCHX_RANK0_PORT"]
while True:
    try:
        print(urllib.request.urlopen(f"http://{where}/etc/hostname").status)
        break
    except urllib.error.URLError:  # it does not serve yet
        time.sleep(0.1)
"""
    serve = serve.format(port="int(os.environ['TORCHX_RANK0_PORT'])")
    script = f"""cd /; case ${{replica_id}} in
        0) exec python3 -c "import os; {serve}" ;;
        *) exec python3 -c '{fetch}' ;; esac"""
    app_id = submit(script, 2, image=image, cfg={"host_network": True})
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id, 1, streams="stdout") == ["200\n"]


def test_a_stubborn_container_is_ended(image: str, tmp_path, monkeypatch) -> None:
    """A container that ignores SIGTERM is gone when LSF has killed its replica."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
    with running(str(tmp_path)) as config:
        monkeypatch.setenv("LSF_ENVDIR", config.envdir)
        monkeypatch.setenv("PATH", f"{config.bindir}:{os.environ['PATH']}")
        lsf = LsfScheduler("test")
        role = Role("r", image, entrypoint="sh", args=["-c", "trap '' INT TERM; echo up; while :; do sleep 1; done"])
        role.resource = SMALL
        app_id = lsf.submit(AppDef("job", [role]), {"docker": True})
        eventually(lambda: lines(lsf, app_id) == ["up\n"])
        assert command("docker", "ps", "-q", "--filter", f"name={app_id}")
        lsf.cancel(app_id)
        assert ended(lsf, app_id).state is AppState.CANCELLED
        eventually(lambda: not command("docker", "ps", "-aq", "--filter", f"name={app_id}"))
