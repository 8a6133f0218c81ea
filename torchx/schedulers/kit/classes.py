"""The class of a failure: whose doing it was, in one word out of :data:`CLASSES`, and the line that says so.

Two rules keep a user's bug from being taken for something that a retry would mend. What the *system* said (Slurm, the
kubelet, the engine) is trusted as it is. Of what the *program* said, only the exceptions that PyTorch and the C library
raise themselves count: what a user's own line has raised is ``error``, whatever its text.
"""

from __future__ import annotations

import re

from torchx.schedulers.kit.tracebacks import Link, find_traces, read_exception

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx.specs.failures import Failure

__all__ = ["CLASSES", "classify", "is_aftermath"]

CLASSES = (
    "error",
    "oom",
    "gpu_oom",
    "preempted",
    "node",
    "timeout",
    "network",
    "image",
    "quota",
    "lost",
    "cancelled",
    "unknown",
)
"""What a cause can be.

``error``: the user's program failed by itself; ``oom``: the memory of the host, or of the job, ran out; ``gpu_oom``:
that of a GPU; ``preempted``: another job took its place; ``node``: the machine failed; ``timeout``: a time limit of the
scheduler; ``network``: a collective or a rendezvous lost a peer or waited in vain; ``image``: no program could be
started of the image; ``quota``; ``lost``: nobody knows how it ended; ``cancelled``: it was told to end; ``unknown``.
"""

# What systems say. Slurm: https://slurm.schedmd.com/job_state_codes.html; LSF: `TERM_...` of `bhist -l`; Kubernetes:
# https://kubernetes.io/docs/concepts/workloads/pods/disruptions/ and the kubelet's reasons; AWS Batch: statusReason.
_SAID = (
    ("oom", r"OOMKilled|OutOfMemoryError|OUT_OF_MEMORY|TERM_MEMLIMIT|\boom[-_ ]?kill|OOM Killed|out[- ]of[- ]memory"),
    ("oom", r"exceeded (?:job |step |virtual )?memory limit|Cannot allocate memory|Memory cgroup out of memory"),
    ("oom", r"low on resource: memory|Killed process \d+ \("),
    ("gpu_oom", r"CUDA out of memory"),
    ("preempted", r"DUE TO PREEMPTION|\bPREEMPTED\b|\bPreempt(?:ed|ing)\b|PreemptionByScheduler|TERM_PREEMPT"),
    ("preempted", r"EvictionByEvictionAPI|DeletionByTaintManager|Spot (?:instance|capacity)|\bEvicted\b.*priority"),
    ("timeout", r"DUE TO TIME LIMIT|\bTIMEOUT\b|\bDEADLINE\b|DeadlineExceeded|TERM_RUNLIMIT|TERM_CPULIMIT"),
    ("timeout", r"longer than (?:the )?specified deadline|attempt duration exceeded timeout|MaxRuntimeExceeded"),
    ("timeout", r"MaxWaitTimeExceeded|exceeded time ?limit|CPU time limit exceeded"),
    ("node", r"NODE_FAIL|DUE TO NODE FAILURE|Node failure on|BOOT_FAIL|NodeLost|NodeShutdown|TerminationByKubelet"),
    ("node", r"imminent node shutdown|Host EC2 .*terminated|UnexpectedAdmissionError|OutOf(?:cpu|memory|pods)\b"),
    ("node", r"\bXid\b.*\b(?:48|62|63|64|74|79|92|94|95|119|120|140)\b|fallen off the bus|uncorrectable ECC"),
    ("node", r"GPU is lost|LAUNCH_FAILED|TERM_LOAD|Evicted.*low on resource|DiskPressure|PodGC|TERM_ADMIN_HOST"),
    ("quota", r"exceeded quota|QuotaExceeded|ResourceLimitExceeded|Disk quota exceeded|exceeds? (?:the|your) .*quota"),
    ("quota", r"(?:Assoc|QOS)[A-Za-z]*(?:Limit|Mins)|ephemeral (?:local )?storage.* exceeds"),
    ("image", r"ImagePullBackOff|ErrImage|InvalidImageName|CannotPullContainer|manifest unknown|pull access denied"),
    (
        "image",
        r"[Ff]ailed to pull image|[Nn]o such image|exec format error|ImageInspectError|repository does not exist",
    ),
    ("cancelled", r"\bCANCELLED\b|TERM_OWNER|TERM_FORCE_OWNER|TERM_ADMIN|Terminated by user|Job was cancelled"),
)

