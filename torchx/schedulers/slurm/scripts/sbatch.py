"""Jobs from existing batch scripts: translation of ``#SBATCH`` lines for schedulers other than Slurm."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable

from torchx.errors import NotSupportedError
from torchx.schedulers.slurm.scripts.lines import KNOWN, Directive, directives, late_directives
from torchx.specs.api import AppDef, Resource, Role
from torchx.specs.wishes.scripts import SBATCH
from torchx.specs.wishes.timeouts import TIMEOUT
from torchx.util.notices import logger
from torchx.util.strings import did_you_mean

_IGNORED = (
    *("account", "acctg-freq", "comment", "error", "job-name", "no-requeue", "open-mode", "output", "parsable"),
    *("partition", "qos", "quiet", "requeue", "verbose", "wckey"),
)
"""Options without meaning outside of Slurm, such as accounts, queues and output files."""

_ELSEWHERE = "remove it, or run on Slurm"
_HINTS = {
    "array": "`torchx sweep` launches a job once for each set of values",
    "dependency": "`torchx run --after JOB` waits for another job",
    "mail-type": "`torchx run --notify mail` does so on every scheduler",
    "mail-user": "`torchx run --notify mail` does so on every scheduler",
}
_UNITS = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024 * 1024}
_CPU, _MEM_MB = 1, 1024
_UNREADABLE = "has a value that torchx cannot parse; sbatch takes whole numbers"

# Where a command may begin: of a line, behind an operator, or behind a word that runs another command.
_STEP = re.compile(
    r"(?:^|[;&|({`]|\b(?:then|do|else|elif|if|while|until|time|exec|eval|command|nohup|!)\s)\s*(?:\w+=\S*\s+)*"
    r"(?:/\S*/)?(?:srun|sbatch|scontrol|sbcast|salloc|sattach|squeue|scancel|sacct|sinfo)(?=[\s;&|)`]|$)"
)
_NO_CODE = re.compile(r"""'[^']*'|"[^"$`]*"|(?:^|(?<=\s))#.*""")  # strings without commands, and comments


def script_app(path: str, text: str, args: Iterable[str], image: str) -> AppDef:
    """Return the job that a batch script describes; raises SpecError if ``sbatch`` would reject a line."""
    name = posixpath.basename(path)
    found = directives(text, name)
    given = {d.option: d for d in found}
    metadata = {"file": name, "text": text}
    app_name = given["job-name"].value if "job-name" in given else name.partition(".")[0]
    program, *words = interpreter(text)
    metadata["words"] = str(len(words) + 1)
    role = Role("job", image, entrypoint=program, args=[*words, path, *args], metadata={SBATCH: metadata})
    if late := late_directives(text):
        numbers = ", ".join(map(str, late))
        logger("torchx.components").warning(
            "%s: #SBATCH lines after the first command have no effect: line %s", name, numbers
        )
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


def interpreter(text: str) -> list[str]:
    """Read the command that runs a script from its first line. The usual shells are found on PATH, as images differ.

    >>> interpreter("#!/bin/bash -l\\n"), interpreter("#! /usr/bin/env python3\\n"), interpreter("#!/bin/csh -f")
    (['bash', '-l'], ['python3'], ['/bin/csh', '-f'])
    """
    program, *rest = text.partition("\n")[0].removeprefix("#!").split(None, 1) or ["bash"]
    words = rest[0].split() if rest else []
    if posixpath.basename(program) == "env":
        return words[1:] if words[:1] == ["-S"] else words or ["bash"]
    usual = program in ("/bin/bash", "/usr/bin/bash", "/bin/sh", "/usr/bin/sh")
    return [posixpath.basename(program) if usual else program, *(part.strip() for part in rest)]


def translate(found: Iterable[Directive], name: str) -> tuple[Resource, int]:
    """Return the resource and the time limit in seconds (0: none); raises NotSupportedError if a line needs Slurm."""
    numbers: dict[str, float] = {}
    for one in found:
        if one.option in _IGNORED or (one.option == "export" and one.value == "ALL"):
            continue
        reader = _READERS.get(one.option)
        number = None if reader is None else reader(one.value)
        why = "is supported on Slurm only" if reader is None else _UNREADABLE
        if not one.is_known:
            why = "is not an option of sbatch itself, at most of a plugin of a site"
        if one.option in ("nodes", "ntasks", "ntasks-per-node") and number is not None and number > 1:
            number, why = None, "asks for several processes, which only Slurm starts"
        if number is None:
            where = f"{name}:{one.line}: `{one.text}`"
            meant = "" if one.is_known else did_you_mean(one.option, KNOWN)
            raise NotSupportedError(f"{where} {why}", hint=_HINTS.get(one.option, meant or _ELSEWHERE))
        numbers[one.option] = number
    cpus = int(numbers.get("cpus-per-task", _CPU))
    gpus = max((int(numbers.get(o, 0)) for o in ("gpus", "gres", "gpus-per-node", "gpus-per-task")), default=0)
    memory = numbers.get("mem") or numbers.get("mem-per-cpu", 0) * cpus or numbers.get("mem-per-gpu", 0) * gpus
    return Resource(cpus, gpus, int(memory or _MEM_MB * cpus)), int(numbers.get("time", 0))


def _refuse_steps(text: str, name: str) -> None:
    for number, line in enumerate(text.split("\n"), 1):
        if _STEP.search(_NO_CODE.sub("''", line)):
            raise NotSupportedError(f"{name}:{number}: `{line.strip()[:60]}` is a Slurm command", hint=_ELSEWHERE)


# -- values ----------------------------------------------------------------------------------------------


def _whole(text: str) -> int | None:
    """``4``, or the minimum of a range such as ``1-2``."""
    found = re.fullmatch(r"(\d{1,6})(?:-\d{1,6})?", text.strip())
    return int(found[1]) if found else None


def _megabytes(text: str) -> float | None:
    """``4G``; None for 0, by which Slurm means all memory of a node."""
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", text.strip(), re.IGNORECASE)
    return float(found[1]) * _UNITS[found[2].upper()] or None if found else None


def _gpus(text: str) -> int | None:
    """``2``, ``a100:2`` or ``gpu:a100:2``; None for several GPU types."""
    found = re.fullmatch(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d{1,4})", text.strip())
    return int(found[1]) if found else 1 if text.strip() == "gpu" else None


def seconds(text: str) -> int | None:
    """Parse a time limit: https://slurm.schedmd.com/sbatch.html#OPT_time. 0 means no limit, None is invalid.

    >>> [seconds(t) for t in ("90", "90:30", "2:00:00", "1-0", "1-12:30", "UNLIMITED", "soon")]
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
    "time": seconds,
}
