"""Many writers on an object store: a real S3 client against a server on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.backends.trackers.conftest import AWS

pytestmark = pytest.mark.timeout(1800)  # packages are installed

RUN = "slurm://torchx/train-1"
WRITERS = """
import boto3, json, os, subprocess, sys
from torchx.tracker.backend.fsspec import create as create_tracker
def create(place):
    return create_tracker(json.dumps({"root_path": place, "timeout_s": 400}))
run = sys.argv[1]
if len(sys.argv) > 2:
    tracker = create("s3://runs/team a")
    for step in range(10):
        tracker.add_metadata(run, **{f"rank{sys.argv[2]}_step{step}": step, "shared": sys.argv[2]})
    tracker.add_artifact(run, "rank" + sys.argv[2], "s3://runs/ckpt")
    tracker.add_source("eval" + sys.argv[2], run, "rank" + sys.argv[2])
    sys.exit()
boto3.client("s3").create_bucket(Bucket="runs")
ranks = [subprocess.Popen([sys.executable, "-c", os.environ["WRITERS"], run, str(n)]) for n in range(4)]
codes = [rank.wait() for rank in ranks]
tracker = create("s3://runs/team a")
before = len(tracker.metadata(run))
if os.fork() == 0:  # as a data loader's worker
    try:
        tracker.add_metadata(run, forked=1)
    finally:
        os._exit(0)
os.wait()
def refusal(action):
    try:
        action()
    except Exception as e:
        return [type(e).__name__, str(e)]
print(json.dumps({
    "codes": codes, "values": sorted(tracker.metadata(run)), "before": before,
    "artifacts": sorted(tracker.artifacts(run)), "descendants": sorted(tracker.lineage(run).descendants),
    "runs": sorted(tracker.run_ids()), "none": [list(create("s3://runs/empty").run_ids()), dict(tracker.metadata("no"))],
    "no bucket": refusal(lambda: create("s3://no-such-bucket/x").add_metadata(run, a=1)),
    "buckets": [b["Name"] for b in boto3.client("s3").list_buckets()["Buckets"]],
}))
"""


@pytest.fixture
def answers(python: Callable[..., str], s3_server: str) -> dict[str, object]:
    env = {**AWS, "AWS_ENDPOINT_URL": s3_server, "WRITERS": WRITERS}
    found: dict[str, object] = json.loads(python(WRITERS, RUN, env=env).splitlines()[-1])
    return found


def test_many_writers(answers: dict[str, object]) -> None:
    """Four processes write at once, each record an object: all are there, whoever reads; a forked process writes, too."""
    assert answers["codes"] == [0] * 4
    steps = [f"rank{rank}_step{step}" for rank in range(4) for step in range(10)]
    assert answers["before"] == len([*steps, "shared"])
    assert answers["values"] == sorted([*steps, "shared", "forked"])
    assert answers["artifacts"] == [f"rank{rank}" for rank in range(4)]
    assert answers["descendants"] == [f"eval{rank}" for rank in range(4)]
    assert answers["runs"] == [*(f"eval{rank}" for rank in range(4)), RUN]
    assert answers["none"] == [[], {}]
    # A bucket that is not there is a mistake: none is made.
    assert answers["no bucket"][0] == "FileNotFoundError"  # type: ignore[index]  # a pair
    assert answers["buckets"] == ["runs"]