_ANY_RUNTIME = r"(?:[\w.]+\.)?(?:RuntimeError|AcceleratorError|DistBackendError|DistError)"
_GPU = r"(?:CUDA|HIP|XPU|MPS backend|NPU)"
# What PyTorch, gloo, NCCL, CUDA, numpy and the C library say: patterns of `Name: text`.
_RAISED = (
    ("gpu_oom", rf"(?:[\w.]+\.)?OutOfMemoryError: (?:{_GPU}|Allocation on device)"),
    ("gpu_oom", rf"{_ANY_RUNTIME}: (?:{_GPU} out of memory|(?:CUDA|HIP) error: out of memory)"),
    ("gpu_oom", rf"{_ANY_RUNTIME}: .*(?:CUBLAS|CUDNN|HIPBLAS)_STATUS_ALLOC_FAILED"),
    ("gpu_oom", rf"{_ANY_RUNTIME}: NCCL error in(?s:.*)Cuda failure (?:\d+ )?'out of memory'"),
    ("gpu_oom", r"[\w.]*XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory"),
    ("gpu_oom", r"[\w.]*ResourceExhaustedError: (?s:.*)OOM when allocating tensor"),
    ("oom", r"(?:[\w.]+\.)?(?:_?Array|Arrow)?MemoryError\b|std::bad_alloc\b|java\.lang\.OutOfMemoryError\b"),
    ("oom", r"RuntimeError: .*DefaultCPUAllocator: (?:can't|not enough)"),
    ("oom", r"(?:OS|Runtime|IO|BlockingIO)Error: .*Cannot allocate memory"),
    ("oom", r"RuntimeError: unable to (?:allocate shared memory|write to file </torch_|mmap \d+ bytes)"),
    ("oom", r"RuntimeError: (?s:.*)(?:out of|Insufficient) shared memory"),
    ("node", rf"{_ANY_RUNTIME}: (?s:.*)(?:uncorrectable (?:ECC|NVLink) error|system not yet initialized)"),
    ("node", r"[\w.]*(?:NVMLError_GpuIsLost|NVMLError\w*): (?:GPU is lost|Unknown Error)"),
    ("quota", r"OSError: \[Errno 122\]"),
    ("error", r"[\w.]*RendezvousParameterError\b"),
    ("error", r"[\w.]*: (?s:.*)(?:ncclInvalidUsage|ncclInvalidArgument|ncclUnhandledCudaError|unhandled cuda error)"),
    ("network", r"(?:[\w.]+\.)?Rendezvous\w+Error\b|(?:torch\.distributed\.)?Dist(?:Network|Store)Error\b"),
    ("network", rf"{_ANY_RUNTIME}: (?:\[Rank \d+\] )?(?s:.*)(?:NCCL error in: |Watchdog caught collective operation)"),
    ("network", r"(?:torch\.distributed\.DistBackendError|c10::Dist\w+): (?s:.*)(?:NCCL|watchdog|[Tt]imed? ?out)"),
    ("network", r"RuntimeError: (?:Gloo connectFullMesh failed|\[Rank \d+\].* failed to pass monitoredBarrier)"),
    ("network", r"RuntimeError: Rank \d+ (?:failed to pass|timed out in) monitoredBarrier"),
    (
        "network",
        r"RuntimeError: (?:\[\S*gloo\S*:\d+\] )?(?:Connection (?:closed|reset) by peer\b|Timed out waiting \d+ms"
        r"|Application timeout caused pair closure|Read error|writev |.*Connection (?:refused|timed out))",
    ),
    ("network", r"RuntimeError: (?:Socket Timeout|Connection reset by peer|Broken pipe|Stop_waiting response)"),
    ("cancelled", r"[\w.]*SignalException: Process \d+ got signal|KeyboardInterrupt\b"),
    ("unknown", r"RuntimeError: DataLoader worker \(pid\(?s?\)? ?\d+\) is killed by signal: Killed"),
)
# Of the lines of a program that ends without an exception.
_LINES = (
    ("gpu_oom", rf"(?:{_GPU}) out of memory|CUDA error: out of memory"),
    ("oom", r"(?:.*: )?fork: (?:retry: )?Cannot allocate memory|.*: Cannot allocate memory$"),
    ("oom", r"std::bad_alloc|java\.lang\.OutOfMemoryError|memory allocation of \d+ bytes failed"),
    ("oom", r"fatal error: runtime: out of memory|FATAL ERROR: .*JavaScript heap out of memory"),
    ("image", r".*(?:cannot execute binary file: )?Exec format error$"),
    ("node", r".*CUDA error: uncorrectable (?:ECC|NVLink) error|.*GPU is lost|NVRM: Xid .*: (?:48|74|79|94|95),"),
    ("network", r".*\[Rank \d+\] Watchdog caught collective operation timeout: WorkNCCL"),
    ("network", r"(?:torch\.distributed|c10)[.:]+Dist(?:Backend|Network|Store)Error: "),
    ("cancelled", r"KeyboardInterrupt$"),
)
_BY_SIGNAL = {
    "SIGTERM": "cancelled",
    "SIGINT": "cancelled",
    "SIGHUP": "cancelled",
    "SIGQUIT": "cancelled",
    "SIGKILL": "unknown",
    "SIGXCPU": "timeout",
}
# Exceptions that say nothing of whose doing they are; of the user's program unless they come from torch.distributed.
_UNDECIDED = r"(?:[\w.]+\.)?(?:Connection\w*|Timeout|BrokenPipe|EOF)Error\b|.*\bEmpty\b"
_LOST_PEER = (
    r"(?:RuntimeError|Connection\w*Error|BrokenPipeError): (?s:.*)"
    r"(?:Connection (?:closed|reset) by peer|Connection refused|Broken pipe)|[\w.]*ChildFailedError\b"
)


