"""Real jobs on a real Slurm, from a machine that reaches it by nothing but SSH, with every verb in a shell of its own."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.canaries import SHOW, Canaries
from tests.backends.shell import ROOT, Shell
from tests.backends.slurm import cluster
from tests.backends.slurm.test_slurm_secrets import kept
from tests.backends.ssh.conftest import Endless, Serve
from tests.backends.ssh.sshd import Sshd
from torchx.schedulers.batch.ssh.master import Master
from torchx.workspace.content import content_hash, entries, sha256_of

VENV = os.path.dirname(sys.executable)
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

Eventually = Callable[..., object]


@pytest.fixture(scope="module", autouse=True)
def _slurm() -> Iterator[None]:
    """A cluster that runs. One that ran before goes on after the tests; another is taken down."""
    was_up = cluster.is_up()
    try:
        cluster.up()
    except cluster.NoClusterHereError as e:
        pytest.skip(f"no Slurm here: {e}")
    yield
    if not was_up:
        cluster.down()


@pytest.fixture
def node(serve: Serve, there: Path) -> Sshd:
    """A login node of the cluster; an `sbatch` that tells when it is run, and waits if it is told to."""
    tools = there / "tools"
    tools.mkdir()
    sbatch = tools / "sbatch"
    # As long as `hold` says `began` or `took`, it waits there.
    sbatch.write_text(
        f"#!/bin/sh\ncd {there}\n"
        'reached() { touch "$1"; while [ "$(cat hold 2>/dev/null)" = "$1" ]; do sleep 0.1; done; }\n'
        'reached began\n/usr/bin/sbatch "$@"\ncode=$?\nreached took\nexit $code\n'
    )
    sbatch.chmod(0o755)
    return serve("login", env=f"PATH={tools}:{VENV}:{SYSTEM_PATH}")


@pytest.fixture
def laptop(node: Sshd, shell: Shell, tmp_path: Path) -> Shell:
    """A shell in a project, on a machine where Slurm's own commands lead nowhere."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "hello.py").write_text("print('version 1')\n")
    (project / ".torchxconfig").write_text("[cli:run]\nworkspace = .\n")
    return Shell(
        project, {**shell.env, "SLURM_CONF": "/nowhere", "OMP_NUM_THREADS": "1", "TORCHX_SLURM_TIME": "00:10:00"}
    )


def run(laptop: Shell, *args: str) -> str:
    return laptop.launch("-s", "slurm", "-cfg", "ssh=login", *args)


def ended(laptop: Shell, handle: str) -> str:
    """The status page once the job has ended."""
    deadline = time.monotonic() + 400
    while True:
        said = laptop.torchx("status", handle, check=False)
        if re.search(r"^state: +(SUCCEEDED|FAILED|CANCELLED)", said, re.MULTILINE):
            return said
        assert time.monotonic() < deadline, said
        time.sleep(1)


def jobs_named(name: str) -> list[str]:
    """Ids of the jobs whose name begins so, as Slurm itself says."""
    argv = ["squeue", "--noheader", "--states=all", "--format=%A %j"]
    deadline = time.monotonic() + 120
    while (done := subprocess.run(argv, capture_output=True, text=True, check=False)).returncode:
        assert time.monotonic() < deadline, done.stderr  # other tests restart the controller
        time.sleep(1)
    return [line.split()[0] for line in done.stdout.splitlines() if line.split()[1].startswith(name)]


# -- the five basic jobs ---------------------------------------------------------------------------


def test_two_replicas(laptop: Shell, node: Sshd) -> None:
    """Run, status, log and list know where the job is without being told; all over one login."""
    handle = run(laptop, "utils.echo", "--msg", "it's $HOME", "--num_replicas", "2")
    assert "SUCCEEDED" in ended(laptop, handle)
    log = laptop.torchx("log", handle)
    assert sorted(log.splitlines()) == ["echo/0 it's $HOME", "echo/1 it's $HOME"]
    assert json.loads(laptop.torchx("describe", "--json", handle))["workspace_hashes"] == {"echo": code_of(laptop.cwd)}
    assert handle in laptop.torchx("list")
    assert handle in laptop.torchx("list", "-s", "slurm", "-cfg", "ssh=login")
    assert '"entrypoint": "echo"' in laptop.torchx("describe", "--json", handle)
    assert node.logins() == 1


