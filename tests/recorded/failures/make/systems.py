"""Words of schedulers about the end of a job, as their manuals and sources have them (``documented``).

Kubernetes: pkg/kubelet, pkg/controller; Slurm: ``slurmstepd`` and ``squeue``'s states; LSF: ``bhist -l``'s termination reasons;
AWS: ``statusReason`` of Batch, ``FailureReason`` of SageMaker.
"""

from __future__ import annotations

from tests.recorded.failures.make.cases import Case

TRACE = (
    'Traceback (most recent call last):\n  File "/job/train.py", line 3, in <module>\n    main()\nValueError: bad lr\n'
)
STEPS = "step 1\nstep 2\nstep 3\n"
AT = "2026-11-22T10:00:00"
# id, class, what the system said, stderr, exit code, signal
ROWS: tuple[tuple[str, str, str, str, int | None, str], ...] = (
    # Slurm
    ("slurm-timeout", "timeout", f"slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT {AT} DUE TO TIME LIMIT ***", STEPS,
     None, "SIGTERM"),
    ("slurm-timeout-job", "timeout", "TIMEOUT", f"{STEPS}slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT {AT} DUE TO TIME "
     "LIMIT ***\n", None, "SIGTERM"),
    ("slurm-timeout-err", "timeout", "", f"srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
     f"slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT {AT} DUE TO TIME LIMIT ***\n", None, "SIGTERM"),
    ("slurm-deadline", "timeout", "DEADLINE", STEPS, None, "SIGTERM"),
    ("slurm-preempted", "preempted", f"slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT {AT} DUE TO PREEMPTION ***", STEPS,
     None, "SIGTERM"),
    ("slurm-preempted-state", "preempted", "PREEMPTED", STEPS, None, "SIGTERM"),
    ("slurm-preempted-err", "preempted", "", f"{STEPS}slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT {AT} DUE TO "
     "PREEMPTION ***\n", None, "SIGTERM"),
    ("slurm-node", "node", "NODE_FAIL", STEPS, None, "SIGKILL"),
    ("slurm-node-err", "node", "", f"{STEPS}srun: error: Node failure on n2\nsrun: Job step aborted\n", None, "SIGKILL"),
    ("slurm-node-step", "node", f"slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT {AT} DUE TO NODE FAILURE, SEE SLURMCTLD "
     "LOG FOR DETAILS ***", "", None, "SIGTERM"),
    ("slurm-boot", "node", "BOOT_FAIL", "", None, ""),
    ("slurm-launch", "node", "LAUNCH_FAILED", "", None, ""),
    ("slurm-cancelled", "cancelled", f"slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT {AT} ***", STEPS, None, "SIGTERM"),
    ("slurm-cancelled-by", "cancelled", "CANCELLED by 1000", STEPS, None, "SIGTERM"),
    ("slurm-oom", "oom", "OUT_OF_MEMORY", STEPS, None, "SIGKILL"),
    ("slurm-oom-event", "oom", "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been "
     "OOM Killed.", STEPS, None, "SIGKILL"),
    ("slurm-oom-older", "oom", "", f"{STEPS}slurmstepd: error: Detected 1 oom-kill event(s) in step 12.0 cgroup. Some of your "
     "processes may have been killed by the cgroup out-of-memory handler.\n", None, "SIGKILL"),
    ("slurm-oom-gather", "oom", "slurmstepd: error: StepId=7.0 exceeded memory limit (642875392 > 209715200), being killed",
     STEPS, None, "SIGKILL"),
    ("slurm-oom-1", "oom", "slurmstepd-n1: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been "
     "OOM Killed.", "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n", 1, ""),
    ("slurm-failed", "error", "FAILED NonZeroExitCode", TRACE, 1, ""),
    ("slurm-failed-noise", "error", "", f"{TRACE}srun: error: n1: task 0: Exited with exit code 1\n", 1, ""),
    ("slurm-failed-cancelled", "error", "", f"{TRACE}srun: error: n1: task 0: Exited with exit code 1\nslurmstepd: error: *** STEP "
     f"12.0 ON n1 CANCELLED AT {AT} ***\n", 1, ""),
    ("slurm-killed-noise", "unknown", "", f"{STEPS}srun: error: n1: task 0: Killed\n", None, "SIGKILL"),
    ("slurm-xid", "node", "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
     "", None, "SIGKILL"),
    # Kubernetes
    ("kube-oom", "oom", "OOMKilled", STEPS, None, "SIGKILL"),
    ("kube-evicted-memory", "oom", "Evicted: The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. "
     "Container main was using 5Gi, request is 1Gi, has larger consumption of memory.", STEPS, None, "SIGKILL"),
    ("kube-evicted-disk", "node", "Evicted: The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, "
     "available: 900Mi.", STEPS, None, "SIGKILL"),
    ("kube-evicted-emptydir", "quota", "Evicted: Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Mi\". ", STEPS,
     None, "SIGKILL"),
    ("kube-evicted-usage", "quota", "Evicted: Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
     STEPS, None, "SIGKILL"),
    ("kube-preempted", "preempted", "PreemptionByScheduler: default-scheduler: preempting to accommodate a higher priority pod",
     STEPS, None, "SIGTERM"),
    ("kube-preempting", "preempted", "Preempting: Preempted in order to admit critical pod", STEPS, None, "SIGTERM"),
    ("kube-drained", "preempted", "EvictionByEvictionAPI: Eviction API: evicting", STEPS, None, "SIGTERM"),
    ("kube-taint", "node", "DeletionByTaintManager: Taint manager: deleting due to NoExecute taint", STEPS, None, "SIGTERM"),
    ("kube-lost", "node", "NodeLost: Node n2 which was running pod train-0 is unresponsive", STEPS, None, ""),
    ("kube-gc", "node", "DeletionByPodGC: PodGC: node no longer exists", STEPS, None, ""),
    ("kube-shutdown", "node", "Terminated: Pod was terminated in response to imminent node shutdown.", STEPS, None, "SIGTERM"),
    ("kube-node-shutdown", "node", "TerminationByKubelet: Pod was terminated in response to imminent node shutdown.", "",
     None, "SIGTERM"),
    ("kube-admission", "node", "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for "
     "nvidia.com/gpu. Requested: 8, Available: 7, which is unexpected", "", None, ""),
    ("kube-outofcpu", "node", "OutOfcpu: Node didn't have enough resource: cpu, requested: 4000, used: 2000, capacity: 4000",
     "", None, ""),
    ("kube-outofmemory", "node", "OutOfmemory: Node didn't have enough resource: memory, requested: 9, used: 8, capacity: 9",
     "", None, ""),
    ("kube-deadline", "timeout", "DeadlineExceeded: Pod was active on the node longer than the specified deadline", STEPS,
     None, "SIGTERM"),
    ("kube-job-deadline", "timeout", "DeadlineExceeded: Job was active longer than specified deadline", STEPS, None, ""),
    ("kube-pull", "image", "ImagePullBackOff: Back-off pulling image \"nosuch:1\"", "", None, ""),
    ("kube-pull-err", "image", "ErrImagePull: failed to pull and unpack image \"docker.io/library/nosuch:1\": failed to resolve "
     "reference: pull access denied, repository does not exist or may require authorization", "", None, ""),
    ("kube-pull-timeout", "image", "ErrImagePull: rpc error: code = DeadlineExceeded desc = failed to pull and unpack image "
     "\"reg.example/x:1\": context deadline exceeded", "", None, ""),
    ("kube-never", "image", "ErrImageNeverPull: Container image \"x:1\" is not present with pull policy of Never", "", None, ""),
    ("kube-name", "image", "InvalidImageName: Failed to apply default image tag \"X:1\": couldn't parse image name", "", None, ""),
    ("kube-exec-format", "image", "StartError: failed to create containerd task: OCI runtime create failed: exec /bin/x: exec "
     "format error: unknown", "", 128, ""),
    ("kube-start", "error", "StartError: failed to create containerd task: failed to create shim task: OCI runtime create failed: "
     "runc create failed: unable to start container process: exec: \"nosuch\": executable file not found in $PATH: unknown",
     "", 128, ""),
    ("kube-config", "error", "CreateContainerConfigError: secret \"tokens\" not found", "", None, ""),
    ("kube-quota", "quota", "pods \"train-0\" is forbidden: exceeded quota: compute-resources, requested: limits.cpu=8, used: "
     "limits.cpu=8, limited: limits.cpu=10", "", None, ""),
    ("kube-error", "error", "Error", TRACE, 1, ""),
    ("kube-error-137", "unknown", "Error", STEPS, 137, ""),
    ("kube-unknown", "lost", "ContainerStatusUnknown: The container could not be located when the pod was terminated", "",
     137, ""),
    ("kube-unknown-deleted", "lost", "ContainerStatusUnknown: The container could not be located when the pod was deleted.  The "
     "container used to be Running", "", 137, ""),
    ("kube-pressure", "node", "Evicted: The node had condition: [DiskPressure]. ", STEPS, None, "SIGKILL"),
    ("kube-taint-event", "node", "TaintManagerEviction: Marking for deletion Pod default/train-0", STEPS, None, "SIGTERM"),
    ("kube-platform", "image", "ErrImagePull: no match for platform in manifest: not found", "", None, ""),
    ("docker-rate", "image", "toomanyrequests: You have reached your pull rate limit.", "", None, ""),
    ("kernel-oom", "oom", "Out of memory: Killed process 4711 (python3) total-vm:67108864kB, anon-rss:62914560kB, file-rss:0kB, "
     "shmem-rss:0kB, UID:1000 pgtables:123456kB oom_score_adj:0", STEPS, 137, ""),
    ("slurm-oom-step", "oom", "slurmstepd: error: Exceeded step memory limit at some point.", STEPS, None, "SIGKILL"),
    ("slurm-launch-task", "node", "srun: error: Task launch for StepId=12.0 failed on node n2: Communication connection failure",
     "", 1, ""),
    ("cloud-preempted", "preempted", "Instance was preempted.", STEPS, None, ""),
    ("aws-cancelled", "cancelled", "cancelled by torchx, for ada", STEPS, None, "SIGTERM"),
    ("aws-docker", "node", "DockerTimeoutError: Could not transition to started; timed out after waiting 4m0s", "", None, ""),
    # LSF
    ("lsf-memlimit", "oom", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit", STEPS, None, "SIGKILL"),
    ("lsf-swap", "oom", "TERM_SWAP: job killed after reaching LSF swap usage limit", STEPS, None, "SIGKILL"),
    ("lsf-runlimit", "timeout", "TERM_RUNLIMIT: job killed after reaching LSF run time limit", STEPS, None, "SIGUSR2"),
    ("lsf-cpulimit", "timeout", "TERM_CPULIMIT: job killed after reaching LSF CPU usage limit", STEPS, None, "SIGXCPU"),
    ("lsf-deadline", "timeout", "TERM_DEADLINE: job killed after deadline expires", STEPS, None, "SIGTERM"),
    ("lsf-window", "timeout", "TERM_WINDOW: job killed after queue run window closed", STEPS, None, "SIGTERM"),
    ("lsf-preempt", "preempted", "TERM_PREEMPT: job killed after preemption", STEPS, None, "SIGTERM"),
    ("lsf-reclaim", "preempted", "TERM_RC_RECLAIM: job killed and requeued when an LSF resource connector host is reclaimed",
     STEPS, None, "SIGTERM"),
    ("lsf-load", "preempted", "TERM_LOAD: job killed after load exceeds threshold", STEPS, None, "SIGTERM"),
    ("lsf-owner", "cancelled", "TERM_OWNER: job killed by owner", STEPS, 130, ""),
    ("lsf-admin", "cancelled", "TERM_ADMIN: job killed by root or LSF administrator", STEPS, None, "SIGTERM"),
    ("lsf-zombie", "lost", "TERM_ZOMBIE: job exited while LSF is not available", STEPS, None, ""),
    ("lsf-unknown", "lost", "TERM_UNKNOWN: LSF cannot determine a termination reason. 0 is logged but TERM_UNKNOWN is not "
     "displayed", "", None, ""),
    ("lsf-threads", "quota", "TERM_THREADLIMIT: job killed after reaching LSF thread limit", STEPS, None, "SIGTERM"),
    ("lsf-exit", "error", "", TRACE, 1, ""),
    # AWS Batch and SageMaker
    ("aws-host", "node", "Host EC2 (instance i-0a1b2c3d4e5f67890) terminated.", STEPS, None, ""),
    ("aws-spot", "preempted", "Your Spot Task was interrupted.", STEPS, None, ""),
    ("aws-spot-error", "preempted", "SpotInterruptionError: the Spot capacity was interrupted", STEPS, None, ""),
    ("aws-timeout", "timeout", "Job attempt duration exceeded timeout", STEPS, 137, ""),
    ("aws-oom", "oom", "OutOfMemoryError: Container killed due to memory usage", STEPS, 137, ""),
    ("aws-pull", "image", "CannotPullContainerError: Error response from daemon: pull access denied for nobody/none", "", None,
     ""),
    ("aws-pull-manifest", "image", "CannotPullImageManifestError: Error response from daemon: manifest unknown", "", None, ""),
    ("aws-exited", "error", "Essential container in task exited", TRACE, 1, ""),
    ("aws-sagemaker-error", "error", "AlgorithmError: , exit code: 3", "no data\n", 3, ""),
    ("aws-sagemaker-quoted", "error", "AlgorithmError: ExecuteUserScriptError: ErrorMessage \"ValueError: TIMEOUT is no number\" Command "
     "\"/usr/bin/python3 train.py\", exit code: 1", "", 1, ""),
    ("aws-sagemaker-pull", "image", "ClientError: Cannot pull algorithm container. Either the image does not exist or its "
     "permissions are incorrect.", "", None, ""),
    ("aws-sagemaker-time", "timeout", "MaxRuntimeExceeded", STEPS, None, ""),
    ("aws-sagemaker-wait", "timeout", "MaxWaitTimeExceeded", STEPS, None, ""),
    ("aws-sagemaker-spot", "preempted", "Interrupted: The job stopped because the managed spot training instances were interrupted.", STEPS, None, ""),
    ("aws-sagemaker-limit", "quota", "ResourceLimitExceeded: The account-level service limit 'ml.p3.2xlarge for training job "
     "usage' is 0 Instances", "", None, ""),
    # nobody knows
    ("nothing", "lost", "", "", None, ""),
    ("nothing-said", "lost", "", STEPS, None, ""),
)  # fmt: skip


def cases() -> list[Case]:
    return [
        Case(id=name, by="files", kind=kind, files={"said": said, "stderr": stderr}, exit_code=code, signal=signal,
             source="documented", aftermath=signal == "SIGTERM", said=("ValueError: bad lr",) if stderr == TRACE else ())
        for name, kind, said, stderr, code, signal in ROWS
    ]  # fmt: skip
