"""Batch scripts that people have, handed to ``sbatch`` byte by byte.

Such a job has one role, whose ``metadata[SBATCH]`` has the script. It is looked at like a job of others
(:mod:`torchx.schedulers.slurm.foreign`), since its output is where its own lines say.
"""

from __future__ import annotations

import posixpath

from torchx.errors import NotSupportedError
from torchx.schedulers.batch.base import Submission
from torchx.schedulers.kit.shell import quote
from torchx.schedulers.slurm.options import SlurmOpts, job_words, node_options
from torchx.schedulers.slurm.request import SlurmBatchRequest
from torchx.specs.api import AppDef
from torchx.specs.retries import RETRY
from torchx.specs.sbatch_lines import directives
from torchx.specs.sbatch_scripts import seconds
from torchx.specs.scripts import SBATCH
from torchx.specs.timeouts import timeout_s
from torchx.specs.watchdog import WATCHDOG
from torchx.util.records import dataclass, field
from torchx.util.secrets import mask_args, mask_text


@dataclass
class ScriptRequest(SlurmBatchRequest):
    """A script of the user's, as it is.

    Attributes:
        file: name of its copy in the job's folder, as people see it in ``squeue``.
        text: all of it.
        args: for the script.
    """

    file: str = ""
    text: str = ""
    args: list[str] = field(default_factory=list)

    def materialize(self) -> str:
        """The script."""
        return self.text

    def check(self) -> None:
        """Slurm does."""

    def without_memory(self) -> ScriptRequest:
        """Its lines hold, whatever the partition knows."""
        return self

    def __str__(self) -> str:
        command = " ".join(map(quote, mask_args([*self.cmd, self.file, *self.args])))
        return f"# submitted with: {command}\n{mask_text(self.text)}"

    __repr__ = __str__


def script_request(app: AppDef, opts: SlurmOpts, *, name: str) -> ScriptRequest:
    """The request; only run options that are given go before the lines of the script.

    Args:
        name: nobody else's: it names the job, where the script does not, else it is its comment.

    Raises:
        NotSupportedError: what a script of torchx's own would be needed for.
    """
    (role,) = app.roles
    if any(value.__class__ is not str for value in role.env.values()):
        raise NotSupportedError("a batch script is given no secrets", hint="have it read them from a file of yours")
    script = role.metadata[SBATCH]
    given = {d.option: d.value for d in directives(script["text"], script["file"])}
    if app.metadata.get(RETRY):
        raise NotSupportedError("a batch script says itself whether it is requeued", hint="omit `--retry`")
    if app.metadata.get(WATCHDOG):
        raise NotSupportedError("nobody watches whether a batch script is silent", hint="omit `--watchdog`")
    if timeout_s(app) and timeout_s(app) == seconds(given.get("time", "")):
        opts.time = None  # which its own line says
    options, _ = node_options(role, opts, nomem=True)
    words = [f"--{k}" if v is None else f"--{k}={v}" for k, v in options.items() if k in _GIVEN]
    mark = f"--job-name={name}" if "job-name" not in given else f"--comment={name}"
    marks = [] if "job-name" in given and "comment" in given else [mark]
    cmd = ["sbatch", "--parsable", *marks, *words, *job_words(opts)]
    return ScriptRequest(
        cmd, {}, opts.job_dir, 0, name, file=script["file"], text=script["text"], args=list(role.args[1:])
    )


def submission(request: SlurmBatchRequest, folder: str) -> Submission:
    """The script's copy in the job's folder, handed over; it runs where ``sbatch`` was called, as without torchx."""
    assert isinstance(request, ScriptRequest), request
    argv = [*request.cmd, posixpath.join(folder, request.file), *request.args]
    return Submission(request.name, argv, folder, {request.file: request.text})


_GIVEN = ("account", "constraint", "exclude", "exclusive", "nodelist", "partition", "qos", "reservation", "time")
