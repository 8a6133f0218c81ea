"""A user's own batch script, submitted unchanged.

Such a job has one role, whose ``metadata[SBATCH]`` is the script. It is described like a foreign job
(:mod:`torchx.schedulers.slurm.foreign`), because the script decides where its output goes.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from torchx.errors import NotSupportedError
from torchx.schedulers.batch.base import BatchScheduler, Site, Submission
from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.kit.shell import quote
from torchx.schedulers.kit.views import View
from torchx.schedulers.slurm.options import SlurmOpts, job_words, node_options
from torchx.schedulers.slurm.request import SBATCH_GROUP_OPTIONS, SlurmBatchRequest
from torchx.schedulers.slurm.scripts.lines import directives
from torchx.schedulers.slurm.scripts.sbatch import seconds
from torchx.specs.api import AppDef
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.scripts import SBATCH
from torchx.util.records import dataclass, field
from torchx.util.secrets import mask_args, mask_text

if TYPE_CHECKING:
    from torchx.schedulers.slurm.foreign import ForeignSlurmJobs


@dataclass
class ScriptRequest(SlurmBatchRequest):
    """A user's script with its arguments; ``file`` is the name of its copy, which ``squeue`` shows."""

    file: str = ""
    text: str = ""
    args: list[str] = field(default_factory=list)

    def materialize(self) -> str:
        """Return the script."""
        return self.text

    def __str__(self) -> str:
        command = " ".join(map(quote, mask_args([*self.cmd, self.file, *self.args])))
        return f"# submitted with: {command}\n{mask_text(self.text)}"

    __repr__ = __str__


def script_request(app: AppDef, opts: SlurmOpts, *, name: str) -> ScriptRequest:
    """Return the request; run options that are set take precedence over the script's lines.

    ``name`` becomes the job's name, or its comment if the script sets the name. Raises NotSupportedError if the job
    needs a feature of torchx's own script.
    """
    (role,) = app.roles
    if any(value.__class__ is not str for value in role.env.values()):
        raise NotSupportedError(
            "secrets cannot be passed to a batch script", hint="let it read them from a file of yours"
        )
    script = role.metadata[SBATCH]
    given = {d.option: d.value for d in directives(script["text"], script["file"])}
    wishes = Wishes.of(app)
    if wishes.retry:
        raise NotSupportedError("a batch script decides itself whether it is requeued", hint="omit `--retry`")
    if opts.in_:
        raise NotSupportedError("a batch script is a job of its own", hint="omit `in`, or run it with `utils.sh`")
    if wishes.watchdog:
        raise NotSupportedError("a watchdog is not available for batch scripts", hint="omit `--watchdog`")
    if wishes.idle:
        raise NotSupportedError("idle batch scripts are not detected", hint="omit `--idle`")
    if wishes.timeout_s and wishes.timeout_s == seconds(given.get("time", "")):
        opts.time = None  # the script has the same line
    options, _ = node_options(role, opts, nomem=True)
    words = [f"--{k}" if v is None else f"--{k}={v}" for k, v in options.items() if k in SBATCH_GROUP_OPTIONS]
    mark = f"--job-name={name}" if "job-name" not in given else f"--comment={name}"
    marks = [] if "job-name" in given and "comment" in given else [mark]
    cmd = ["sbatch", "--parsable", *marks, *words, *job_words(opts)]
    return ScriptRequest(
        cmd,
        {},
        opts.job_dir,
        0,
        name,
        file=script["file"],
        text=script["text"],
        args=role.args[int(script.get("words", 1)) :],
    )


def submission(request: SlurmBatchRequest, folder: str) -> Submission:
    """Return the submission of the script's copy in the job's folder; it runs in the current folder,
    as without torchx.
    """
    assert isinstance(request, ScriptRequest), request
    argv = [*request.cmd, posixpath.join(folder, request.file), *request.args]
    return Submission(request.name, argv, folder, {request.file: request.text})


class ScriptJobs(View, BatchScheduler):
    """The view of a scheduler on the job of a user's script, whose output is found as that of a foreign job."""

    if TYPE_CHECKING:  # methods of the scheduler

        def foreign(self) -> ForeignSlurmJobs: ...

    def log_replicas(self, app_id: str) -> list[tuple[str, int]] | None:
        return self.foreign().log_replicas(app_id)

    def _log_folder(self, site: Site, app_id: str) -> JobFolder:
        return self.foreign()._log_folder(site, app_id)
