"""Exports a job on AWS Batch as arguments of the ``aws`` command."""

from __future__ import annotations

import json
from collections.abc import Mapping

from torchx.schedulers.aws.batch.request import BatchJob
from torchx.schedulers.kit.export import Export, build_lines

DEFINITION, JOB = "job-definition.json", "job.request.json"


def export(job: BatchJob, bases: Mapping[str, str]) -> Export:
    """Export both requests of a job. For ``bases`` see :func:`torchx.schedulers.kit.export.bases_of`."""
    built = {name: bases[name] for name in map(":".join, job.images_to_push.values()) if name in bases}
    lines, more = build_lines(built, push=True)
    request = {k: v for k, v in job.request().items() if k != "jobDefinition"}
    return Export(
        files={
            DEFINITION: json.dumps(job.job_def, indent=2) + "\n",
            JOB: json.dumps(request, indent=2) + "\n",
            **more,
        },
        about={
            DEFINITION: "the job: containers, environment, resources; the arguments of RegisterJobDefinition",
            JOB: "its queue and its name; the arguments of SubmitJob",
            **({"Dockerfile": "how the code gets into the image"} if more else {}),
        },
        run="\n".join(
            [
                *lines,
                f'definition=$(aws batch register-job-definition --cli-input-json "file://$here/{DEFINITION}"'
                " --query jobDefinitionArn --output text)",
                f'aws batch submit-job --cli-input-json "file://$here/{JOB}" --job-definition "$definition"'
                " --query jobId --output text",
            ]
        ),
        needs="`aws`, and its credentials" + (", `docker`, logged in to the registry of the image" if built else ""),
        where="CloudWatch, group /aws/batch/job unless the definition sets another",
        logs="CloudWatch, group `/aws/batch/job` unless the definition sets another",
    )