def test_roles_in_order(laptop: Shell) -> None:
    """The example, and how it waits and ends, read from files behind the login node; its servers share a host."""
    component = f"{ROOT}/examples/components/serve_and_run.py:serve_and_run"
    program = f"{ROOT}/examples/serve_and_run/program.py"
    handle = run(laptop, "-cfg", "replicas_per_node=4", component, "--program", program)
    assert "SUCCEEDED" in ended(laptop, handle)
    assert "learned y = 2.00 x + 1.00 from 2 servers" in laptop.torchx("log", f"{handle}/trainer")


def test_around_the_program(laptop: Shell, node: Sshd) -> None:
    """Set-up lines run on the node, and results come from the job's folder there when it has ended, over one login."""
    setup = ("--setup", "module() { export A=$2; }", "--setup", "module load a")
    handle = run(laptop, *setup, "--fetch", "runs/=results", "utils.sh", "mkdir runs; echo $A >runs/x")
    assert "SUCCEEDED" in ended(laptop, handle)
    laptop.torchx("fetch", handle)
    assert (laptop.cwd / "results" / "x").read_text() == "a\n"
    laptop.torchx("cp", f"{handle}:stdout.log", "log")
    assert "CPUs" in laptop.torchx("nodes", "-s", "slurm", "-cfg", "ssh=login")
    assert node.logins() == 1


def code_of(folder: Path) -> str:
    return content_hash(entries(str(folder)), sha256_of)


def test_what_replicas_use(laptop: Shell, there: Path, eventually: Eventually) -> None:
    """Their samples lie where their logs do."""
    (laptop.cwd / ".torchxconfig").write_text("[metrics]\nevery = 1\n")
    handle = run(laptop, "utils.sh", "--memMB", "200", "--", f"until [ -e {there}/end ]; do sleep 0.2; done")

    def first() -> dict[str, Any]:
        return json.loads(laptop.torchx("metrics", "--json", handle))["replicas"][0]

    eventually(lambda: first()["samples"], timeout_s=300, every_s=0.5)
    (there / "end").touch()
    found = first()
    assert (found["memory_limit"], 0 < found["memory_peak"] < 100 << 20) == (200 << 20, True)
    assert "SUCCEEDED" in ended(laptop, handle)


def test_a_dry_run_sends_nothing(laptop: Shell, there: Path) -> None:
    """It says where the code would be, and its hash; on the login node there is nothing of it."""
    said = laptop.torchx("run", "--dryrun", "-s", "slurm", "-cfg", "ssh=login", "utils.sh", "python", "hello.py")
    assert "~/.torchx/code/" in said
    assert code_of(laptop.cwd) in said
    assert not (there / ".torchx").exists()


def test_retries_by_cause(laptop: Shell) -> None:
    """The program that judges goes along; the laptop sees both attempts, and why there is no third."""
    handle = run(laptop, "--retry", "error:1:avoid:differs", "utils.sh", "--", "echo no data in /data >&2; exit 3")
    page = ended(laptop, handle)
    assert "not retried (error: the same failure twice in a row)" in page
    status = json.loads(laptop.torchx("status", handle, "--json", check=False))
    first, second = status["attempts"]
    assert (first["class"], first["retried"], second["retried"]) == ("error", True, False)
    assert first["hosts"] != second["hosts"]


def test_secrets(laptop: Shell, there: Path, eventually: Eventually) -> None:
    """The steps have them; else one file has, on the login node, the user's own, until the job has ended."""
    canaries = Canaries()
    env = {**laptop.env, "MY_CANARY": canaries.values[0], "CANARY_TOKEN": canaries.values[1]}
    secret = ["--secret", "BY_REFERENCE=env:MY_CANARY", "--secret", "CANARY_TOKEN"]
    go = there / "go"
    handle = run(Shell(laptop.cwd, env), *secret, "utils.sh", "--", f"{SHOW}; until [ -e {go} ]; do sleep 0.2; done")
    eventually(
        lambda: laptop.torchx("log", "--no-prefix", handle) == "".join(canaries.shown()), timeout_s=300, every_s=0.5
    )
    files = canaries.files_below(there, laptop.cwd, laptop.env["TORCHX_HOME"])
    assert [(path.name, path.stat().st_mode & 0o777) for path in files] == [("secrets.sh", 0o600)]
    go.touch()
    assert "SUCCEEDED" in ended(laptop, handle)
    assert canaries.files_below(there, laptop.cwd, laptop.env["TORCHX_HOME"]) == []
    said = [laptop.torchx(verb, handle, "--json") for verb in ("status", "describe")]
    assert canaries.found_in([*said, *kept(handle.rpartition("/")[2])]) == canaries.command_lines() == []