def classify(failure: Failure, said: str = "") -> tuple[str, str]:
    """The class of a failure, and the line that decided it (empty where it was the exit code, or nothing).

    Args:
        failure: what the program left.
        said: what the system said of its end, in its own words.

    >>> from torchx.specs.failures import Failure
    >>> classify(Failure("ValueError: NCCL is not preempted", 1))
    ('error', 'ValueError: NCCL is not preempted')
    >>> classify(Failure(signal="SIGKILL"), "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.")
    ('oom', 'slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.')
    """
    lines = said.splitlines()
    for kind, pattern in _SAID:
        for line in lines:
            if re.search(pattern, line):
                return kind, line.strip()
    if failure.kind:
        return failure.kind, failure.evidence
    return _by_program(failure)


def is_aftermath(failure: Failure) -> bool:
    """Whether a replica seems to have failed only because another had: it lost its peer, or was told to end.

    >>> from torchx.specs.failures import Failure
    >>> is_aftermath(Failure("RuntimeError: Connection closed by peer [n1]:4")), is_aftermath(Failure("KeyError: 1"))
    (True, False)
    """
    if failure.signal == "SIGTERM":
        return True
    links = _links(failure)
    if any(re.match(_LOST_PEER, str(link)) for link in links):
        return all(re.match(_LOST_PEER, str(link)) or _of_link(link) == "network" for link in links)
    kind, line = _by_program(failure)
    return (kind == "network" and "EADDRINUSE" not in failure.message) or "SignalException" in line


def _by_program(failure: Failure) -> tuple[str, str]:
    links = _links(failure)
    for link in links:
        kind = _of_link(link)
        if kind:
            return kind, _line(str(link), kind)
    if links:
        return "error", _first(str(links[0]))
    for line in failure.message.splitlines():
        for kind, pattern in _LINES:
            if re.match(pattern, line):
                return kind, line
    if failure.signal:
        return _BY_SIGNAL.get(failure.signal, "error"), ""
    if failure.exit_code is None:
        return ("error", _first(failure.message)) if failure.message else ("lost", "")
    return "error", _first(failure.message)


def _links(failure: Failure) -> Sequence[Link]:
    """The exceptions of the failure, the original one first; without frames where there is no traceback."""
    traces = find_traces(failure.traceback.splitlines())
    if traces:
        return traces[-1].links
    link = read_exception(failure.message)
    return (link,) if link is not None else ()


def _of_link(link: Link) -> str:
    """The class that one exception stands for; empty where it says nothing of it."""
    if _is_users(link):
        return "error"
    said = str(link)
    for kind, pattern in _RAISED:
        if re.match(pattern, said):
            return kind
    if re.match(_UNDECIDED, said):
        return "network" if "torch/distributed/" in link.file else ""
    return "error"


def _is_users(link: Link) -> bool:
    """Whether a line of the user's own program has raised it."""
    library = "site-packages/" in link.file or "dist-packages/" in link.file or "/lib/python3" in link.file
    return bool(link.file) and not library and re.match(r"(?:raise|assert)\b", link.code) is not None


def _line(said: str, kind: str) -> str:
    """Of a message of several lines, the one that decides."""
    for known, pattern in (*_LINES, *_RAISED):
        if known == kind:
            for line in said.splitlines():
                if re.match(pattern, line):
                    return line
    return _first(said)


def _first(text: str) -> str:
    return text.strip().partition("\n")[0]
