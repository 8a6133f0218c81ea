"""Words of schedulers, kubelets, container engines, clouds and kernels about the end of a process.

They are trusted: a program cannot write them where they are looked for. Within a class, the first row counts.
"""

from __future__ import annotations

from torchx.schedulers.kit.failures.row import SYSTEM, Row

_SLURM = "https://slurm.schedmd.com/job_state_codes.html"
_PODS = "https://kubernetes.io/docs/concepts/workloads/pods/disruptions/"
_XID = "https://docs.nvidia.com/deploy/xid-errors/"

# fmt: off
SLURM = (
    Row("oom", SYSTEM, "OUT_OF_MEMORY", link=_SLURM, of="Slurm", example="OUT_OF_MEMORY"),
    Row("oom", SYSTEM, "oom", r"\boom[-_ ]?kill", of="Slurm, Linux", example="slurmstepd: error: Detected 1 oom_kill event in StepId=12.0."),
    Row("oom", SYSTEM, "OOM Killed", of="Slurm", example="slurmstepd: error: Some of the step tasks have been OOM Killed."),
    Row("oom", SYSTEM, "Out Of Memory", r": Out Of Memory$", of="Slurm", example="srun: error: n1: task 0: Out Of Memory"),
    Row("oom", SYSTEM, "memory limit", r"[Ee]xceeded (?:\S+ )?(?:job |step |virtual )?memory limit", of="Slurm", example="slurmstepd: error: Exceeded step memory limit at some point."),
    Row("oom", SYSTEM, "exceeded memory limit", of="Slurm before 20.11", example="slurmstepd: error: Step 12.0 exceeded memory limit (1000 > 900), being killed"),
    Row("oom", SYSTEM, "virtual memory limit", r"exceeded virtual memory limit", of="Slurm before 20.11", example="slurmstepd: error: Job 12 exceeded virtual memory limit (10 > 9), being killed"),
    Row("preempted", SYSTEM, "DUE TO PREEMPTION", of="Slurm", example="slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-29T10:00:00 DUE TO PREEMPTION ***"),
    Row("preempted", SYSTEM, "reempt", r"\b[Pp]reempt(?:ed|ing)\b", of="Kubernetes, Google Cloud", link=_PODS, example="Preempted by pod 1-2-3 on node n1"),
    Row("preempted", SYSTEM, "PREEMPTED", r"\bPREEMPTED\b", of="Slurm", link=_SLURM, example="PREEMPTED"),
    Row("timeout", SYSTEM, "DUE TO TIME LIMIT", of="Slurm", example="slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-29T10:00:00 DUE TO TIME LIMIT ***"),
    Row("timeout", SYSTEM, "TIMEOUT", r"\bTIMEOUT\b", of="Slurm", link=_SLURM, example="TIMEOUT"),
    Row("timeout", SYSTEM, "DEADLINE", r"\bDEADLINE\b", of="Slurm", link=_SLURM, example="DEADLINE"),
    Row("node", SYSTEM, "NODE_FAIL", of="Slurm", link=_SLURM, example="NODE_FAIL"),
    Row("node", SYSTEM, "DUE TO NODE FAILURE", of="Slurm", example="slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-29T10:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"),
    Row("node", SYSTEM, "Node failure on", of="Slurm", example="srun: error: Node failure on n1"),
    Row("node", SYSTEM, "BOOT_FAIL", of="Slurm", link=_SLURM, example="BOOT_FAIL"),
    Row("node", SYSTEM, "LAUNCH_FAILED", of="Slurm", link=_SLURM, example="LAUNCH_FAILED"),
    Row("node", SYSTEM, "failed on node", r"Task launch for .* failed on node", of="Slurm", example="srun: error: Task launch for StepId=12.0 failed on node n1: Socket timed out on send/recv operation"),
    Row("node", SYSTEM, "Error configuring interconnect", of="Slurm", example="srun: error: task 0 launch failed: Error configuring interconnect"),
    Row("node", SYSTEM, "launch failed", r"launch failed: (?!.*(?:No such file|Permission denied|not found|Memory required))", of="Slurm", example="srun: error: task 0 launch failed: Slurmd could not connect IO"),
    Row("node", SYSTEM, "rolog", r"(?:launch|[Pp]rolog) failed|[Pp]rolog (?:error|exited)|batch launch failure", of="Slurm", example="slurmd: error: prolog failed: rc:256 output:GPU unhealthy"),
    Row("node", SYSTEM, "_unpack_batch_job_msg", of="Slurm", example="slurmstepd: error: _unpack_batch_job_msg"),
    Row("network", SYSTEM, "Unable to contact slurm controller", of="Slurm", example="srun: error: Unable to contact slurm controller (connect failure)"),
    Row("network", SYSTEM, "Socket timed out on send/recv operation", of="Slurm", example="srun: error: Unable to allocate resources: Socket timed out on send/recv operation"),
    Row("network", SYSTEM, "Zero Bytes were transmitted or received", of="Slurm", example="srun: error: Unable to create step for job 12: Zero Bytes were transmitted or received"),
    Row("network", SYSTEM, "slurm_receive_msg", r"slurm_receive_msgs?\b.*(?:Connection|timed out|Zero Bytes)", of="Slurm", example="slurmstepd: error: slurm_receive_msg [10.0.0.1:6818]: Connection reset by peer"),
    Row("image", SYSTEM, "pyxis: ", r"error: (?:spank: )?pyxis: ", of="pyxis 0.11 to 0.20", link="https://github.com/NVIDIA/pyxis", example="slurmstepd: error: pyxis: couldn't start container"),
    Row("image", SYSTEM, "spank_pyxis", r"spank: required plugin spank_pyxis\S*: .* failed", of="pyxis", example="slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1"),
    Row("quota", SYSTEM, "", r"\b(?:Assoc|QOS)(?:Grp|Max)\w*Limit\b|violates accounting/QOS policy", of="Slurm", link="https://slurm.schedmd.com/resource_limits.html", example="sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"),
    Row("error", SYSTEM, "execve", r"execve\(\): .*: (?:No such file or directory|Permission denied)", of="Slurm", example="slurmstepd: error: execve(): train.py: No such file or directory"),
    Row("cancelled", SYSTEM, "CANCELLED", r"\bCANCELLED\b", of="Slurm", link=_SLURM, example="slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-29T10:00:00 ***"),
    Row("cancelled", SYSTEM, "ancel", r"[Cc]ancell?ed by", of="Slurm, AWS", example="the job was cancelled by alice"),
)
PBS = (
    Row("oom", SYSTEM, "PBS: job killed: ", r"job killed: (?:v?mem|pmem|pvmem) ", of="PBS", example="=>> PBS: job killed: mem 17000000kb exceeded limit 16777216kb"),
    Row("timeout", SYSTEM, "PBS: job killed: ", r"job killed: (?:walltime|cput|pcput) ", of="PBS", example="=>> PBS: job killed: walltime 3610 exceeded limit 3600"),
    Row("node", SYSTEM, "PBS: job killed: ", r"job killed: node ", of="PBS", example="=>> PBS: job killed: node 1 (n2) requested job terminate, 'EOF' (code 1099) - received SISTER_EOF attempting to communicate with sister MOM's"),
)
LSF = (
    Row("lost", SYSTEM, "TERM_ZOMBIE", of="LSF", example="TERM_ZOMBIE: LSF unable to terminate the job"),
    Row("lost", SYSTEM, "TERM_UNKNOWN", of="LSF", example="TERM_UNKNOWN: LSF cannot determine a termination reason"),
    Row("oom", SYSTEM, "TERM_", r"TERM_(?:MEMLIMIT|SWAP)", of="LSF", example="TERM_MEMLIMIT: job killed after reaching LSF memory usage limit"),
    Row("preempted", SYSTEM, "TERM_", r"TERM_(?:PREEMPT|LOAD|RC_RECLAIM|REQUEUE_RC|MC_RECALL)", of="LSF", example="TERM_PREEMPT: job killed after preemption"),
    Row("timeout", SYSTEM, "TERM_", r"TERM_(?:RUNLIMIT|CPULIMIT|DEADLINE|WINDOW)", of="LSF", example="TERM_RUNLIMIT: job killed after reaching LSF run time limit"),
    Row("quota", SYSTEM, "TERM_", r"TERM_(?:THREAD|PROCESS)LIMIT", of="LSF", example="TERM_PROCESSLIMIT: job killed after reaching LSF process limit"),
    Row("error", SYSTEM, "TERM_", r"TERM_CWD_NOTEXIST|TERM_PRE_EXEC_FAIL", of="LSF", example="TERM_CWD_NOTEXIST: current working directory is not accessible"),
    Row("cancelled", SYSTEM, "TERM_", r"TERM_(?:FORCE_)?(?:OWNER|ADMIN)", of="LSF", example="TERM_OWNER: job killed by owner"),
)
KUBERNETES = (
    Row("lost", SYSTEM, "ContainerStatusUnknown", of="Kubernetes", example="ContainerStatusUnknown"),
    Row("oom", SYSTEM, "OOMKilled", of="Kubernetes, Docker", example="OOMKilled"),
    Row("oom", SYSTEM, "low on resource: memory", of="Kubernetes", example="Evicted: The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi."),
    Row("image", SYSTEM, "Err", r"\bErr(?:Image|Registry)", of="Kubernetes", example="ErrImagePull: rpc error"),
    Row("image", SYSTEM, "Image", r"ImagePullBackOff|InvalidImageName|ImageInspectError|SignatureValidationFailed", of="Kubernetes", example="Init:ImagePullBackOff"),
    Row("image", SYSTEM, "ailed to pull", r"[Ff]ailed to pull (?:and unpack )?image", of="Kubernetes, containerd", example='Failed to pull image "x:1": rpc error: code = Unknown'),
    Row("preempted", SYSTEM, "PreemptionByScheduler", of="Kubernetes", link=_PODS, example="PreemptionByScheduler"),
    Row("preempted", SYSTEM, "EvictionByEvictionAPI", of="Kubernetes", link=_PODS, example="EvictionByEvictionAPI"),
    Row("timeout", SYSTEM, "DeadlineExceeded", r"(?<!code = )\bDeadlineExceeded\b", of="Kubernetes", example="DeadlineExceeded: Pod was active on the node longer than the specified deadline"),
    Row("timeout", SYSTEM, "longer than", r"active (?:on the node )?longer than (?:the )?specified deadline", of="Kubernetes", example="Job was active longer than specified deadline"),
    Row("node", SYSTEM, "Node", r"NodeLost|NodeShutdown|NodeNotReady|NodeAffinity\b|NodeUnreachable", of="Kubernetes", example="NodeLost: Node n1 which was running pod train-0 is unresponsive"),
    Row("node", SYSTEM, "imminent node shutdown", of="Kubernetes", example="Pod was terminated in response to imminent node shutdown."),
    Row("node", SYSTEM, "Termination", r"TerminationByKubelet", of="Kubernetes", link=_PODS, example="TerminationByKubelet"),
    Row("node", SYSTEM, "Deletion", r"DeletionBy(?:TaintManager|PodGC)", of="Kubernetes", link=_PODS, example="DeletionByTaintManager"),
    Row("node", SYSTEM, "TaintManagerEviction", of="Kubernetes", example="TaintManagerEviction: Marking for deletion Pod a/b"),
    Row("node", SYSTEM, "UnexpectedAdmissionError", of="Kubernetes", example="UnexpectedAdmissionError: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"),
    Row("node", SYSTEM, "OutOf", r"OutOf(?:cpu|memory|pods|ephemeral-storage|nvidia\.com/gpu)\b", of="Kubernetes", example="OutOfcpu: Node didn't have enough resource: cpu"),
    Row("node", SYSTEM, "low on resource", of="Kubernetes", example="Evicted: The node was low on resource: ephemeral-storage."),
    Row("node", SYSTEM, "node had condition", of="Kubernetes", example="Evicted: The node had condition: [DiskPressure]."),
    Row("node", SYSTEM, "pod sandbox", r"[Ff]ailed (?:to )?(?:create|start) pod sandbox", of="Kubernetes", example="Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox"),
    Row("quota", SYSTEM, "xceeded", r"[Ee]xceeded quota|[Qq]uota ?[Ee]xceeded", of="Kubernetes, clouds", example='pods "train-0" is forbidden: exceeded quota: compute-resources'),
    Row("quota", SYSTEM, "exceeds", r"(?:EmptyDir volume|ephemeral (?:local )?storage) .*exceeds", of="Kubernetes", example="Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."),
    Row("error", SYSTEM, "Container", r"CreateContainer|RunContainerError|ContainerCannotRun", of="Kubernetes", example='CreateContainerConfigError: secret "token" not found'),
    Row("error", SYSTEM, "Error", r"StartError|PostStartHookError", of="Kubernetes", example="StartError: failed to create containerd task"),
    Row("error", SYSTEM, "FailedMount", of="Kubernetes", example='FailedMount: MountVolume.SetUp failed for volume "data" : configmap "data" not found'),
)
ENGINES = (
    Row("image", SYSTEM, "CannotPull", of="AWS Batch", example="CannotPullContainerError: pull image manifest has been retried"),
    Row("image", SYSTEM, "manifest", r"manifest (?:for .* not found|unknown)", of="Docker, registries", example="manifest for x:1 not found: manifest unknown"),
    Row("image", SYSTEM, "Cannot pull algorithm container", of="AWS SageMaker", example="ClientError: Cannot pull algorithm container."),
    Row("image", SYSTEM, "pull access denied", of="Docker", example="pull access denied for x, repository does not exist or may require 'docker login'"),
    Row("image", SYSTEM, "such image", r"[Nn]o such image", of="Docker", example="No such image: x:1"),
    Row("image", SYSTEM, "exec format error", of="Docker, runc", example="exec /bin/sh: exec format error"),
    Row("image", SYSTEM, "from daemon: ", r"from daemon: .*(?:/v2/|reference format)", of="Docker", example='Error response from daemon: Get "https://registry-1.docker.io/v2/": context deadline exceeded'),
    Row("image", SYSTEM, "no match for platform", of="containerd", example="no match for platform in manifest: not found"),
    Row("image", SYSTEM, "toomanyrequests", of="Docker Hub", link="https://docs.docker.com/docker-hub/usage/", example="toomanyrequests: You have reached your pull rate limit."),
)
CLOUDS = (
    Row("oom", SYSTEM, "OutOfMemoryError", of="AWS Batch", example="OutOfMemoryError: Container killed due to memory usage"),
    Row("preempted", SYSTEM, "pot", r"SpotInterruption|\b[Ss]pot\b.*\binterrupted", of="AWS", example="Your Spot Task was interrupted."),
    Row("timeout", SYSTEM, "Exceeded", r"Max(?:Runtime|WaitTime)Exceeded", of="AWS SageMaker", example="MaxRuntimeExceeded"),
    Row("timeout", SYSTEM, "attempt duration exceeded timeout", of="AWS Batch", example="Job attempt duration exceeded timeout"),
    Row("node", SYSTEM, "Host EC2", r"Host EC2 .*terminated", of="AWS Batch", example="Host EC2 (instance i-0123456789abcdef0) terminated."),
    Row("node", SYSTEM, "DockerTimeoutError", of="AWS Batch", example="DockerTimeoutError: Could not transition to started; timed out after waiting 3m0s"),
    Row("node", SYSTEM, "CannotInspectContainer", of="AWS Batch", example="CannotInspectContainerError: Could not transition to inspecting"),
    Row("quota", SYSTEM, "ResourceLimitExceeded", of="AWS SageMaker", example="ResourceLimitExceeded: The account-level service limit is 0 Instances"),
    Row("error", SYSTEM, "Cannot", r"Cannot(?:Start|Create)Container", of="AWS Batch", example="CannotStartContainerError: Error response from daemon"),
    Row("error", SYSTEM, "AlgorithmError", r"^AlgorithmError", of="AWS SageMaker", example="AlgorithmError: ExecuteUserScriptError"),
)
MACHINES = (
    Row("oom", SYSTEM, "Killed process", r"Killed process \d+ \(", of="Linux", example="Out of memory: Killed process 4711 (python) total-vm:99kB, anon-rss:98kB"),
    Row("oom", SYSTEM, "out of memory", r"out[- ]of[- ]memory", of="Linux", example="Memory cgroup out of memory: Killed process 4711 (python)"),
    Row("oom", SYSTEM, "out-of-memory", of="systems", example="ended: out-of-memory"),
    Row("oom", SYSTEM, "Cannot allocate memory", of="Linux", example="fork: Cannot allocate memory"),
    Row("oom", SYSTEM, "OOM killer", of="systemd", example="A process of this unit has been killed by the OOM killer."),
    Row("oom", SYSTEM, "systemd-oomd", r"systemd-oomd.* [Kk]illed", of="systemd 247 and later", example="systemd-oomd killed 12 process(es) in this unit."),
    Row("node", SYSTEM, "Xid", r"\bXid\b.*: (?:46|48|54|61|62|63|64|74|79|92|93|94|95|109|110|119|120|121|136|140|14[3-9]|15[0-4]),", of="NVIDIA driver", link=_XID, example="NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus."),
    Row("node", SYSTEM, "SXid", r"\bSXid\b.*\bFatal\b", of="NVIDIA NVSwitch driver", link="https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/", example="nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
    Row("node", SYSTEM, "GPU is lost", of="NVIDIA driver", example="Unable to determine the device handle for GPU 0000:41:00.0: GPU is lost."),
    Row("node", SYSTEM, "NVRM: ", r"RmInitAdapter failed|GPU \S+ (?:has been lost|is lost)|rm_init_adapter failed", of="NVIDIA driver", example="NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x62:0x40:2477)"),
    Row("node", SYSTEM, "GPU has fallen off the bus", of="NVIDIA driver", link=_XID, example="NVRM: GPU 0000:41:00.0: GPU has fallen off the bus."),
    Row("node", SYSTEM, "amdgpu", r"amdgpu\b.*(?:GPU reset begin|uncorrectable|GPU recovery failed|RAS: )", of="Linux amdgpu", example="amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!"),
    Row("node", SYSTEM, "Machine", r"\[Hardware Error\]|Machine [Cc]heck(?: Exception)?:", of="Linux", example="mce: [Hardware Error]: Machine check events logged: Machine Check: 0"),
    Row("node", SYSTEM, "I/O error", r"\bI/O error, dev ", of="Linux", example="blk_update_request: I/O error, dev sda, sector 0 op 0x0:(READ)"),
    Row("quota", SYSTEM, "Disk quota exceeded", of="Linux", example="Disk quota exceeded"),
)
# fmt: on
ROWS = (*SLURM, *PBS, *LSF, *KUBERNETES, *ENGINES, *CLOUDS, *MACHINES)
