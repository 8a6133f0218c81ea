"""What differs on purpose from torchx 0.7: rows of a table of the page about other launchers.

A row with a program is tried on both sides by ``tests/backends/compat/test_differences.py``.
"""

from __future__ import annotations

from typing import NamedTuple

_DRYRUN = """\
from torchx.runner import get_runner
from torchx.specs import *
amounts = {{"resource": Resource(1, 0, 1)}}
role = Role("r", "", entrypoint="true", **{{**amounts, {fields}}})
try:
    get_runner().dryrun(AppDef("a", [role]), "slurm")
    print("accepted")
except BaseException as e:
    print(type(e).__name__)
"""


class Row(NamedTuple):
    """A difference.

    Attributes:
        program: lines for a shell in an empty folder with an empty home; Python if it begins with ``from``.
        prints: what these print, among other things: by version 0.7, and by this one.
    """

    what: str
    before: str
    now: str
    why: str
    program: str = ""
    prints: tuple[str, str] = ("", "")


ROWS = (
    Row(
        "without `-s`",
        "`local_docker`",
        "`local_cwd`, or `[cli:run] scheduler` of `.torchxconfig`",
        "a first job runs without an engine and an image",
        "torchx run --dryrun utils.echo 2>&1 | tr -d '\\n'",
        ("", "request to local_cwd"),
    ),
    Row(
        "`torchx run` of a local job",
        "waits for its end; exits with 1 if it fails",
        "on a terminal it follows the output, and Ctrl-C detaches; else it returns at once; `--wait` waits",
        "a job outlives what started it, and its logs stay",
        "torchx run -s local_cwd utils.sh false > /dev/null 2>&1; echo exit $?",
        ("exit 1", "exit 0"),
    ),
    Row(
        "`utils.sh` with one word",
        "the name of a program",
        "a command line",
        "quotes reach the shell as typed",
        "torchx run --wait -s local_cwd utils.sh 'exit 3' 2>&1 | tee x; torchx log @last 2>&1; grep -c 'not found' x",
        ("not found", "0"),
    ),
    Row(
        "`torchx list` of local jobs",
        "an error",
        "those on record; without `-s`, those of all schedulers; in a pipe, columns divided by tabs",
        "programs read it",
        "torchx run --wait -s local_cwd utils.echo > /dev/null 2>&1; torchx list -s local_cwd > x 2>&1;"
        " grep -o 'SUCCEEDED\\|cannot be listed' x | head -1",
        ("cannot be listed", "SUCCEEDED"),
    ),
    Row(
        "`status`, `describe` of an unknown job",
        "exit code 1",
        "[exit code](errors.md) 3",
        "a job that failed has 1",
        "for v in status describe; do torchx $v local_cwd://a/b > /dev/null 2>&1; echo exit $?; done",
        ("exit 1\nexit 1", "exit 3\nexit 3"),
    ),
    Row(
        "`cancel`, `delete` of an unknown job",
        "silent",
        "`UnknownAppException`, [exit code](errors.md) 3",
        "a mistyped handle would look like a cancelled job",
        "torchx cancel local_cwd://a/b > /dev/null 2>&1; echo exit $?",
        ("exit 0", "exit 3"),
    ),
    Row(
        "a component that does not exist, or cannot be used",
        "exit code 1",
        "3, or 2; one line names the file, the line and the argument",
        "as all wrong input",
        "echo 'def f(a): pass' > c.py;"
        " for f in f g; do torchx run -s local_cwd c.py:$f > /dev/null 2>&1; echo exit $?; done",
        ("exit 1\nexit 1", "exit 2\nexit 3"),
    ),
    Row(
        "an unknown scheduler",
        "exit code 2",
        "3",
        "what does not exist has 3",
        "torchx run -s nosuch utils.echo > /dev/null 2>&1; echo exit $?",
        ("exit 2", "exit 3"),
    ),
    Row(
        "a wrong argument of a component, from Python",
        "`SystemExit(2)`",
        "`SpecError`, a `ValueError`; the command line still exits with 2",
        "a program or a notebook must not exit because of it",
        "from torchx.components.utils import echo\nfrom torchx.specs import materialize_appdef\n"
        "try:\n    materialize_appdef(echo, ['--foo', '1'])\nexcept BaseException as e:\n    print(type(e).__name__)",
        ("SystemExit", "SpecError"),
    ),
    Row(
        "`.torchxconfig` in the home and in the project",
        "the home's wins",
        "the project's wins",
        "the file closest to the work is the most specific, as with Git and pip",
        "printf '[slurm]\\npartition = home\\n' > ~/.torchxconfig;"
        " printf '[slurm]\\npartition = project\\n' > .torchxconfig;"
        " torchx run --dryrun -s slurm utils.echo 2>&1 | grep -o 'partition=[a-z]*' | head -1",
        ("partition=home", "partition=project"),
    ),
    Row(
        "`-cfg` with an unknown option",
        "ignored",
        "rejected, with the nearest name",
        "a typo would silently change the job",
        "torchx run --dryrun -s slurm -cfg partitoin=a utils.echo > /dev/null 2>&1; echo exit $?",
        ("exit 0", "exit 2"),
    ),
    Row(
        "default image",
        "`ghcr.io/pytorch/torchx` of its version",
        "`$TORCHX_IMAGE`; without it, a question where jobs run in containers",
        "the image of another version is not the job's",
        "python -c 'import torchx; print(torchx.IMAGE, 5)'",
        ("ghcr.io/pytorch/torchx:0.7.0 5", " 5"),
    ),
    Row(
        "mounts on Slurm without containers",
        "dropped",
        "`NotSupportedError`",
        "a job without its data would fail later, and elsewhere",
        _DRYRUN.format(fields='"mounts": [BindMount("/a", "/b")]'),
        ("accepted", "NotSupportedError"),
    ),
    Row(
        "`metadata` under the name of a scheduler",
        "ignored where it is not understood",
        "an error",
        "a toleration or an account that is dropped shows only when the job runs elsewhere",
        _DRYRUN.format(fields='"metadata": {"slurm": {"x": 1}}'),
        ("accepted", "SpecError"),
    ),
    Row(
        "`NULL_RESOURCE` on a cluster",
        "accepted",
        "rejected; a role without a resource gets the site's defaults",
        "the cluster has to know what to reserve",
        _DRYRUN.format(fields='"resource": NULL_RESOURCE'),
        ("accepted", "SpecError"),
    ),
    Row(
        "what a server would refuse: a time limit `2h` on Slurm, a port 0, two mounts at one path",
        "refused by the server, or by the node",
        "refused by the dry run",
        "no queue before the error",
        "torchx run --dryrun -s slurm -cfg time=2h utils.echo > /dev/null 2>&1; echo exit $?",
        ("exit 0", "exit 2"),
    ),
    Row(
        "names of variables with a dot, or with `=`",
        "passed on, or lost",
        "a dot is passed on; `=` is refused, on Slurm left out with a warning",
        "`execve` knows no such name",
    ),
    Row(
        "replicas on LSF",
        "always with `docker run`",
        "plain processes; `docker=true` requests a container",
        "few LSF hosts let users call Docker, and those that do can enable it",
    ),
    Row(
        "`ENTRYPOINT` of an image",
        "kept by Docker and AWS Batch, replaced elsewhere",
        "replaced by the role's command, except on AWS Batch; `local_docker` keeps it for an entrypoint that is empty"
        " or begins with `-`, and with `keep_entrypoint`",
        "the same role runs the same program everywhere",
    ),
)


def page() -> str:
    """Return the table."""
    lines = [f"| {row.what} | {row.before} | {row.now} | {row.why} |" for row in ROWS]
    return "\n".join(["| | 0.7 | now | because |", "|---|---|---|---|", *lines])
