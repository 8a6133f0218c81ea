"""Finds the CloudWatch log streams of a training job's hosts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torchx.schedulers.aws.client import pages
from torchx.schedulers.aws.errors import AwsError, is_missing
from torchx.schedulers.aws.logs import Streams
from torchx.schedulers.aws.sagemaker.answers import role_of

LOG_GROUP = "/aws/sagemaker/TrainingJobs"


def streams(client: Any, job: dict[str, Any], replicas: Sequence[tuple[str, int]]) -> Streams:
    """Log groups and streams of these replicas in CloudWatch, as far as the job has them; one stream for each start.

    Replica ``k`` is host ``algo-<k + 1>``. https://docs.aws.amazon.com/sagemaker/latest/dg/logging-cloudwatch.html
    """
    role = role_of(job)
    names: dict[tuple[str, int], list[str]] = {
        (name, k): [] for name, k in replicas if name == role.name and 0 <= k < role.num_replicas
    }
    if not names:
        return {}
    start = f"{job['TrainingJobName']}/algo-"
    only = f"{next(iter(names))[1] + 1}-" if len(names) == 1 else ""
    wanted = {"logGroupName": LOG_GROUP, "logStreamNamePrefix": f"{start}{only}"}
    try:
        found = list(pages(client, "describe_log_streams", "the log cannot be read", "logStreams", **wanted))
    except AwsError as e:
        if not is_missing(e):
            raise
        found = []  # nothing has been written yet
    for stream in sorted(found, key=lambda s: s.get("creationTime", 0)):
        host = re.match(r"(\d+)-", stream["logStreamName"].removeprefix(start))
        if host and (role.name, int(host[1]) - 1) in names:
            names[role.name, int(host[1]) - 1].append(stream["logStreamName"])
    return {replica: (LOG_GROUP, found) for replica, found in names.items()}