def test_a_rank_that_fails(laptop: Shell) -> None:
    """Its traceback is in the status: torchelastic's error file is read over there. (Many nodes: see the tests of Slurm.)"""
    pytest.importorskip("torch")
    (laptop.cwd / "fail.py").write_text(
        "import os\nfrom torch.distributed.elastic.multiprocessing.errors import record\n\n\n@record\ndef main():\n"
        "    if os.environ['RANK'] == '1':\n        raise ValueError('rank 1 has had enough')\n\n\nmain()\n"
    )
    handle = run(laptop, "dist.ddp", "-j", "1x2", "--cpu", "1", "--memMB", "800", "--script", "fail.py")
    said = ended(laptop, handle)
    assert "FAILED" in said
    assert "rank 1 has had enough" in said


def test_cancel(laptop: Shell, eventually: Eventually) -> None:
    """From another shell."""
    handle = run(laptop, "utils.sh", "sleep", "600")
    eventually(lambda: "RUNNING" in laptop.torchx("status", handle), timeout_s=300, every_s=0.5)
    laptop.torchx("cancel", handle)
    assert "CANCELLED" in ended(laptop, handle)
    laptop.torchx("cancel", handle)
    laptop.torchx("delete", handle)


def test_a_workspace_that_changed(laptop: Shell, there: Path, endless: Endless) -> None:
    """Each job runs the code as it was when it was submitted."""
    jobs = []
    for version in (1, 2):
        (laptop.cwd / "hello.py").write_text(f"print('version {version}')\n")
        jobs.append(run(laptop, "utils.sh", "sh", "-c", f"{endless.script}; python hello.py; echo mine > out.txt"))
    endless.end()
    for version, handle in enumerate(jobs, 1):
        assert "SUCCEEDED" in ended(laptop, handle)
        assert laptop.torchx("log", handle).split() == ["sh/0", "version", str(version)]
    assert not (laptop.cwd / "out.txt").exists()
    assert len(list((there / ".torchx" / "code").iterdir())) == 2


def test_a_log_that_is_followed(laptop: Shell) -> None:
    """To its last line, and no longer."""
    handle = run(laptop, "utils.sh", "sh", "-c", "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.5; done")
    assert laptop.torchx("log", "--no-prefix", "-f", handle, timeout_s=400) == "".join(
        f"line {i}\n" for i in range(1, 7)
    )


# -- the link is cut -------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["code", "folder", "began", "took"])
def test_a_cut_while_submitting(moment: str, laptop: Shell, node: Sshd, there: Path, eventually: Eventually) -> None:
    """One job, whether the link is cut while the code or the script is brought there, before Slurm is asked, or after it answered."""
    name = f"cut{moment}{uuid.uuid4().hex[:8]}"  # Slurm remembers those of the last run of these tests
    (there / "hold").write_text(moment)
    process = laptop.start("run", "-s", "slurm", "-cfg", "ssh=login", _named(laptop, name))
    place = {"code": ".torchx/workspaces", "folder": ".torchx/slurm"}.get(moment, moment)
    eventually((there / place).exists, timeout_s=300, every_s=0.005)
    assert node.cut() == 1
    (there / "hold").unlink()
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    # Between two commands nobody may have noticed.
    assert "the connection to `login` was lost" in err or moment in {"code", "folder"}
    handle = next(line for line in out.splitlines() if "://" in line).split()[-1]
    assert "SUCCEEDED" in ended(laptop, handle)
    assert laptop.torchx("log", "--no-prefix", handle) == "hi\n"
    assert len(jobs_named(name)) == 1


