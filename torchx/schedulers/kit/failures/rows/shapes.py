"""Shapes of lines: what is noise, what ends a message, what a crash or a system begins its lines with."""

from __future__ import annotations

# Lines that never show the cause: logging of torch and Slurm, warnings, progress bars, rules, traces of the shell.
NOISE = (
    r"[IW]\d{4} \d\d:\d\d:\d\d|\[[IW]\d{4} \d\d:\d\d:\d\d|[IWE]\d{4} [\d:.]+ +\d+ torch/distributed/|NOTE: Redirects"
    r"|Setting OMP_NUM_THREADS environment|[^:]{1,300}:\d+: \w*Warning: |ResourceWarning: Enable|\s*warnings\.warn\(|.*\d%\|.*\||[-=*+_#~]{3,}$|\++ "
    r"|note: run with `RUST_BACKTRACE|(?:srun|sbatch|slurmd|slurmstepd\S*): |make(?:\[\d+\])?: \*\*\*|exit status \d+$"
    r"|Set the environment variable HYDRA_FULL_ERROR|See '.* --help'|Run '.* --help' for|Execution halted|Pass --help"
    r"|compilation terminated\.|ninja: build stopped|usage: |Usage: "
    r"|Aborted \(core dumped\)$|.*\b(?:INFO|DEBUG)\b|Process \S+:$|Extension modules: |frame #\d+: |<omitting python"
    r"|Exception raised from |\s+at \S|\s+@ +0x|Node\.js v\d|\[\w{3} \w{3} [ \d]\d [\d:]{8} \d{4}\]$"
)
# How far a program has come: `step 1`, `Epoch 3/10 loss=0.1`. It is the last line of many, and never why they ended.
PROGRESS = r"\W{0,3}(?i:step|epoch|iter(?:ation)?|batch)\W{0,3}\d+(?:\W|\d|of\b|\w+[=:] ?[-\d.e]+)*"
# Messages of programs that end without a Python exception. The first such line is the message of the failure.
FATAL = (
    r"Fatal Python error: |terminate called |panic: |thread '.*' panicked at |Exception in thread \"|fatal error: "
    r"|.*: Assertion [`'].* failed|.*\bCheck failed: |==\d+==ERROR: \w+Sanitizer|\*\*\* \w+|FATAL ERROR: "
    r"|.*Watchdog caught collective operation|.*ProcessGroupNCCL.* watchdog |(?:free|malloc|realloc)\(\): "
    r"|.*\bdouble free or|corrupted |munmap_chunk"
)
# PyTorch's threads may print this while the interpreter exits after an exception.
ABORTED_AT_EXIT = "terminate called without an active exception"
ERROR_WORDS = (
    r"(?i).*\b(?:error|fatal|failed|cannot|can't|denied|not found|no such|exception|invalid|segmentation fault)"
)
KERNEL = (
    r"(?:oom-kill:constraint=|(?:Memory cgroup out|Out) of memory: |NVRM: |amdgpu |mce: |nvidia-nvswitch\d*: "
    r"|\S+ invoked oom-killer)"
)
UNIT = r"(?:\S+ +){0,4}systemd(?:-oomd)?\[\d+\]: |systemd-oomd |=>> PBS: |\S+\.(?:service|scope): "
ERROR_HEAD = r"(?:\S+: )?(?i:fatal error|error|fatal|critical)\b[: ]"
SYSTEM = rf"(?:srun|sbatch|slurmd|slurmstepd\S*): |(?:\[[^\]]{{1,40}}\] |(?:\S+ +){{0,4}}kernel: )*{KERNEL}|{UNIT}"
STEP_NEWS = (
    r"srun: (?:error: \S+: tasks? \S+: (?!Out Of Memory)|Job step aborted|launch/slurm|Force Terminated|got SIG"
    r"|forcing job)"
)
SNAKEMAKE = r"RuleException:$|Error in rule \w+:$"  # begins its report of a job that failed
# Lines of a message that PyTorch appends to every error of a GPU.
ADVICE = (
    r"Search for `\w+' in https?://|\w+ kernel errors might be asynchronously reported|For debugging consider passing "
    r"|(?:Device-side assertion tracking was not enabled|Compile with `TORCH_USE_\w+` to enable) "
)
ASSERTION = r".*\bthread: \[[\d,]+\] (Assertion .* failed)"
CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
# Precedes a traceback in the message of another one: of a DataLoader's worker, torch.multiprocessing, a process pool.
NESTED = r'"""|.*terminated with the following error:|.*Exception ranks:.*'
# Tracebacks that do not end a program.
IGNORED = r"Exception ignored in|--- Logging error ---|Error in atexit\._run_exitfuncs|Exception ignored while"
# Lines that end the message of an exception: output of other programs and of logging.
FOREIGN = (
    r"\[?\d{4}-\d\d-\d\d[ T_]\d\d:\d\d|\[?\d\d:\d\d:\d\d|\[?[IWEF]\d{4} \d\d:\d\d:\d\d"
    r"|(?-i:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|error: |\S+:\d+: \w*Warning: |Exception ignored|Exception in thread"
    r"|(?:srun|slurmstepd\S*|slurmd|sbatch|mpirun|wandb|torchx): |Fatal Python error|terminate called"
    r"|\S+: line \d+: |exception raised from |frame #\d+|[-=*]{20,}$|Process \S+:$"
)
# Exceptions that are informative without a message, so that a chain may begin with them. `queue.Empty` is not.
BARE = ("AssertionError", "MemoryError", "NotImplementedError", "RecursionError", "ValueError", "RuntimeError")
