"""Ax launches trials by torchx, and reads their results from where the job has put them."""

from __future__ import annotations

import pytest

from tests.backends.clients.conftest import Client

pytestmark = pytest.mark.timeout(1200)  # most of it for the environment

PROGRAM = """
import os, time
from ax.core.arm import Arm
from ax.core.experiment import Experiment
from ax.core.parameter import ParameterType, RangeParameter
from ax.core.search_space import SearchSpace
from ax.metrics.torchx import TorchXMetric
from ax.runners.torchx import TorchXRunner
from torchx.components import utils

runner = TorchXRunner(tracker_base=os.path.abspath("results"), component=utils.booth, orchestrator="local_cwd")
space = SearchSpace([RangeParameter(name, ParameterType.FLOAT, -10.0, 10.0) for name in ("x1", "x2")])
experiment = Experiment(name="t", search_space=space, runner=runner, is_test=True)
for x1, x2 in ((1.0, 3.0), (0.0, 0.0)):
    experiment.new_trial().add_arm(Arm({"x1": x1, "x2": x2})).run()
trials = list(experiment.trials.values())
ended = {}
deadline = time.monotonic() + 120
while sum(map(len, ended.values())) < 2 and time.monotonic() < deadline:
    ended = {s.name: t for s, t in runner.poll_trial_status(trials).items() if s.name in ("COMPLETED", "FAILED")}
data = [TorchXMetric(name="booth_eval").fetch_trial_data(trial).unwrap().df for trial in trials]
print("ended", ended, "results", [float(found["mean"][0]) for found in data])
"""


def test_trials(ax: Client) -> None:
    """Two trials run as local jobs; Ax sees them end, and what they have found."""
    assert "ended {'COMPLETED': {0, 1}} results [0.0, 74.0]" in ax(script=PROGRAM)