IMPATIENT = """
import sys
from torchx.schedulers.batch.ssh import runner
from torchx.schedulers.batch.sites import SiteScheduler
runner.ONCE_PATIENCE_S = 2
SiteScheduler.run_command.__kwdefaults__["patience_s"] = 1
from torchx.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("end", ["dead", "killed"])
def test_a_link_that_stays_dead(end: str, laptop: Shell, node: Sshd, there: Path, eventually: Eventually) -> None:
    """From the submission on, or torchx is killed there: the job runs, and is on record as soon as it can be asked for."""
    name = f"lost{end}{uuid.uuid4().hex[:8]}"
    (there / "hold").write_text("began")
    argv = [sys.executable, "-c", IMPATIENT, "run", "-s", "slurm", "-cfg", "ssh=login", _named(laptop, name)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, cwd=laptop.cwd, env=laptop.env, stdout=pipe, stderr=pipe, text=True)
    eventually((there / "began").exists, timeout_s=300, every_s=0.005)
    if end == "killed":
        process.kill()
    node.stop()
    out, err = process.communicate(timeout=400)
    assert out == ""
    assert process.returncode == (4 if end == "dead" else -9)
    assert "whether `sbatch` was run is not known" in err or end == "killed"
    told = _stderr(laptop, "list")
    assert "is not known yet: `slurm` will be asked again" in told
    node.start()
    (there / "hold").unlink()
    eventually(lambda: jobs_named(name), timeout_s=300, every_s=0.2)
    found = rf"the submission of `{name}` to `slurm`.*led to `(slurm://torchx/\d+)`, which is on record now"
    told_of: Any = eventually(lambda: re.search(found, _stderr(laptop, "list")), timeout_s=300)
    handle = told_of[1]
    assert "SUCCEEDED" in ended(laptop, handle)
    assert laptop.torchx("log", "--no-prefix", "@last") == "hi\n"
    assert len(jobs_named(name)) == 1


def _stderr(laptop: Shell, *args: str) -> str:
    process = laptop.start(*args)
    err = process.communicate(timeout=400)[1]
    assert process.returncode == 0, err
    return err


def test_cuts_while_following(laptop: Shell, node: Sshd, endless: Endless) -> None:
    """The output is complete to the byte: no line lost, none twice."""
    line = "i=$((i+1)); echo line $i of this job; sleep 0.02"
    script = f"i=0; while [ -e {endless.goes_on} ]; do {line}; done; echo that were $i"
    handle = run(laptop, "utils.sh", "sh", "-c", script)
    process = laptop.start("log", "--no-prefix", "-f", handle)
    assert process.stdout is not None and process.stderr is not None
    chance, out, cuts, wanted = random.Random(1), [], 0, 1
    err: list[str] = []
    listening = threading.Thread(target=err.extend, args=(process.stderr,))
    listening.start()
    with process:
        for text in process.stdout:
            out.append(text)
            if cuts >= 5 and any("the connection to `login` was lost" in line for line in err):
                endless.end()
            elif len(out) >= wanted:  # something has come through since the last time
                time.sleep(chance.uniform(0, 1))
                cuts += node.cut()  # perhaps between two questions, when nobody notices
                wanted = len(out) + 50
        listening.join()
    assert process.returncode == 0, err
    lines = len(out) - 1
    assert "".join(out) == "".join(f"line {i} of this job\n" for i in range(1, lines + 1)) + f"that were {lines}\n"


def test_a_login_node_that_is_down(laptop: Shell, node: Sshd, eventually: Eventually) -> None:
    """One line and a hint, soon; nothing is on record of a job that never was, and a job that is there is not forgotten."""
    handle = run(laptop, "utils.echo", "--msg", "hi")
    ended(laptop, handle)
    node.stop()
    eventually(lambda: not Master("login").is_up())
    process = laptop.start("run", "-s", "slurm", "-cfg", "ssh=login", "utils.echo", "--msg", "hi")
    out, err = process.communicate(timeout=400)
    assert process.returncode == 4
    assert out == ""
    assert [line.partition(":")[0] for line in err.splitlines()] == ["torchx", "hint"], err
    assert "cannot log in to `login`: nothing listens there" in err
    listed = laptop.torchx("list")
    assert [line.split()[0] for line in listed.splitlines() if "://" in line] == [handle]


def test_the_cluster_of_the_configuration(laptop: Shell) -> None:
    """With ``ssh`` in .torchxconfig, jobs of which nothing is on record are found, too."""
    handle = run(laptop, "utils.echo", "--msg", "hi")
    (laptop.cwd / ".torchxconfig").write_text("[cli:run]\nworkspace = .\n[slurm]\nssh = login\n")
    elsewhere = Shell(laptop.cwd, {**laptop.env, "TORCHX_HOME": f"{laptop.env['TORCHX_HOME']}-2"})
    assert "SUCCEEDED" in ended(elsewhere, handle)
    assert handle in elsewhere.torchx("list", "-s", "slurm")
    assert elsewhere.torchx("log", "--no-prefix", handle) == "hi\n"


def _named(laptop: Shell, name: str) -> str:
    """A component whose app is called so."""
    (laptop.cwd / "component.py").write_text(
        "from torchx import specs\n\n\ndef job() -> specs.AppDef:\n"
        f'    """A job."""\n    resource = specs.resource(cpu=1, memMB=100)\n'
        f"    role = specs.Role(name='r', image='', entrypoint='echo', args=['hi'], resource=resource)\n"
        f"    return specs.AppDef(name={name!r}, roles=[role])\n"
    )
    return "component.py:job"
