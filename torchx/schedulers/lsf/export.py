"""An LSF job as files for ``bsub``."""

from __future__ import annotations

from torchx.schedulers.batch.base import Submission
from torchx.schedulers.batch.folders import SECRETS_FILE
from torchx.schedulers.kit.export import CODE, Export, folder_of_a_run
from torchx.schedulers.kit.secrets import split
from torchx.schedulers.lsf.replicas import REPLICAS_FILE, SUBMIT_FILE
from torchx.specs.api import AppDef


def export(submission: Submission, app: AppDef) -> Export:
    """Return the files of a submission, whose scripts find their folder by themselves."""
    secrets = [*dict.fromkeys(name for role in app.roles for name in split(role.env)[1])]
    files = [*submission.files, "job.json"]
    unset = " ".join([*submission.env, ""])
    return Export(
        files=dict(submission.files),
        about={
            SUBMIT_FILE: "the job: a `bsub` for each replica",
            REPLICAS_FILE: "what runs on the hosts: environment and commands of the replicas, at its end",
        },
        run="\n".join(
            [
                *folder_of_a_run(files, secrets_file=SECRETS_FILE, secrets=secrets),
                f'cd -- "$here/{CODE}"',
                f'{unset}/bin/bash -- "$job/{SUBMIT_FILE}"',
                'echo "logs: $job/ROLE/K/stdout.log" >&2',
            ]
        ),
        needs="`bsub`, and a folder that all hosts see: this one",
        logs="`runs/TIME`, a folder for each role, and in it one for each replica",
        secrets=secrets,
        notes=["All runs share the job group in LSF: run it again only after it has ended."],
    )
