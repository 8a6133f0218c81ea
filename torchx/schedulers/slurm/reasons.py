"""Tables: Slurm's states to torchx's, and a sentence for each reason that keeps a job pending or ends it.

States: https://slurm.schedmd.com/job_state_codes.html. Reasons, by the names that ``squeue`` prints:
https://slurm.schedmd.com/job_reason_codes.html.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchx.specs.api import AppState

SLURM_STATES: Mapping[str, AppState] = {
    "BOOT_FAIL": AppState.FAILED,
    "CANCELLED": AppState.CANCELLED,
    "COMPLETED": AppState.SUCCEEDED,
    "COMPLETING": AppState.RUNNING,
    "CONFIGURING": AppState.PENDING,
    "DEADLINE": AppState.FAILED,
    "EXPEDITING": AppState.PENDING,
    "FAILED": AppState.FAILED,
    "LAUNCH_FAILED": AppState.FAILED,
    "NODE_FAIL": AppState.FAILED,
    "OUT_OF_MEMORY": AppState.FAILED,
    "PENDING": AppState.PENDING,
    "POWER_UP_NODE": AppState.PENDING,
    "PREEMPTED": AppState.FAILED,
    "RECONFIG_FAIL": AppState.FAILED,
    "REQUEUED": AppState.PENDING,
    "REQUEUE_FED": AppState.PENDING,
    "REQUEUE_HOLD": AppState.PENDING,
    "RESIZING": AppState.RUNNING,
    "RESV_DEL_HOLD": AppState.PENDING,
    "REVOKED": AppState.FAILED,
    "RUNNING": AppState.RUNNING,
    "SIGNALING": AppState.RUNNING,
    "SPECIAL_EXIT": AppState.PENDING,
    "STAGE_OUT": AppState.RUNNING,
    "STOPPED": AppState.PENDING,
    "SUSPENDED": AppState.PENDING,
    "TIMEOUT": AppState.FAILED,
}

# Flags that newer releases list beside a base state, and that are more specific than it.
_OVERRIDES = ("REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD", "CONFIGURING")

ENDINGS: Mapping[str, tuple[str, str]] = {
    "BOOT_FAIL": ("node", "a node could not be booted"),
    "DEADLINE": ("timeout", "it could not end before its deadline"),
    "LAUNCH_FAILED": ("node", "it could not be started on its nodes"),
    "NODE_FAIL": ("node", "a node failed while it ran"),
    "OUT_OF_MEMORY": ("oom", "it needed more memory than it had asked for"),
    "PREEMPTED": ("preempted", "it was preempted by a job of higher priority"),
    "RECONFIG_FAIL": ("node", "a node could not be configured for it"),
    "REVOKED": ("lost", "another cluster of the federation started it"),
    "TIMEOUT": ("timeout", "it reached its time limit"),
}
"""States of failed jobs, with the class of the cause and a sentence."""

NEVER_STARTED = "the job that it waited for did not end as required: it never started"

_PLAIN: Mapping[str, str] = {
    "Priority": "jobs of higher priority go first",
    "Resources": "the nodes, CPUs, memory or GPUs that it asks for are in use",
    "Dependency": "it waits for another job to end",
    "DependencyNeverSatisfied": "the job that it depends on did not end as required: it never starts",
    "BeginTime": "its start time has not come, or it was just requeued",
    "JobHeldUser": "its owner holds it: `scontrol release` lets it go",
    "JobHeldAdmin": "an administrator holds it",
    "JobHoldMaxRequeue": "it was requeued too often and is held now: `scontrol release` lets it go",
    "JobArrayTaskLimit": "its job array has reached its limit of running tasks",
    "Licenses": "licenses that it asks for are in use",
    "Reservation": "its reservation has not begun",
    "ReservationInvalid": "its reservation has ended, or does not allow it",
    "ReservationDeleted": "its reservation was deleted",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "NodeDown": "a node that it needs is down",
    "PartitionDown": "the partition is down: jobs may be submitted but are not started",
    "PartitionInactive": "the partition is inactive: it starts no jobs",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows",
    "PartitionTimeLimit": "it asks for more time than the partition allows",
    "PartitionConfig": "the partition cannot run a job like it",
    "BadConstraints": "no node has what it asks for",
    "Constraints": "no node has what it asks for",
    "InvalidAccount": "its account does not exist, or is not its owner's",
    "InvalidQOS": "its QOS does not exist, or is not its owner's",
    "AccountNotAllowed": "its account may not use the partition",
    "QOSNotAllowed": "its QOS may not be used in the partition, or by its account",
    "AccountingPolicy": "a limit in accounting keeps it pending",
    "QOSUsageThreshold": "its owner's recent usage is above the threshold of its QOS",
    "QOSJobLimit": "its QOS has reached its limit of jobs",
    "QOSResourceLimit": "its QOS has reached a limit of resources",
    "QOSTimeLimit": "its QOS has used up its time",
    "AssociationJobLimit": "its account has reached its limit of jobs",
    "AssociationResourceLimit": "its account has reached a limit of resources",
    "AssociationTimeLimit": "its account has used up its time",
    "MaxSubmitJobsLimit": "its owner has reached the limit of submitted jobs",
    "MaxMemPerLimit": "it asks for more memory per CPU or node than the partition allows",
    "Cleaning": "its last run is being cleaned up",
    "Prolog": "the prolog of its nodes is running",
    "BurstBufferOperation": "an operation of its burst buffer failed",
    "BurstBufferResources": "its burst buffer is in use",
    "BurstBufferStageIn": "its burst buffer is being filled",
    "BlockMaxError": "its block of nodes has too many errors",
    "BlockFreeAction": "its block of nodes is being freed",
    "DeadLine": "it cannot end before its deadline",
    "Deadline": "it cannot end before its deadline",
    "FedJobLock": "it is being taken over by a cluster of the federation",
    "FrontEndDown": "no front end node is up",
    "MaxPoweredNodes": "the limit of powered-up nodes is reached",
    "MaxPoweredUpNodes": "the limit of powered-up nodes is reached",
    "NvidiaImexChannels": "its GPUs need a channel between nodes (IMEX), and none is free",
    "NodeReboot": "a node is being rebooted for it",
    "PowerNotAvail": "there is not enough power for it",
    "PowerReserved": "power is reserved for other jobs",
    "SchedDefer": "its partition starts jobs only after the scheduler has considered all of them",
    "Scheduling": "the scheduler is considering it",
    "ReservationDelHold": "its reservation was deleted, and it is held: `scontrol release` lets it go",
    "MpiPortsBusy": "the ports that MPI needs on its nodes are in use",
    "InvalidReason": "Slurm has no reason for it",
    "InvaildReason": "Slurm has no reason for it",  # so spelt in some releases
    "InactiveLimit": "it was inactive for too long",
    "JobLaunchFailure": "it could not be started on its nodes",
    "NonZeroExitCode": "it ended with an exit code other than 0",
    "OutOfMemory": "it needed more memory than it had asked for",
    "RaisedSignal": "a signal ended it",
    "SystemFailure": "Slurm itself, the file system or the network failed",
    "TimeLimit": "it reached its time limit",
    "BootFailure": "a node could not be booted",
    "launch_failed_requeued_held": "it could not be started on its nodes, and is held: `scontrol release` lets it go",
    "job_requeued_in_held_state": "it was requeued and is held: `scontrol release` lets it go",
    "user_env_retrieval_failed_requeued_held": "its user's environment could not be read, and it is held",
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions": (
        "the nodes that could run it are down, drained or reserved for jobs of higher priority"
    ),
}

# Accounting limits are families: who has the limit, what it applies to, and what it counts.
_OWNERS = (("QOS", "its QOS"), ("Assoc", "its account"), ("", "its QOS"))
_SCOPES = {
    "GrpSubmitJobs": "has reached its limit of queued jobs",
    "GrpJobs": "has reached its limit of running jobs",
    "GrpWall": "has used up its time",
    "MaxWallDuration": "allows less time per job",
    "MinCpuNotSatisfied": "requires more CPUs per job",
}
_THINGS = {
    "BB": "burst buffers",
    "Billing": "billing",
    "CPU": "CPUs",
    "Cpu": "CPUs",
    "Energy": "energy",
    "GRES": "GPUs or other generic resources",
    "License": "licenses",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "Unknown": "a resource",
}
_PER = {"User": "user", "Account": "account", "Job": "job", "Node": "node", "": "user"}


def app_state(slurm_state: str | Iterable[str]) -> AppState:
    """Slurm's state as torchx's; newer releases report a base state and flags. Unknown states become UNKNOWN.

    >>> app_state("CANCELLED by 1000"), app_state(["PENDING", "REQUEUED"]), app_state("WARPED")
    (CANCELLED (6), PENDING (2), UNKNOWN (7))
    """
    return SLURM_STATES.get(base_state(slurm_state), AppState.UNKNOWN)


def base_state(slurm_states: str | Iterable[str]) -> str:
    """Return the most specific one of Slurm's states; an unknown state is returned unchanged.

    >>> base_state(["COMPLETED", "COMPLETING"]), base_state("CANCELLED+")
    ('COMPLETED', 'CANCELLED')
    """
    given = [slurm_states] if isinstance(slurm_states, str) else [str(s) for s in slurm_states]
    names = [words[0].rstrip("+").upper() for text in given if (words := text.split())]
    for name in (*_OVERRIDES, *names):
        if name in names and (name in SLURM_STATES) and (name != "COMPLETING" or len(names) == 1):
            return name
    return names[0] if names else ""


def get_appstate_from_job(job: dict[str, object]) -> AppState:
    """Return the state of a job in ``squeue --json``: a string, or a list in newer releases.

    >>> get_appstate_from_job({"job_state": ["RUNNING"]})
    RUNNING (3)
    """
    state = job.get("job_state")
    return app_state([str(s) for s in state] if isinstance(state, list) else str(state))


def reason_sentence(reason: str) -> str:
    """Return the meaning of a reason; empty if it has none.

    >>> reason_sentence("QOSMaxGRESPerUser")
    'its QOS allows no more GPUs or other generic resources per user'
    >>> reason_sentence("ReqNodeNotAvail, UnavailableNodes:n3")
    'a node that it needs is down, drained or reserved: n3'
    """
    reason = reason.strip().strip("()")
    code, _, rest = reason.partition(", ")
    # Some reasons are whole sentences, with underscores or, in newer releases, blanks.
    whole = reason.replace(" ", "_")
    code = whole if whole in _PLAIN or code.startswith("Nodes") else code.partition(":")[0]
    if code in ("", "None", "N/A", "WaitingForScheduling"):
        return ""
    if code in _PLAIN:
        nodes = rest.partition("UnavailableNodes:")[2].strip(" ,")
        return f"{_PLAIN[code]}: {nodes}" if nodes else _PLAIN[code]
    return _limit_sentence(code) or f"Slurm's reason is `{reason.strip()}`"


def _limit_sentence(code: str) -> str:
    """Return the meaning of ``QOSGrpCpuLimit``, ``AssocMaxGRESPerJob``, ``MaxJobsPerAccount`` and so on;
    empty for others.
    """
    prefix, owner = next(pair for pair in _OWNERS if code.startswith(pair[0]))
    name = code.removeprefix(prefix).removesuffix("Limit")
    for scope, text in _SCOPES.items():
        if name.startswith(scope):
            return f"{owner} {text}"
    kind, name = name[:3], name[3:]
    inner, _, per = name.partition("Per")
    who = _PER.get(per, "job")
    if kind == "Max" and inner in ("Jobs", "SubmitJob", "SubmitJobs"):
        return f"{owner} allows no more {'running' if inner == 'Jobs' else 'submitted'} jobs per {who}"
    counted = inner.removesuffix("Minutes").removesuffix("Mins")  # the one with accounts and users, the other without
    thing = _THINGS.get(counted.removesuffix("Run"))
    if thing is None:
        return ""
    if counted != inner:
        thing = f"minutes of {thing}"
    if kind == "Grp":
        return f"{owner} has reached its limit of {thing}"
    if kind == "Max":
        return f"{owner} allows no more {thing} per {who}"
    return f"{owner} requires more {thing} per job" if kind == "Min" else ""
