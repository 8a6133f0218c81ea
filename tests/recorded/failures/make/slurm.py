"""Jobs of a real Slurm cluster; needs ``python -m tests.backends.parts up slurm``."""

from __future__ import annotations

from tests.recorded.failures.make.cases import Case

# What sbatch's script would be; the job's state is what Slurm says of it.
RUN = """\
printf '%s\\n' '#!/bin/bash' "export PATH=$PATH" "cd $PWD" {script} > run.sh
id=$(sbatch --parsable -o out -e err {options} run.sh)
{then}
while state=$(scontrol show job -o $id | grep -o 'JobState=[A-Z_]*') && case $state in *PEND*|*RUN*|*COMPLETING*) ;; *) false;; esac
do sleep 0.5; done
scontrol show job -o $id | grep -o 'ExitCode=[0-9:]*' > code
echo ${{state#JobState=}} > said
sleep 1; cat err >&2; cat out
code=$(sed 's/ExitCode=//; s/:.*//' code); signal=$(sed 's/.*://' code)
[ "$signal" = 0 ] || kill -$signal $$
exit $code
"""


def run(script: str, options: str = "", then: str = "") -> str:
    """A script that submits a job, and waits for its end."""
    return RUN.format(script=f"'{script}'", options=options, then=then)


def cases() -> list[Case]:
    sleep = "echo step 5; exec srun sleep 300"
    wait = "until scontrol show job -o $id | grep -q JobState=RUNNING; do sleep 0.2; done; sleep 2"
    eat = 'exec srun python3 -c "import time; x = [bytearray(1 << 22) for _ in range(99)]; time.sleep(60)"'
    down = (
        f"{wait}; scontrol update nodename=n3 state=down reason=test; sleep 2; scontrol update nodename=n3 state=resume"
    )
    return [
        Case(id="value", by="sh", program=run('exec srun python3 -c "raise ValueError(5)"'), said=("ValueError: 5",)),
        Case(id="exit-3", by="sh", program=run('exec srun sh -c "echo no data in /data >&2; exit 3"'), said=("no data in /data",)),
        Case(id="exit-batch", by="sh", program=run("echo no data in /data >&2; exit 3"), said=("no data in /data",)),
        Case(id="segv", by="sh", program=run('exec srun python3 -c "import ctypes; ctypes.string_at(0)"')),
        Case(id="two-tasks", by="sh",
             program=run('exec srun -n2 --kill-on-bad-exit=1 python3 -c "import os, time; time.sleep(9 * int(os.environ[\\"SLURM_PROCID\\"])); '
                         'raise ValueError(5)"', "-n2"), said=("ValueError: 5",), aftermath=True),
        Case(id="no-program", by="sh", program=run("exec srun nosuch-program --version"), said=("nosuch-program",)),
        Case(id="no-folder", by="sh", program=run("cd /nosuch-folder && exec srun true"), said=("/nosuch-folder",)),
        Case(id="memory", by="sh", program=run(eat, "--mem=100"), kind="oom"),
        Case(id="scancel", by="sh", program=run(sleep, then=f"{wait}; scancel $id"), kind="cancelled"),
        Case(id="scancel-batch", by="sh", program=run("echo step 5; sleep 300", then=f"{wait}; scancel $id"), kind="cancelled"),
        Case(id="time-limit", by="sh", program=run(sleep, "--time=1"), kind="timeout"),
        Case(id="node-down", by="sh", program=run(sleep, "--no-requeue -w n3", down), kind="node"),
    ]  # fmt: skip
