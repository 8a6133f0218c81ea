"""Exported jobs: the contents of the folder, which bash alone runs with the same outcome."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time

import pytest

from torchx.errors import ConfigError, NotSupportedError
from torchx.runner import Runner, get_runner
from torchx.schedulers.api import Stream
from torchx.specs import AppDef, AppState, RetryPolicy, Role, Secret
from torchx.specs.wishes.timeouts import TIMEOUT

HOSTILE = ["it's", "$HOME `id` $(id)", "a\nb", "", "*", '--x="y z"', "ü→", "\\n", "#", "!!"]


@pytest.fixture
def runner(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    with get_runner("test") as found:
        yield found


def sh(line, n=1, **role):
    return AppDef("job", [Role("r", "", entrypoint="sh", args=["-c", line], num_replicas=n, **role)])


def exported(runner, app, tmp_path, **cfg):
    """The folder of an app, moved after it was written."""
    info = runner.dryrun(app, "local_cwd", cfg)
    runner.export(info, str(tmp_path / "out"), str(tmp_path / "project"))
    shutil.move(tmp_path / "out", tmp_path / "moved")
    return tmp_path / "moved"


def run(folder, **env):
    """Runs `run.sh` with an empty environment and home; returns its exit code, and the output of each replica."""
    argv = ["env", "-i", f"PATH={os.environ['PATH']}", *(f"{k}={v}" for k, v in env.items()), str(folder / "run.sh")]
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=120, check=False)
    found = {}
    for attempt in (folder / "logs").glob("*"):
        for log in attempt.rglob("*.log"):
            found[f"{log.parent.parent.name}/{log.parent.name}.{log.stem}"] = log.read_text()
    return done.returncode, found, done.stderr


def test_the_same_outcome_and_output(runner, tmp_path):
    """Replicas get the same arguments, and write the same output, as under torchx; their code comes from the folder."""
    (tmp_path / "project" / "data").write_text("data")
    line = 'cat data; printf "[%s]" "$@" "$A"; echo oops >&2'
    args = ["-c", line, "sh", *HOSTILE]
    app = AppDef(
        "job", [Role("r", "", entrypoint="sh", args=args, env={"A": HOSTILE[1], "K": "${replica_id}"}, num_replicas=2)]
    )
    handle = runner.run(app, "local_cwd")
    assert runner.wait(handle, 0.1).state is AppState.SUCCEEDED
    ours = {k: "".join(runner.log_lines(handle, "r", k, streams=Stream.STDOUT)) for k in (0, 1)}
    folder = exported(runner, app, tmp_path)
    shutil.rmtree(tmp_path / "project" / "data", ignore_errors=True)
    (tmp_path / "project" / "data").unlink()
    code, said, _ = run(folder)
    assert code == 0
    expected = "data" + "".join(f"[{word}]" for word in [*HOSTILE, HOSTILE[1]])
    assert said == {f"r/{k}.{s}": t for k in (0, 1) for s, t in (("stdout", expected), ("stderr", "oops\n"))}
    assert all(expected in text for text in ours.values())


def test_a_failure_ends_the_others(runner, tmp_path):
    """The first failure is named, its exit code is that of the script, and no process is left."""
    marker = f"exported-{os.getpid()}"
    line = f"if [ $K = 1 ]; then echo why >&2; exit 7; fi; exec -a {marker} sleep 1000"
    app = AppDef(
        "job", [Role("r", "", entrypoint="bash", args=["-c", line], env={"K": "${replica_id}"}, num_replicas=3)]
    )
    code, _, err = run(exported(runner, app, tmp_path))
    assert code == 7
    assert "FAILED: r/1 ended with exit code 7" in err
    assert "why" in err
    assert marker not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("policy", [RetryPolicy.REPLICA, RetryPolicy.ROLE, RetryPolicy.APPLICATION])
@pytest.mark.parametrize("enough", [True, False])
def test_retries(runner, tmp_path, policy, enough):
    """A replica that fails twice succeeds with two retries but not with one, under each policy."""
    count = tmp_path / "count"
    line = f"[ $K = 0 ] || exit 0; echo x >>{count}; [ $(wc -l <{count}) -gt 2 ]"
    app = sh(line, 2, env={"K": "${replica_id}"}, max_retries=2 if enough else 1, retry_policy=policy)
    code, _, _ = run(exported(runner, app, tmp_path))
    assert (code, len(count.read_text().split())) == ((0, 3) if enough else (1, 2))


def test_elastic_jobs_bear_a_loss(runner, tmp_path):
    """The job continues with fewer replicas, down to its minimum."""
    app = sh("[ $K != 1 ]", 3, env={"K": "${replica_id}"}, min_replicas=2)
    assert run(exported(runner, app, tmp_path))[0] == 0


def test_a_time_limit(runner, tmp_path):
    """A job that exceeds its time limit is killed."""
    app = sh("sleep 1000")
    app.metadata[TIMEOUT] = "1s"
    begin = time.monotonic()
    assert run(exported(runner, app, tmp_path))[0] == 124
    assert time.monotonic() - begin < 60


def test_ctrl_c_ends_all(runner, tmp_path):
    """An interrupt terminates the replicas, which get SIGTERM first."""
    folder = exported(runner, sh("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done", 2), tmp_path)
    process = subprocess.Popen([str(folder / "run.sh")], stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 60
    while [p.read_text() for p in folder.rglob("stdout.log")] != ["up\n"] * 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.terminate()
    assert process.wait(60) == 143
    process.stderr.close()
    assert [p.read_text() for p in folder.rglob("stdout.log")] == ["up\nbye\n"] * 2


def test_secrets_are_not_in_it(runner, tmp_path):
    """No file contains the value of a secret; `run.sh` requires it, and passes any value on unchanged."""
    env = {"HF_TOKEN": "hf_abcdefghijklmnopqrstuv", "MY": Secret("env:MY")}
    folder = exported(runner, sh('printf %s "$MY"; [ "$HF_TOKEN" = t ]', env=env), tmp_path)
    assert not [p for p in folder.rglob("*") if p.is_file() and "abcdefghijklm" in p.read_text()]
    code, _, err = run(folder, HF_TOKEN="t")
    assert code == 2
    assert "the job needs MY" in err
    value = "a'b\n$x \\"
    code, said, _ = run(folder, HF_TOKEN="t", MY=value)
    assert (code, said["r/0.stdout"]) == (0, value)


def test_names_with_odd_characters(runner, tmp_path):
    """Role names with any characters work as names of folders and in words of the shell."""
    roles = [Role(name, "", entrypoint="sh", args=["-c", "echo $0"]) for name in ("a b", "it's", "$(id)", "x;y")]
    code, said, _ = run(exported(runner, AppDef("an app's $name", roles), tmp_path))
    assert code == 0
    assert sorted(said.values()) == [""] * 4 + ["sh\n"] * 4


def test_the_folder(runner, tmp_path):
    """A README names every file, and only the owner can access the folder."""
    folder = exported(runner, sh("true"), tmp_path)
    text = (folder / "README.md").read_text()
    names = {p.name for p in folder.iterdir()} - {"README.md"}
    assert {name for name in names if f"`{name}`" in text or f"`{name}/`" in text} == names
    assert json.loads((folder / "job.json").read_text())["app"]["name"] == "job"
    assert (folder / "job.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="is not empty"):
        runner.export(runner.dryrun(sh("true"), "local_cwd"), str(folder))


def test_a_scheduler_that_cannot(runner, tmp_path):
    """The error lists the schedulers that can export."""
    from tests.runner.memory_backend import MemoryScheduler

    with Runner("test", {"memory": MemoryScheduler}) as other, pytest.raises(NotSupportedError, match="cannot export"):
        other.export(other.dryrun(sh("true"), "memory"), str(tmp_path / "out"))
