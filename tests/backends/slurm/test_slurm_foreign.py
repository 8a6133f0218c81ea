"""Jobs that torchx did not launch, on the real cluster: what `torchx why` says is what a person finds."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.backends.slurm.conftest import PATIENCE_S, becomes, command, start_now
from torchx.components import utils
from torchx.errors import NotSupportedError
from torchx.runner import Runner
from torchx.runner.foreign.explain import Explained
from torchx.schedulers.slurm_scheduler import create_scheduler
from torchx.specs import AppState, is_terminal
from torchx.specs.failures import parse_failure

Submit = Callable[..., str]


@pytest.fixture
def runner() -> Iterator[Runner]:
    """A Runner that knows Slurm alone."""
    with Runner("test", {"slurm": create_scheduler}) as made:
        yield made


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all nodes see, with a name that needs quotes."""
    path = Path(f"/var/tmp/torchx foreign {os.getpid()}")
    path.mkdir()
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


@pytest.fixture
def sbatch(folder: Path) -> Iterator[Submit]:
    """Submit a script by plain `sbatch`; jobs that are left go with the test."""
    made = []

    def run(text: str, *options: str, name: str = "train.sbatch") -> str:
        (folder / name).write_text("#!/bin/bash\n" + text)
        argv = ["sbatch", "--parsable", *options, name, "--epochs", "3"]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True)
        made.append(done.stdout.strip())
        return made[-1]

    yield run
    subprocess.run(["scancel", *made], check=False)


def over(runner: Runner, job: str, wanted: Callable[[Explained], bool] | None = None) -> Explained:
    """What is said of a job at its end, or once it is as wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = runner.why(job)
        if is_terminal(found.status.state) if wanted is None else wanted(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.3)


def test_a_traceback(runner: Runner, sbatch: Submit, folder: Path) -> None:
    """The exception is the cause, with its class; the log is the file that the patterns mean; nothing is on record."""
    code = "import sys; print(sys.argv[1:], flush=True); open('/no/data')"
    job = sbatch(
        f'#SBATCH -J "my train"\n#SBATCH --output="log %x-%6j.%N"  # where\npython3 -c "{code}" $@\n', "--mem=100"
    )
    found = over(runner, job)
    assert found.handle == f"slurm://foreign/{job}"
    assert found.status.state is AppState.FAILED
    cause = parse_failure(found.status.structured_error_msg)
    assert cause is not None
    assert cause.message == "FileNotFoundError: [Errno 2] No such file or directory: '/no/data'"
    assert (cause.role, cause.replica, cause.exit_code) == ("job", 0, 1)
    (log,) = folder.glob("log my train-*")
    assert "".join(found.lines) == log.read_text()
    assert found.about["name"] == "my train"
    assert found.about["folder"] == str(folder)
    assert found.about["command"].endswith("train.sbatch --epochs 3")
    assert runner.runs() == []


def test_known_by_accounting_alone(runner: Runner, sbatch: Submit, folder: Path) -> None:
    """Where the controller has forgotten a job, its command line and its script say where its output is."""
    (folder / "forgotten").mkdir()
    job = sbatch('#SBATCH -o "%x/out-%j.log"\necho fine\n', "-J", "forgotten", "--mem=100", "-e", "err-%A")
    found = over(runner, job)
    outputs = runner._locate(found.handle)[1]._outputs(job)  # type: ignore[attr-defined]  # of the view
    becomes(lambda: [job.get("StdErr") for job in outputs._accounted()], [f"{folder}/err-%A"])  # which may be late
    (accounted,) = map(outputs._filled, outputs._accounted())
    shown = outputs.shown["job/0"]
    for name in ("StdOut", "StdErr", "WorkDir", "JobName"):
        assert accounted[name] == shown[name]
    assert accounted["StdErr"] == f"{folder}/err-{job}"


def test_an_array(runner: Runner, sbatch: Submit) -> None:
    """The task that failed is named, with what it wrote; one task can be asked for, and one of another number."""
    text = "#SBATCH -a 0-3 -o arr-%A_%a.out -e arr-%A_%a.err --mem=100\n"
    job = sbatch(text + '[ $SLURM_ARRAY_TASK_ID != 2 ] || { echo "no more frobs" >&2; exit 7; }\n')
    found = over(runner, job)
    assert found.status.msg.startswith("task/2 on ")
    assert found.status.msg.endswith("exit code 7: no more frobs")
    assert [r.id for role in found.status.roles for r in role.replicas] == [0, 1, 2, 3]
    assert (found.role, found.replica, list(found.lines)) == ("task", 2, ["no more frobs\n"])
    assert over(runner, f"{job}_1").status.state is AppState.SUCCEEDED
    raw = command("squeue", "-h", "--states=all", f"--jobs={job}_2", "-o", "%A").strip()
    assert runner.why(raw).handle == f"slurm://foreign/{job}_2"


def test_a_folder_that_is_not_there(runner: Runner, sbatch: Submit) -> None:
    """Slurm cannot write its output, and says nothing of it but a number."""
    found = over(runner, sbatch("#SBATCH -o nowhere/%j.out --mem=100\necho fine\n"))
    assert "could not open its output file" in found.status.msg


def test_a_heterogeneous_job(runner: Runner, sbatch: Submit) -> None:
    """Both components are there; its script's output is that of the first."""
    text = "#SBATCH -n1 --mem=100\n#SBATCH hetjob\n#SBATCH -n1 --mem=100\n"
    job = sbatch(text + "srun --het-group=0,1 sh -c 'echo proc $SLURM_PROCID; exit $((SLURM_PROCID * 5))'\n")
    found = over(runner, job)
    assert found.status.state is AppState.FAILED
    assert [(r.role, r.id) for role in found.status.roles for r in role.replicas] == [
        ("component", 0),
        ("component", 1),
    ]
    assert "exit code 5" in found.status.msg
    assert "proc 1\n" in found.lines
    assert runner.why(f"{job}+1").handle == found.handle


