"""Classifies a failure: one of :data:`CLASSES`, and the line that decided it.

Two rules prevent that a user's bug is taken for a failure that a retry would fix. Messages of the *system* (Slurm, the
kubelet, the engine) are trusted. Of the *program's* output, only exceptions raised by PyTorch and the C library count:
an exception raised by the user's own code is an ``error``, whatever its text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchx.schedulers.kit.failures.tracebacks import Link, find_traces, read_exception
from torchx.specs.failures import Failure
from torchx.specs.wishes import retries

CLASSES = (*retries.CLASSES, "cancelled")
"""The classes of causes.

``error``: the user's program failed by itself; ``oom``: the host or the job ran out of memory; ``gpu_oom``: a GPU ran
out of memory; ``preempted``: another job preempted it; ``node``: the machine failed; ``timeout``: it reached a time
limit of the scheduler; ``network``: a collective or a rendezvous lost a peer or timed out; ``image``: the image could
not be pulled or started; ``quota``: a quota was exceeded; ``lost``: its exit code is not known; ``cancelled``: it was
asked to end; ``unknown``.
"""

# Messages of systems; the first class with a match counts. Slurm: https://slurm.schedmd.com/job_state_codes.html;
# LSF: the termination reasons of `bhist -l`; Kubernetes: the reasons of the kubelet and of
# https://kubernetes.io/docs/concepts/workloads/pods/disruptions/; AWS: statusReason, FailureReason; the Linux kernel.
_SAID = {
    "lost": r"ContainerStatusUnknown|TERM_ZOMBIE|TERM_UNKNOWN",
    "oom": (
        r"OOMKilled|OutOfMemoryError|OUT_OF_MEMORY|TERM_MEMLIMIT|TERM_SWAP|\boom[-_ ]?kill|OOM Killed"
        r"|[Ee]xceeded (?:job |step |virtual )?memory limit|out[- ]of[- ]memory|Cannot allocate memory"
        r"|low on resource: memory|Killed process \d+ \("
    ),
    "image": (
        r"ImagePullBackOff|ErrImage|InvalidImageName|ImageInspectError|CannotPull|manifest unknown"
        r"|Cannot pull algorithm container|pull access denied|[Ff]ailed to pull image|[Nn]o such image"
        r"|exec format error|from daemon: .*(?:/v2/|reference format)|no match for platform|toomanyrequests"
    ),
    "preempted": (
        r"DUE TO PREEMPTION|\bPREEMPTED\b|\b[Pp]reempt(?:ed|ing)\b|PreemptionByScheduler|EvictionByEvictionAPI"
        r"|TERM_(?:PREEMPT|LOAD|RC_RECLAIM|REQUEUE_RC|MC_RECALL)|SpotInterruption|\b[Ss]pot\b.*\binterrupted"
    ),
    "timeout": (
        r"DUE TO TIME LIMIT|\bTIMEOUT\b|\bDEADLINE\b|DeadlineExceeded|MaxRuntimeExceeded"
        r"|TERM_(?:RUNLIMIT|CPULIMIT|DEADLINE|WINDOW)|MaxWaitTimeExceeded|attempt duration exceeded timeout"
    ),
    "node": (
        r"NODE_FAIL|DUE TO NODE FAILURE|Node failure on|BOOT_FAIL|LAUNCH_FAILED|NodeLost|NodeShutdown"
        r"|imminent node shutdown|TerminationByKubelet|DeletionByTaintManager|DeletionByPodGC"
        r"|UnexpectedAdmissionError|OutOf(?:cpu|memory|pods)\b|low on resource|Host EC2 .*terminated"
        r"|\bXid\b.*: (?:48|62|63|64|74|79|92|94|95|119|120|140),|GPU is lost|node had condition|NodeNotReady"
        r"|TaintManagerEviction|Task launch for .* failed on node|DockerTimeoutError|CannotInspectContainer"
    ),
    "quota": (
        r"[Ee]xceeded quota|[Qq]uota ?[Ee]xceeded|ResourceLimitExceeded|Disk quota exceeded"
        r"|TERM_(?:THREAD|PROCESS)LIMIT|(?:EmptyDir volume|ephemeral (?:local )?storage) .*exceeds"
    ),
    "error": (
        r"CreateContainer|RunContainerError|StartError|ContainerCannotRun|PostStartHookError|CannotStartContainer"
        r"|CannotCreateContainer|TERM_CWD_NOTEXIST|TERM_PRE_EXEC_FAIL|^AlgorithmError"
    ),
    "cancelled": r"\bCANCELLED\b|[Cc]ancell?ed by|TERM_(?:FORCE_)?(?:OWNER|ADMIN)",
}

_NAMED = r"(?:[\w.:]+(?:\.|::))?"
_ANY_RUNTIME = r"(?:(?:[\w.]+\.)?(?:Runtime|Accelerator|DistBackend|Dist)Error|c10::\w*Error|std::runtime_error)"
_GPU = r"(?:CUDA|HIP|XPU|MPS backend|NPU)"
# Exceptions of PyTorch, gloo, NCCL, CUDA, numpy and the C library: patterns of `Name: text`.
_RAISED = (
    ("gpu_oom", rf"{_NAMED}OutOfMemoryError: (?:{_GPU}|Allocation on device)"),
    ("gpu_oom", rf"{_ANY_RUNTIME}: {_GPU} out of memory"),
    ("gpu_oom", rf"{_ANY_RUNTIME}: (?:CUDA|HIP|cuda) (?:\w+ )?error(?: \(2\) )?: out of memory"),
    ("gpu_oom", r"cupy\S*OutOfMemoryError|[\w.]*Error: (?:.*CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation)"),
    ("gpu_oom", rf"{_ANY_RUNTIME}: .*(?:CUBLAS|CUDNN|HIPBLAS)_STATUS_ALLOC_FAILED"),
    ("gpu_oom", rf"{_ANY_RUNTIME}: NCCL error in(?s:.*)Cuda failure (?:\d+ )?'out of memory'"),
    ("gpu_oom", r"[\w.]*XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory"),
    ("gpu_oom", r"[\w.]*ResourceExhaustedError: (?s:.*)OOM when allocating tensor"),
    ("oom", r"(?:[\w.]+\.)?(?:_?Array|Arrow)?MemoryError\b|std::bad_alloc\b|java\.lang\.OutOfMemoryError\b"),
    ("oom", r"ray\.exceptions\.OutOfMemoryError\b"),
    ("oom", r"RuntimeError: .*DefaultCPUAllocator: (?:can't|not enough)"),
    ("oom", r"(?:OS|Runtime|IO|BlockingIO)Error: .*Cannot allocate memory"),
    ("oom", r"RuntimeError: unable to (?:allocate shared memory|write to file </torch_|mmap \d+ bytes)"),
    ("oom", r"RuntimeError: (?s:.*)(?:out of|Insufficient) shared memory"),
    ("node", rf"{_ANY_RUNTIME}: (?s:.*)(?:CUDA error: |Cuda failure (?:\d+ )?')uncorrectable (?:ECC|NVLink) error"),
    ("node", rf"{_ANY_RUNTIME}: (?s:.*)(?:CUDA error|Error 802): system not yet initialized"),
    ("node", r"[\w.]*NVMLError_GpuIsLost: "),
    ("error", rf"{_ANY_RUNTIME}: (?s:.*)CUDA error: "),
    ("quota", r"OSError: \[Errno 122\]"),
    ("error", r"[\w.]*RendezvousParameterError\b"),
    ("error", r"[\w.]*: (?s:.*)(?:ncclInvalidUsage|ncclInvalidArgument|ncclUnhandledCudaError|unhandled cuda error)"),
    ("network", r"(?:[\w.]+\.)?Rendezvous\w+Error\b|(?:torch\.distributed\.)?Dist(?:Network|Store)Error\b"),
    ("network", rf"{_ANY_RUNTIME}: (?s:.*)NCCL error in: \S*(?:torch|c10d)/"),
    ("network", rf"{_ANY_RUNTIME}: (?s:.*)Watchdog caught collective operation timeout: WorkNCCL"),
    ("network", rf"{_ANY_RUNTIME}: (?s:.*)NCCL watchdog thread terminated with exception: NCCL error"),
    ("network", rf"{_ANY_RUNTIME}: (?s:.*)NCCL communicator was"),
    ("network", r"(?:torch\.distributed\.DistBackendError|c10::Dist\w+): (?s:.*)(?:NCCL|watchdog|[Tt]imed? ?out)"),
    ("network", r"RuntimeError: (?:Gloo connectFullMesh failed|\[Rank \d+\].* failed to pass monitoredBarrier)"),
    ("network", r"RuntimeError: Rank \d+ (?:failed to pass|timed out in) monitoredBarrier"),
    ("network", r"RuntimeError: \[\S*gloo\S*:\d+\] (?:Connection |Timed out |Application timeout )"),
    ("network", r"RuntimeError: \[\S*gloo\S*:\d+\] (?:Read error|writev|connect)"),
    ("network", r"RuntimeError: Connection closed by peer\b"),
    ("cancelled", r"[\w.]*SignalException: Process \d+ got signal|KeyboardInterrupt\b"),
    ("unknown", r"[\w.]*ProcessExitedException: process \d+ terminated with signal SIGKILL"),
    ("unknown", r"RuntimeError: DataLoader worker \(pid\(?s?\)? ?\d+\) is killed by signal: Killed"),
)
# Lines of a program that ends without an exception.
_LINES = (
    ("gpu_oom", rf"(?:{_GPU}) out of memory|CUDA error: out of memory"),
    ("oom", r"(?:.*: )?fork: (?:retry: )?Cannot allocate memory|.*: Cannot allocate memory$"),
    ("oom", r"(?:Exception in thread .* )?java\.lang\.OutOfMemoryError|memory allocation of \d+ bytes failed"),
    ("oom", r"fatal error: runtime: out of memory|FATAL ERROR: .*JavaScript heap out of memory"),
    ("image", r".*(?:cannot execute binary file: )?[Ee]xec format error$"),
    ("node", r".*CUDA error: uncorrectable (?:ECC|NVLink) error|NVRM: Xid .*: (?:48|74|79|94|95),"),
    ("node", r"Unable to determine the device handle for GPU.*GPU is lost"),
    ("network", r".*\[Rank \d+\] Watchdog caught collective operation timeout: WorkNCCL"),
    ("network", r".*(?:ProcessGroupNCCL watchdog hang|ProcessGroupNCCL's watchdog got stuck)"),
    ("network", r"(?:torch\.distributed|c10)[.:]+Dist(?:Backend|Network|Store)Error: "),
    ("cancelled", r"KeyboardInterrupt$"),
)
_VAGUE = ("", "unknown", "lost", "cancelled")
_BY_SIGNAL = {
    "SIGTERM": "cancelled",
    "SIGINT": "cancelled",
    "SIGHUP": "cancelled",
    "SIGQUIT": "cancelled",
    "SIGKILL": "unknown",
    "SIGXCPU": "timeout",
}
# Exceptions that may have any cause: `network` if they come from torch.distributed.
_UNDECIDED = (
    r"(?:[\w.]+\.)?(?:Connection\w*|Timeout|BrokenPipe|EOF)Error\b|.*\bEmpty\b"
    r"|RuntimeError: (?i:.*(?:socket|timed out|connect|address already in use|broken pipe|stop_waiting))"
)
_LOST_PEER = (
    r"(?:RuntimeError|Connection\w*Error|BrokenPipeError): (?s:.*)"
    r"(?:Connection (?:closed|reset) by peer|Connection refused|Broken pipe)|[\w.]*ChildFailedError\b"
)


def classify(failure: Failure, said: str = "") -> tuple[str, str]:
    """The class of a failure, by the program's output and by what the system ``said`` about the end of the process.

    The second value is the line that decided it; empty if the exit code or nothing did.

    >>> from torchx.specs.failures import Failure
    >>> classify(Failure("ValueError: NCCL is not preempted", 1))
    ('error', 'ValueError: NCCL is not preempted')
    >>> classify(Failure(signal="SIGKILL"), "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.")
    ('oom', 'slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.')
    """
    lines = said.splitlines()
    for kind, pattern in _SAID.items():
        if kind == "cancelled" and (failure.kind or _by_program(failure)[0]) not in _VAGUE:
            continue  # the rest of a job is cancelled after one replica has failed by itself
        for line in lines:
            of_program = kind != "error" and line.startswith("AlgorithmError")  # SageMaker quotes the program
            if re.search(pattern, line) and not of_program:
                return kind, line.strip()
    if failure.kind:
        return failure.kind, failure.evidence
    kind, line = _by_program(failure)
    return ("unknown", said.strip().partition("\n")[0]) if kind == "lost" and said.strip() else (kind, line)


def is_aftermath(failure: Failure) -> bool:
    """Whether a replica seems to have failed only because of another one: it lost its peer, or was asked to end.

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
    """The exceptions of the failure, the original one first; without frames if there is no traceback."""
    traces = find_traces(failure.traceback.splitlines())
    if traces:
        return traces[-1].links
    link = read_exception(failure.message)
    return (link,) if link is not None else ()


def _of_link(link: Link) -> str:
    """The class of one exception; empty if it is not decisive."""
    if _is_users(link):
        return "error"
    said = str(link)
    for kind, pattern in _RAISED:
        if re.match(pattern, said):
            return "error" if kind == "network" and _is_raised(link) and "/torch/" not in link.file else kind
    if re.match(_UNDECIDED, said):
        return "network" if "torch/distributed/" in link.file else ""
    return "error"


def _is_users(link: Link) -> bool:
    """Whether the user's own code raised it."""
    library = "site-packages/" in link.file or "dist-packages/" in link.file or "/lib/python3" in link.file
    return not library and _is_raised(link)


def _is_raised(link: Link) -> bool:
    """Whether a ``raise`` or ``assert`` statement raised it, not C++ code."""
    return re.match(r"(?:raise|assert)\b", link.code) is not None


def _line(said: str, kind: str) -> str:
    """The decisive line of a message."""
    for known, pattern in (*_LINES, *_RAISED):
        if known == kind:
            for line in said.splitlines():
                if re.match(pattern, line):
                    return line
    return _first(said)


def _first(text: str) -> str:
    return text.strip().partition("\n")[0]
