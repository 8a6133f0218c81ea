"""A tracker on a real MLflow server: run by test_mlflow.py in an environment that has MLflow. Prints JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from torchx.tracker import mlflow_runs

RUN = "slurm://nightly/train-1"


def refusal(action: Callable[[], object]) -> list[str]:
    """Class and text of what is raised; empty when nothing is."""
    try:
        action()
    except Exception as e:
        return [type(e).__name__, str(e)]
    return []


def values(tracker: Any) -> dict[str, Any]:
    """What is read after values of all kinds were written, some of them twice."""
    odd = {"train/loss": 0.5, "a:b é": 1, "../x": 2, "-u2f-": 3, "//": 4}
    tracker.add_metadata(
        RUN, lr=0.1, model="resnet", layers=[1, 2], optim={"lr": 0.1, "nesterov": True}, none=None, **odd
    )
    tracker.add_metadata(RUN, lr=0.2, model="vit")
    many = {f"value{n}": n for n in range(250)}  # more than one request takes
    tracker.add_metadata("many", **many)
    long = refusal(lambda: tracker.add_metadata(RUN, long="x" * 6000, beside=1))
    tracker.log_params_flat(RUN, {"data": {"path": "/d", "shards": [3, 4]}}, "cfg")
    tracker.log_params_flat(RUN, {"data": {"path": "/other", "new": 1}}, "cfg")
    return {"values": dict(tracker.metadata(RUN)), "many": dict(tracker.metadata("many")) == many, "long": long}


def lineage(tracker: Any) -> dict[str, Any]:
    for _ in range(2):
        tracker.add_artifact(RUN, "model: best", "s3://b/m.pt", {"step": 7})
        tracker.add_source("eval", RUN, "model: best")
    tracker.add_artifact(RUN, "log", "/logs")
    tracker.add_source("eval", "s3://data's")
    found = tracker.lineage(RUN)
    return {
        "artifacts": {a.name: [a.path, a.metadata] for a in tracker.artifacts(RUN).values()},
        "sources": sorted([s.source_run_id, s.artifact_name] for s in tracker.sources("eval")),
        "sources of an artifact": [s.source_run_id for s in tracker.sources("eval", "model: best")],
        "descendants": [found.sources, found.descendants],
        "children": [list(tracker.run_ids(parent_run_id=i)) for i in (RUN, "s3://data's", "eval")],
        "runs": sorted(tracker.run_ids()),
        "unknown": [dict(tracker.metadata("unknown")), list(tracker.run_ids(parent_run_id="unknown"))],
    }


def deleted_meanwhile(tracker: Any) -> list[Any]:
    """Somebody deletes the MLflow run of a job that goes on: the job gets a new one, and the old values are gone."""
    tracker.add_metadata("deleted", a=1)
    first = tracker.get_run_id("deleted")
    tracker._runs.client.delete_run(first)
    tracker.add_metadata("deleted", b=2)
    return [dict(tracker.metadata("deleted")), tracker.get_run_id("deleted") != first]


def together(uri: str, count: int) -> dict[str, Any]:
    """Processes that write their first value at the same moment, to a run and an experiment that are not there yet."""
    code = f"import sys; sys.argv = ['x', {uri!r}, 'rank', sys.argv[1]]; exec(open({__file__!r}).read())"
    pipe = subprocess.PIPE
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(rank)], stdin=pipe, stdout=pipe, text=True)
        for rank in range(count)
    ]
    for process in ranks:  # all have imported MLflow
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in ranks:
        process.communicate("go\n")
    tracker = made(uri, "together")
    runs = tracker._runs.client.search_runs([tracker.experiment_id])
    status = [r.info.status for r in runs]
    return {
        "codes": [process.returncode for process in ranks],
        "values": sorted(tracker.metadata("job")),
        "mlflow runs": len(runs),
        "status": [*status, *restarted(tracker)],
    }


class Held:
    """A tracker whose first call of one function of MLflow's client waits until it is let go."""

    def __init__(self, uri: str, name: str) -> None:
        self.tracker, self.come, self._go = made(uri, "held"), threading.Event(), threading.Event()
        client = self.tracker._runs.client
        self._made_at, self._real = int(time.time() * 1000), getattr(client, name)
        setattr(client, name, self._call)
        self._thread = threading.Thread(target=lambda: self.tracker.add_metadata(name, late=1))
        self._thread.start()

    def let_go(self) -> str:
        """The run that it has chosen then."""
        self._go.set()
        self._thread.join()
        return str(self.tracker.get_run_id(self._real.__name__))

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if not self._go.is_set():
            self.come.set()
            self._go.wait()
            if self._real.__name__ == "create_run":
                kwargs["start_time"] = self._made_at
        return self._real(*args, **kwargs)


