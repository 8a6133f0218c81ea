"""Batch scripts that people have: handed to ``sbatch`` byte by byte; elsewhere, what their ``#SBATCH`` lines ask for.

Such a job has one role, whose ``metadata[SBATCH]`` has the script. On Slurm it is looked at like a job of others
(:mod:`torchx.schedulers.slurm.foreign`), since its output is where its own lines say.
"""

from __future__ import annotations

import posixpath
import re

from torchx.errors import NotSupportedError, SpecError
from torchx.schedulers.batch.base import Submission
from torchx.schedulers.slurm.directives import Directive, directives
from torchx.schedulers.slurm.options import SlurmOpts, job_words, node_options
from torchx.schedulers.slurm.outputs import JOB
from torchx.schedulers.slurm.request import SlurmBatchRequest
from torchx.specs.api import AppDef, Resource, Role
from torchx.specs.retries import RETRY
from torchx.specs.scripts import SBATCH
from torchx.specs.timeouts import TIMEOUT, timeout_s
from torchx.util.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_OF_SLURM = (
    *("account", "acctg-freq", "comment", "error", "job-name", "no-requeue", "open-mode", "output", "parsable"),
    *("partition", "qos", "quiet", "requeue", "verbose", "wckey"),
)
"""Options that say nothing elsewhere: who pays and in which queue, where the output goes."""

_HINTS = {
    "array": "`torchx sweep` launches a job once for each set of values",
    "dependency": "`torchx run --after JOB` waits for another job",
    "mail-type": "`torchx run --notify mail` does so on every scheduler",
    "mail-user": "`torchx run --notify mail` does so on every scheduler",
}
_UNITS = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024 * 1024}
_CPU, _MEM_MB = 1, 1024
_UNREADABLE = "is a value that torchx cannot read"


def script_app(path: str, text: str, args: Iterable[str], image: str) -> AppDef:
    """The job that a batch script describes.

    Raises:
        SpecError: ``sbatch`` would not take it; the line is named.
    """
    name = posixpath.basename(path)
    found = directives(text, name)
    given = {d.option: d for d in found}
    metadata = {"file": name, "text": text}
    app_name = given["job-name"].value if "job-name" in given else name.partition(".")[0]
    role = Role(JOB, image, entrypoint="bash", args=[path, *args], metadata={SBATCH: metadata})
    app = AppDef(app_name or "sbatch", roles=[role])
    try:
        role.resource, limit_s = translate(found, name)
        if limit_s:
            app.metadata[TIMEOUT] = f"{limit_s}s"
        _refuse_steps(text, name)
    except NotSupportedError as e:
        role.resource = Resource(_CPU, 0, _MEM_MB)
        app.metadata[SBATCH] = f"{e}\n{e.hint}"
    return app


def translate(found: Iterable[Directive], name: str) -> tuple[Resource, int]:
    """What a script asks of one machine, and its time limit in seconds; 0: none.

    Raises:
        NotSupportedError: a line asks for what only Slurm has; it is named.
    """
    numbers: dict[str, float] = {}
    for one in found:
        if one.option in _OF_SLURM or (one.option == "export" and one.value == "ALL"):
            continue
        reader = _READERS.get(one.option)
        number = None if reader is None else reader(one.value)
        why = "means something on Slurm alone" if reader is None else _UNREADABLE
        if one.option in ("nodes", "ntasks", "ntasks-per-node") and number is not None and number > 1:
            number, why = None, "asks for several processes, which only Slurm starts"
        if number is None:
            where = f"{name}:{one.line}: `{one.text}`"
            raise NotSupportedError(f"{where} {why}", hint=_HINTS.get(one.option, "remove it, or run on Slurm"))
        numbers[one.option] = number
    cpus = int(numbers.get("cpus-per-task", _CPU))
    gpus = max((int(numbers.get(o, 0)) for o in ("gpus", "gres", "gpus-per-node", "gpus-per-task")), default=0)
    memory = numbers.get("mem") or numbers.get("mem-per-cpu", 0) * cpus or numbers.get("mem-per-gpu", 0) * gpus
    return Resource(cpus, gpus, int(memory or _MEM_MB * cpus)), int(numbers.get("time", 0))


def _refuse_steps(text: str, name: str) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*(?:time\s+|exec\s+)?(srun|sbatch|scontrol|sbcast)\s", line):
            raise NotSupportedError(f"{name}:{number}: `{line.strip()[:60]}` is a command of Slurm's")


# -- values ----------------------------------------------------------------------------------------------


def _whole(text: str) -> int | None:
    """``4``; of ``1-2`` the least that will do."""
    found = re.fullmatch(r"(\d{1,6})(?:-\d{1,6})?", text.strip())
    return int(found[1]) if found else None


def _megabytes(text: str) -> float | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)B?", text.strip(), re.IGNORECASE)
    return float(found[1]) * _UNITS[found[2].upper()] if found else None


def _gpus(text: str) -> int | None:
    """``2``, ``a100:2``, ``gpu:a100:2``; several kinds together are too many for one number."""
    found = re.fullmatch(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d{1,4})", text.strip())
    return int(found[1]) if found else 1 if text.strip() == "gpu" else None


def _seconds(text: str) -> int | None:
    """https://slurm.schedmd.com/sbatch.html#OPT_time

    >>> [_seconds(t) for t in ("90", "90:30", "2:00:00", "1-0", "1-12:30", "UNLIMITED", "soon")]
    [5400, 5430, 7200, 86400, 131400, 0, None]
    """
    if text.strip().upper() in ("UNLIMITED", "INFINITE"):
        return 0
    found = re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?", text.strip())
    if found is None:
        return None
    days, a, b, c = (int(part or 0) for part in found.groups())
    if found[1] is not None or found[4] is not None:
        return days * 86400 + a * 3600 + b * 60 + c
    return a * 60 + b


_READERS: dict[str, Callable[[str], float | None]] = {
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node", "cpus-per-task"), _whole),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), _megabytes),
    **dict.fromkeys(("gpus", "gres", "gpus-per-node", "gpus-per-task"), _gpus),
    "time": _seconds,
}


# -- on Slurm --------------------------------------------------------------------------------------------


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
        from torchx.schedulers.kit.shell import quote
        from torchx.util.secrets import mask_args, mask_text

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
    if timeout_s(app) and timeout_s(app) == _seconds(given.get("time", "")):
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


def read_script(path: str) -> str:
    """The text of a script, to the byte.

    Raises:
        SpecError: it cannot be read.
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except OSError as e:
        raise SpecError(f"`{path}` cannot be read: {e.strerror}") from e
