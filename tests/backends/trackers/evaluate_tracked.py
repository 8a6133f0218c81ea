"""A job that evaluates what another one made, and says so: run by test_ddp_job.py."""

from __future__ import annotations

import os

import torch

from torchx.tracker import AppRun, app_run_from_env


def main() -> None:
    app_run = app_run_from_env()
    trained = AppRun(os.environ["TRAINED"], app_run.backends)
    for tracker in app_run.backends:
        path = tracker.artifacts(trained.id)["checkpoint-0"].path
    app_run.add_source(trained.id, "checkpoint-0")
    app_run.add_metadata(weight=float(torch.load(path)["weight"]))


if __name__ == "__main__":
    main()