def slower_to_make(uri: str) -> list[Any]:
    """A rank that has found no run, and makes its own after another has chosen, with an earlier time of start."""
    late, tracker = Held(uri, "create_run"), made(uri, "held")
    late.come.wait()
    tracker.add_metadata("create_run", early=1)
    before = tracker.get_run_id("create_run")
    after = late.let_go()
    return [before == after, dict(tracker.metadata("create_run")), actives(tracker, "create_run")]


def waited_for(uri: str) -> list[Any]:
    """A rank that has made a run and has not taken its turn: another waits for it; or not for long, if it has died."""
    mlflow_runs._CHOOSING_S = 500.0
    late, tracker = Held(uri, "set_tag"), made(uri, "held")
    late.come.wait()
    looks, look = threading.Semaphore(0), tracker._runs._active
    tracker._runs._active = lambda name: (looks.release(), look(name))[1]
    waits = threading.Thread(target=lambda: tracker.add_metadata("set_tag", early=1))
    waits.start()
    for _ in range(5):
        looks.acquire()
    undecided = "set_tag" not in tracker._runs._ids
    impatient = made(uri, "held")
    mlflow_runs._CHOOSING_S = 0.0
    impatient.add_metadata("set_tag", impatient=1)
    mlflow_runs._CHOOSING_S = 500.0
    after = late.let_go()
    waits.join()
    same = after == tracker.get_run_id("set_tag") == impatient.get_run_id("set_tag")
    return [undecided, same, sorted(tracker.metadata("set_tag")), actives(tracker, "set_tag")]


def actives(tracker: Any, name: str) -> int:
    return len(tracker._runs.client.search_runs([tracker.experiment_id], f"attributes.run_name = '{name}'"))


def restarted(tracker: Any) -> list[str]:
    """The state of the MLflow run of a job that has ended and is started again, during that and after it."""
    os.environ["TORCHX_JOB_ID"] = "job"
    tracker.add_metadata("job", attempt=2)
    during = tracker.get_run("job").info.status
    tracker.close()
    del os.environ["TORCHX_JOB_ID"]
    return [during, tracker.get_run("job").info.status]


def rank(uri: str, number: str) -> None:
    os.environ.update(TORCHX_JOB_ID="job", RANK=number)
    tracker = made(uri, "together")
    print("ready", flush=True)
    sys.stdin.readline()
    for step in range(5):
        tracker.add_metadata("job", **{f"rank{number}_step{step}": step, "same": "all", "other": number})


def made(uri: str, experiment: str) -> Any:
    from torchx.tracker.mlflow import create_tracker

    return create_tracker(json.dumps({"tracking_uri": uri, "experiment_name": experiment, "timeout_s": 500}))


def main() -> None:
    uri, verb = sys.argv[1:3]
    if verb == "rank":
        rank(uri, sys.argv[3])
        return
    tracker = made(uri, "kinds")
    answers = {**values(tracker), **lineage(tracker), "deleted": deleted_meanwhile(tracker)}
    answers["experiment"] = [tracker.experiment_name, bool(tracker.experiment_id), tracker.artifact_location]
    answers["run"] = tracker.get_run(RUN).info.run_name
    answers["together"] = together(uri, 8)
    answers["slower to make"], answers["waited for"] = slower_to_make(uri), waited_for(uri)
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    files = made(f"file://{os.getcwd()}/mlruns", "files")
    files.add_metadata(RUN, a=1)
    files.add_source("eval", RUN)
    answers["files"] = [dict(files.metadata(RUN)), files.lineage(RUN).descendants]
    tracker._runs.client.delete_experiment(tracker.experiment_id)
    answers["deleted experiment"] = refusal(lambda: made(uri, "kinds").add_metadata(RUN, a=1))
    answers["wrong key"] = refusal(lambda: made_from('{"experiment": "x"}'))
    tracker.close()
    print(json.dumps(answers))


def made_from(config: str) -> Any:
    from torchx.tracker.mlflow import create_tracker

    return create_tracker(config)


if __name__ == "__main__":
    main()