def test_requeued(runner: Runner, sbatch: Submit, folder: Path) -> None:
    """A job that was put back into the queue waits to be started again; then its second attempt says why it failed."""
    go = folder / "go"
    text = f'echo try $SLURM_RESTART_COUNT; until [ -e "{go}" ]; do sleep 0.1; done; echo "no frobs left" >&2; exit 3\n'
    job = sbatch(text, "--mem=100", "--requeue")
    over(runner, job, lambda found: found.status.state is AppState.RUNNING)
    command("scontrol", "requeue", job)
    found = over(runner, job, lambda found: found.status.state is AppState.PENDING and found.status.num_restarts > 0)
    assert found.status.num_restarts == 1
    assert "just requeued" in found.status.msg
    go.touch()
    start_now(job)
    found = over(runner, job)
    assert (found.status.state, found.status.num_restarts) == (AppState.FAILED, 1)
    assert found.status.msg.endswith("exit code 3: no frobs left; after 1 restart")
    assert list(found.lines).count("try 1\n") == 1


def test_why_it_waits(runner: Runner, sbatch: Submit) -> None:
    """A sentence for Slurm's reason; of a job that waits there is no output."""
    job = sbatch("echo", "--begin=now+1hour", "--mem=100")
    found = runner.why(job)
    assert found.status.state is AppState.PENDING
    assert "its start time has not come" in found.status.msg
    assert (found.replica, list(found.lines)) == (None, [])


def test_salloc_and_srun(runner: Runner) -> None:
    """The exit code is known; the output is on the terminal where it was started."""
    argv = ["salloc", "-J", "interactive", "-n1", "--mem=100", "srun", "sh", "-c", "exit 3"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    job = done.stderr.partition("job allocation ")[2].split()[0]
    found = over(runner, job)
    assert found.status.state is AppState.FAILED
    assert "exit code 3" in found.status.msg
    assert "write to the terminal that started them" in found.log_note


def test_adopted(runner: Runner, sbatch: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    """All verbs know it by its name; it is ended by force alone, and never as `@last`."""
    job = sbatch("echo begun; sleep 600", "--mem=100")
    over(runner, job, lambda found: found.status.state is AppState.RUNNING and bool(found.lines))
    handle = runner.adopt(job, name="bert")
    assert runner.resolve("@bert") == handle
    with pytest.raises(LookupError):
        runner.resolve("@last")
    assert [run.name for run in runner.runs()] == ["bert"]
    assert list(runner.log_lines("@bert", "job")) == ["begun\n"]
    for end in (runner.cancel, runner.delete):
        with pytest.raises(NotSupportedError):
            end("@bert")
    assert runner.status("@bert").state is AppState.RUNNING
    runner.cancel("@bert", force=True)
    ended = runner.wait("@bert", wait_interval=0.5, timeout=PATIENCE_S)
    assert ended is not None
    assert ended.state is AppState.CANCELLED
    assert json.loads(json.dumps(runner.recorded("@bert").tags))["adopted_by"]
    assert runner.disown("@bert") == handle
    assert runner.runs() == []


def test_a_script_of_ones_own(runner: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`utils.sbatch` hands it over as it is: its lines hold, its output is where they say, and torchx finds it."""
    monkeypatch.chdir(folder)
    text = '#!/bin/bash\n#SBATCH -J "my own" --mem=100 -o "%x.log"\necho "got $1 in $(pwd)"\nsrun true\nexit 4\n'
    (folder / "own.sbatch").write_text(text)
    handle = runner.run(utils.sbatch("own.sbatch", "--lr"), "slurm")
    job = handle.rpartition("/")[2]
    assert handle == f"slurm://test/{job}"
    found = runner.wait(handle, wait_interval=0.5, timeout=PATIENCE_S)
    assert found is not None
    assert "job/0 on" in found.msg
    assert "exit code 4" in found.msg
    assert (folder / "my own.log").read_text() == f"got --lr in {folder}\n"
    assert list(runner.log_lines(handle, "job")) == [f"got --lr in {folder}\n"]
    assert command("scontrol", "write", "batch_script", job, "-") == text
    assert runner.why(job).handle == handle, "it is one of ours"
    runner.delete(handle)
    assert (folder / "my own.log").exists(), "its output is the user's"


def test_an_array_of_ones_own(runner: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks are the replicas."""
    monkeypatch.chdir(folder)
    text = "#!/bin/bash\n#SBATCH -a 1-2 --mem=100\necho task $SLURM_ARRAY_TASK_ID\n"
    (folder / "own.sbatch").write_text(text)
    handle = runner.run(utils.sbatch("own.sbatch"), "slurm")
    found = runner.wait(handle, wait_interval=0.5, timeout=PATIENCE_S)
    assert found is not None
    assert found.state is AppState.SUCCEEDED
    assert runner.log_replicas(handle) == [("task", 1), ("task", 2)]
    assert list(runner.log_lines(handle, "task", 2)) == ["task 2\n"]
