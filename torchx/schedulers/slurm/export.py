"""A Slurm job as files for ``sbatch``."""

from __future__ import annotations

from torchx.schedulers.batch.base import Submission
from torchx.schedulers.batch.folders import SECRETS_FILE
from torchx.schedulers.kit.export import CODE, MACHINERY, Export, folder_of_a_run, split_script
from torchx.schedulers.kit.secrets import split
from torchx.schedulers.kit.shell import quote
from torchx.schedulers.slurm.request import SCRIPT_FILE, SlurmBatchRequest


def export(submission: Submission, request: SlurmBatchRequest) -> Export:
    """Return the files of a submission; the script is split into the job's part and the part shared by all jobs."""
    script = submission.files[SCRIPT_FILE].replace(f"\ncwd={quote(request.cwd)}\n", f"\ncwd=$folder/{CODE}\n")
    head, machinery = split_script(script)
    more = {name: text for name, text in submission.files.items() if name != SCRIPT_FILE}
    files = {SCRIPT_FILE: f'{head}. "$folder/{MACHINERY}"\n', MACHINERY: machinery, **more}
    envs = [replica.env for replica in request.replicas.values()]
    secrets = [*dict.fromkeys(name for env in envs for name in split(env)[1])]
    words = [*submission.env, *submission.argv[:-1], f"{submission.folder}/{SCRIPT_FILE}"]
    late = {submission.folder.replace("%", "%%"): "job", submission.folder: "job"}
    line = " ".join(quote(word, late) for word in words)
    line = line.replace('--output="${job}"', '--output="${job//%/%%}"')
    return Export(
        files=files,
        about={
            SCRIPT_FILE: "the job: options for `sbatch`, environment and commands of its replicas",
            MACHINERY: "starts a step for each replica, restarts it as configured, ends all when one has failed",
        },
        run="\n".join(
            [*folder_of_a_run([*files, "job.json"], secrets_file=SECRETS_FILE, secrets=secrets), *_submits(line)]
        ),
        needs="`sbatch`, and a folder that all nodes see: this one",
        logs="`runs/TIME/ROLE/K/stdout.log` and `stderr.log`",
        secrets=secrets,
    )


def _submits(line: str) -> list[str]:
    say = 'echo "logs: $job/ROLE/K/stdout.log · state: squeue -j ${id%%;*} · cancel: scancel ${id%%;*}" >&2'
    return [f"id=$({line})", 'echo "$id"', say]
