"""Slurm's states as ours, and a sentence for each reason that holds a job or ends it.

States: https://slurm.schedmd.com/job_state_codes.html. Reasons: https://slurm.schedmd.com/job_reason_codes.html, by the
names that ``squeue`` prints.
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

# Flags that newer releases list beside a base state: they say more of a job than the state does.
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
"""States of jobs that failed, with the class of the cause and a sentence."""

_PLAIN: Mapping[str, str] = {
    "Priority": "jobs of higher priority go first",
    "Resources": "the nodes, CPUs, memory or GPUs that it asks for are in use",
    "Dependency": "it waits for another job to end",
    "DependencyNeverSatisfied": "the job that it depends on ended in another way than asked for: it never starts",
    "BeginTime": "it was asked to start later, or was just requeued",
    "JobHeldUser": "its owner holds it: `scontrol release` lets it go",
    "JobHeldAdmin": "an administrator holds it",
    "JobHoldMaxRequeue": "it was requeued too often and is held now: `scontrol release` lets it go",
    "JobArrayTaskLimit": "its job array runs as many tasks at a time as it may",
    "Licenses": "licenses that it asks for are in use",
    "Reservation": "its reservation has not begun",
    "ReservationInvalid": "its reservation cannot be used: it has ended, or is not for it",
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
    "AccountingPolicy": "a limit of the accounting holds it",
    "QOSUsageThreshold": "its QOS asks for less recent usage than its owner has",
    "QOSJobLimit": "its QOS has as many jobs as it may",
    "QOSResourceLimit": "its QOS uses as much as it may",
    "QOSTimeLimit": "its QOS has used up its time",
    "AssociationJobLimit": "its account has as many jobs as it may",
    "AssociationResourceLimit": "its account uses as much as it may",
    "AssociationTimeLimit": "its account has used up its time",
    "MaxSubmitJobsLimit": "its owner has submitted as many jobs as may be",
    "MaxMemPerLimit": "it asks for more memory for each CPU or node than the partition allows",
    "Cleaning": "what its last run left behind is being cleaned up",
    "Prolog": "the prolog of its nodes runs",
    "BurstBufferOperation": "an operation of its burst buffer failed",
    "BurstBufferResources": "its burst buffer is in use",
    "BurstBufferStageIn": "its burst buffer is being filled",
    "BlockMaxError": "its block of nodes has too many errors",
    "BlockFreeAction": "its block of nodes is being freed",
    "DeadLine": "it cannot end before its deadline",
    "Deadline": "it cannot end before its deadline",
    "FedJobLock": "it is being taken over by a cluster of the federation",
    "FrontEndDown": "no front end node is up",
    "MaxPoweredNodes": "as many nodes as may be are powered up",
    "MaxPoweredUpNodes": "as many nodes as may be are powered up",
    "NvidiaImexChannels": "its GPUs need a channel between nodes (IMEX), and none is free",
    "NodeReboot": "a node is being rebooted for it",
    "PowerNotAvail": "there is not enough power for it",
    "PowerReserved": "power is reserved for other jobs",
    "SchedDefer": "its partition starts jobs only when the scheduler has gone through all of them",
    "Scheduling": "it is being looked at",
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
        "the nodes that could run it are down, drained or kept for jobs of higher priority"
    ),
}

# Limits of accounting are families: who has the limit, for whom it counts, and what of.
_OWNERS = (("QOS", "its QOS"), ("Assoc", "its account"), ("", "its QOS"))
_SCOPES = {
    "GrpSubmitJobs": "may have no more jobs in the queue",
    "GrpJobs": "runs as many jobs as it may",
    "GrpWall": "has used up its time",
    "MaxWallDuration": "allows less time for each job",
    "MinCpuNotSatisfied": "asks for more CPUs for each job",
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
    "Unknown": "of a resource",
}
_UNCOUNTED = ("memory", "billing", "energy")
_WHO = {"User": "each user", "Account": "each account", "Job": "each job", "Node": "each node", "": "each user"}


def app_state(slurm_states: str | Iterable[str]) -> AppState:
    """A state of Slurm as ours; newer releases give a list, a base state with flags. What is not known is UNKNOWN.

    >>> app_state("CANCELLED by 1000"), app_state(["PENDING", "REQUEUED"]), app_state("WARPED")
    (CANCELLED (6), PENDING (2), UNKNOWN (7))
    """
    return SLURM_STATES.get(base_state(slurm_states), AppState.UNKNOWN)


def base_state(slurm_states: str | Iterable[str]) -> str:
    """The one of Slurm's states that says most; as it stands when it is not known.

    >>> base_state(["COMPLETED", "COMPLETING"]), base_state("CANCELLED+")
    ('COMPLETED', 'CANCELLED')
    """
    given = [slurm_states] if isinstance(slurm_states, str) else [str(s) for s in slurm_states]
    names = [words[0].rstrip("+").upper() for text in given if (words := text.split())]
    for name in (*_OVERRIDES, *names):
        if name in names and (name in SLURM_STATES) and (name != "COMPLETING" or len(names) == 1):
            return name
    return names[0] if names else ""


def appstate_from_slurm_state(slurm_state: str) -> AppState:
    """A state of Slurm as ours.

    >>> appstate_from_slurm_state("COMPLETED"), appstate_from_slurm_state("no such state")
    (SUCCEEDED (4), UNKNOWN (7))
    """
    return app_state(slurm_state)


def get_appstate_from_job(job: dict[str, object]) -> AppState:
    """The state of a job of ``squeue --json``: a string, or a list in newer releases.

    >>> get_appstate_from_job({"job_state": ["RUNNING"]})
    RUNNING (3)
    """
    state = job.get("job_state")
    return app_state([str(s) for s in state] if isinstance(state, list) else str(state))


def reason_sentence(reason: str) -> str:
    """What a reason means; empty when it says nothing.

    >>> reason_sentence("QOSMaxGRESPerUser")
    'its QOS lets each user have no more GPUs or other generic resources'
    >>> reason_sentence("ReqNodeNotAvail, UnavailableNodes:n3")
    'a node that it needs is down, drained or reserved: n3'
    """
    reason = reason.strip().strip("()")
    code, _, rest = reason.partition(", ")
    # One reason is a sentence, with underscores or, in newer releases, without.
    code = reason.replace(" ", "_") if code.startswith("Nodes") else code.partition(":")[0]
    if code in ("", "None", "N/A", "WaitingForScheduling"):
        return ""
    if code in _PLAIN:
        nodes = rest.partition("UnavailableNodes:")[2].strip(" ,")
        return f"{_PLAIN[code]}: {nodes}" if nodes else _PLAIN[code]
    return _limit_sentence(code) or f"Slurm's reason is `{reason.strip()}`"


def _limit_sentence(code: str) -> str:
    """``QOSGrpCpuLimit``, ``AssocMaxGRESPerJob``, ``MaxJobsPerAccount`` and so on; empty for what is none of them."""
    prefix, owner = next(pair for pair in _OWNERS if code.startswith(pair[0]))
    name = code.removeprefix(prefix).removesuffix("Limit")
    for scope, text in _SCOPES.items():
        if name.startswith(scope):
            return f"{owner} {text}"
    kind, name = name[:3], name[3:]
    inner, _, per = name.partition("Per")
    who = _WHO.get(per, "each job")
    if kind == "Max" and inner in ("Jobs", "SubmitJob", "SubmitJobs"):
        return f"{owner} lets {who} {'run' if inner == 'Jobs' else 'submit'} no more jobs"
    counted = inner.removesuffix("Minutes").removesuffix("Mins")  # the one with accounts and users, the other without
    minutes = counted != inner
    thing = _THINGS.get(counted.removesuffix("Run"))
    if thing is None:
        return ""
    if kind == "Grp" and minutes:
        return f"{owner} has used up its time of {thing}"
    if kind == "Grp":
        return f"{owner} uses as {'much' if thing in _UNCOUNTED else 'many'} {thing} as it may"
    if kind == "Max":
        return f"{owner} lets {who} have no more {'time of ' if minutes else ''}{thing}"
    return f"{owner} asks for more {thing} for each job" if kind == "Min" else ""
