"""One Runner in several threads."""

from __future__ import annotations

import threading

from torchx.runner import Runner, get_runner
from torchx.schedulers import get_scheduler_factories
from torchx.specs import AppDef, AppState, Resource, Role


def test_eight_threads_share_a_runner() -> None:
    """Each launches, looks at, lists, reads, cancels and forgets jobs on two backends of the same Runner."""
    errors: list[BaseException] = []

    def app(command: str) -> AppDef:
        return AppDef("a", [Role("w", "img", entrypoint="sh", args=["-c", command], resource=Resource(1, 0, 64))])

    def work(runner: Runner, k: int) -> None:
        try:
            for _ in range(2):
                assert f"echo {k}" in str(runner.dryrun(app(f"echo {k}"), "kubernetes"))
                handle = runner.run(app(f"echo {k}"), "local_cwd", workspace="")
                assert runner.describe(handle) is not None
                assert handle in [job.app_handle for job in runner.list("local_cwd")]
                ended = runner.wait(handle, wait_interval=0.1)
                assert ended is not None and ended.state is AppState.SUCCEEDED
                assert [*runner.log_lines(handle, "w", 0)] == [f"{k}\n"]
                runner.cancel(handle)
                runner.delete(handle)
        except BaseException as e:
            errors.append(e)

    with get_runner("threads") as shared:
        threads = [threading.Thread(target=work, args=(shared, k)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


def test_the_empty_session() -> None:
    """Programs that parse handles such as `slurm:///1` have it; all verbs take such handles."""
    with Runner("", get_scheduler_factories()) as runner:
        assert runner.name() == ""
        handle = runner.run(
            AppDef("a", [Role("w", "", entrypoint="sh", args=["-c", "echo $PET_LOG_DIR"])]), "local_cwd", workspace=""
        )
        assert handle.startswith("local_cwd:///")
        ended = runner.wait(handle, wait_interval=0.1)
        assert ended is not None and ended.state is AppState.SUCCEEDED and runner.describe(handle) is not None
        assert next(iter(runner.log_lines(handle, "w"))).endswith("/w/0/torchelastic/w\n")
        assert handle in [job.app_handle for job in runner.list("local_cwd")]
        runner.cancel(handle)
        runner.delete(handle)
    with get_runner("") as runner:
        assert runner.name() == "torchx"
