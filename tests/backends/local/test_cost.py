"""What a submission costs, in things that can be counted: the same on any machine."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from torchx.runner import get_runner
from torchx.runs.store import Store
from torchx.specs.api import AppDef, AppState, Role
from torchx.supervisor.client import shared

_counting: Counter[str] | None = None


def _hook(event: str, args: tuple[object, ...]) -> None:
    if event == "open" and isinstance(args[0], int):
        return  # a descriptor that is open already, whose opening was counted
    if _counting is not None and event in ("open", "os.mkdir", "os.posix_spawn", "os.fork", "subprocess.Popen"):
        _counting[event] += 1


@pytest.fixture
def counted(monkeypatch):
    """Counts from now on what this process opens, makes and starts, and its transactions with the registry."""
    global _counting
    sys.addaudithook(_hook)  # stays for good; silent while nothing is counted
    write = Store.write

    def counted_write(self, work, default):
        if _counting is not None:
            _counting["transaction"] += 1
        return write(self, work, default)

    monkeypatch.setattr(Store, "write", counted_write)

    def begin() -> Counter[str]:
        global _counting
        _counting = Counter()
        return _counting

    yield begin
    _counting = None


def test_a_submission_opens_one_file_makes_one_folder_and_starts_nothing(counted, tmp_path, monkeypatch):
    """From the second job on: `job.json`, the job's folder, two transactions. The supervisor was there before."""
    monkeypatch.chdir(tmp_path)  # no repository to ask git about
    app = AppDef("job", [Role("r", "", entrypoint="true")])
    with get_runner("test") as runner:
        assert runner.wait(runner.run(app, "local_cwd")).state is AppState.SUCCEEDED
        counts = counted()
        handle = runner.run(app, "local_cwd")
        run = dict(counts)
        counts.clear()
        assert runner.wait(handle).state is AppState.SUCCEEDED
        waited = dict(counts)
        assert run == {"open": 1, "os.mkdir": 1, "transaction": 2}
        assert waited.pop("transaction") == 1
        assert waited.keys() <= {"open"}
        counts.clear()
        for _ in range(10):
            runner.status(handle)
        assert not counts  # a job that has ended can become nothing else
    shared.close()


def test_blocks_of_a_log_are_its_lines(tmp_path):
    """The command line copies blocks: whole lines, nothing changed, whatever their length; small enough to be cached."""
    from torchx.schedulers.local.logs import LogIterator

    line_ends = [b"a" * n + b"\n" for n in (0, 1, 70_000, 3, 200_000)] * 3
    content = b"".join(line_ends) + b"\xff no line end"
    path = tmp_path / "stdout.log"
    path.write_bytes(content)

    def log() -> LogIterator:
        return LogIterator("job", str(path), None, should_tail=False)

    blocks = list(log().chunks())
    assert b"".join(blocks) == content
    assert all(block.endswith(b"\n") for block in blocks[:-1])
    assert max(map(len, blocks)) < 400_000
    assert [line.encode("utf-8", "replace") for line in log()] == [
        *line_ends,
        b"\xff no line end".decode("utf-8", "replace").encode(),
    ]
