"""Words of shells, container runtimes, MPI, ssh, file systems and the C library; reports of launchers."""

from __future__ import annotations

from torchx.schedulers.kit.failures.row import EXCEPTION, LAUNCHER, LINE, Row

# fmt: off
FILES = (
    Row("quota", EXCEPTION, "OSError: [Errno 122]", of="Linux", example="OSError: [Errno 122] Disk quota exceeded: '/home/u/a'"),
    Row("node", EXCEPTION, "Error: [Errno ", r"(?:OSError|IOError|FileNotFoundError|ConnectionAbortedError|BrokenPipeError): \[Errno (?:5|107|108|116|121)\] (?:Input/output error|Transport endpoint is not connected|Cannot send after transport endpoint shutdown|Stale file handle|Remote I/O error)", of="NFS, Lustre, GPFS, FUSE", example="OSError: [Errno 116] Stale file handle: '/scratch/a'"),
    Row("node", LINE, "Stale", r": Stale (?:NFS )?file handle$", of="NFS", example="cp: cannot stat '/scratch/a': Stale file handle"),
    Row("node", LINE, "ransport endpoint", r": (?:Transport endpoint is not connected|Cannot send after transport endpoint shutdown)$", of="Lustre, FUSE", example="ls: cannot access '/data': Transport endpoint is not connected"),
    Row("node", LINE, "Input/output error", r": Input/output error$", of="Linux", example="tar: a: Cannot open: Input/output error"),
    Row("quota", LINE, "Disk quota exceeded", r": Disk quota exceeded\b", of="Linux", example="cp: error writing 'a': Disk quota exceeded"),
    Row("error", LINE, "No space left on device", of="Linux", example="tar: a: Wrote only 512 of 10240 bytes: No space left on device"),
)
MEMORY = (
    Row("oom", EXCEPTION, "MemoryError", r"(?:[\w.]+\.)?(?:_?Array|Arrow)?MemoryError\b", of="Python, numpy, pyarrow", example="numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array"),
    Row("oom", EXCEPTION, "bad_alloc", r"(?:RuntimeError: )?std::bad_alloc\b", of="C++", example="std::bad_alloc: std::bad_alloc"),
    Row("oom", EXCEPTION, "java.lang.OutOfMemoryError", of="Java", example="java.lang.OutOfMemoryError: Java heap space"),
    Row("oom", EXCEPTION, "Cannot allocate memory", r"(?:OS|Runtime|IO|BlockingIO)Error: .*Cannot allocate memory", of="Linux", example="OSError: [Errno 12] Cannot allocate memory"),
    Row("oom", LINE, "Cannot allocate memory", r"fork: (?:retry: )?Cannot allocate memory|: Cannot allocate memory$", of="shells", example="bash: fork: Cannot allocate memory"),
    Row("oom", LINE, "java.lang.OutOfMemoryError", r"^(?:Exception in thread .* )?java\.lang\.OutOfMemoryError", of="Java", example='Exception in thread "main" java.lang.OutOfMemoryError: Java heap space'),
    Row("oom", LINE, "memory allocation of", r"^memory allocation of \d+ bytes failed", of="Rust", example="memory allocation of 8000 bytes failed"),
    Row("oom", LINE, "out of memory", r"^(?:fatal error: runtime|virtual memory exhausted|ld|cc1plus|nvcc fatal +): (?:.*: )?out of memory", of="Go", example="fatal error: runtime: out of memory"),
    Row("oom", LINE, "JavaScript heap out of memory", of="Node.js", example="FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory"),
    Row("oom", LINE, "bad_alloc", r"^std::bad_alloc\b|instance of 'std::bad_alloc'", of="C++", example="terminate called after throwing an instance of 'std::bad_alloc'"),
    Row("oom", LINE, "OutOfMemoryError()", of="Julia", example="ERROR: LoadError: OutOfMemoryError()"),
    Row("oom", LINE, "cannot allocate vector of size", of="R", example="Error: cannot allocate vector of size 74.5 Gb"),
    Row("unknown", LINE, "Killed signal terminated program", of="GCC", example="c++: fatal error: Killed signal terminated program cc1plus"),
    Row("oom", LINE, "OOMKilled", of="Kubernetes, Docker", example="container main: OOMKilled (exit code 137)"),
    Row("oom", LINE, "low memory! at or below SIG", of="earlyoom", link="https://github.com/rfjakob/earlyoom", example="low memory! at or below SIGTERM limits: mem 10.00%, swap 10.00%"),
)
LIMITS = (
    Row("quota", LINE, "Resource temporarily unavailable", r"(?:fork|pthread_create|vfork|clone)\b.*: Resource temporarily unavailable", of="Linux", example="bash: fork: retry: Resource temporarily unavailable"),
    Row("quota", EXCEPTION, "Resource temporarily unavailable", r"(?:BlockingIO|OS)Error: \[Errno 11\] Resource temporarily unavailable", of="Python", example="BlockingIOError: [Errno 11] Resource temporarily unavailable"),
    Row("quota", EXCEPTION, "can't start new thread", r"(?:RuntimeError|[\w.]*\.error): can't start new thread", of="Python", example="RuntimeError: can't start new thread"),
    Row("quota", LINE, "icense", r"License Manager Error -4\b|Licensed number of users already reached|Maximum number of users for .* reached", of="FlexNet", example="Licensed number of users already reached. (-4,342)"),
    Row("network", LINE, "icense", r"(?:Cannot connect to|Unable to connect to|Lost connection to) (?:the )?license server|License Manager Error -(?:15|16|96|97)\b|license server (?:machine is down|system does not respond)", of="FlexNet", example="Cannot connect to license server system. (-15,578)"),
)
IMAGES = (
    Row("image", LINE, "xec format error", r"(?:cannot execute binary file: )?[Ee]xec format error$", of="Linux", example="exec /bin/sh: exec format error"),
    Row("image", LINE, "FATAL:  ", r"^FATAL: +(?:Unable to handle \S+ uri|[Cc]ould not open image|While making image|[Ww]hile (?:pulling|building|loading|extracting)|image format not recogni[sz]ed|[Cc]ontainer creation failed|Unable to (?:pull|build|get)|Image file .*(?:not|exist)|.*(?:squashfuse|SIF|\.sif|manifest unknown|no such image)|.*[Ff]ailed to (?:pull|get|open|mount|find) .*(?:image|container|checksum)|could not (?:mount|load) image)", of="Apptainer, Singularity", link="https://apptainer.org/docs/user/latest/", example="FATAL:   Unable to handle docker://x uri: failed to get checksum for docker://x: reading manifest: manifest unknown"),
    Row("image", LINE, "from daemon: ", r"[Ee]rror response from daemon: .*(?:toomanyrequests|pull access denied|manifest (?:for .* not found|unknown)|no matching manifest|/v2/|reference format|[Nn]o such image|unauthorized|denied: |no basic auth|failed to (?:resolve|register|extract)|error pulling image|not found: manifest|image .*not found)", of="Docker", example="Error response from daemon: toomanyrequests: You have reached your pull rate limit"),
    Row("image", LINE, "failed to register layer", of="Docker", example="docker: failed to register layer: write /usr/lib/x.so: no space left on device."),
    Row("image", LINE, "toomanyrequests: ", of="Docker Hub", link="https://docs.docker.com/docker-hub/usage/", example="toomanyrequests: You have reached your unauthenticated pull rate limit."),
    Row("image", LINE, "anifest", r"manifest for \S+ not found|manifest unknown|reading manifest \S+ in \S+|no matching manifest for|no match for platform in manifest", of="registries", example="Error: initializing source docker://x:1: reading manifest 1 in docker.io/library/x: manifest unknown"),
    Row("image", LINE, "image", r"(?i)\b(?:failed to pull(?: and unpack)? image|error pulling image|failed to (?:resolve|unpack|import) (?:docker )?image|unable to pull image|image .* (?:could not be pulled|not known)|copying system image from manifest list)", of="containerd, Podman, enroot", example='failed to pull and unpack image "reg.example/x:1": failed to resolve reference "reg.example/x:1": unexpected status: 403 Forbidden'),
    Row("image", LINE, "Image", r"\b(?:ErrImagePull|ErrImageNeverPull|ImagePullBackOff|InvalidImageName|ImageInspectError)\b", of="Kubernetes", example="Error: ErrImagePull"),
    Row("image", LINE, "pull access denied", of="Docker", example="docker: pull access denied for x, repository does not exist or may require 'docker login'."),
    Row("image", LINE, "short-name", r'short-name "\S+" did not resolve to an alias', of="Podman", example='Error: short-name "x" did not resolve to an alias and no unqualified-search registries are defined in "/etc/containers/registries.conf"'),
    Row("image", LINE, "returned error code: ", r"\[ERROR\] URL https?://\S+ returned error code: \d+", of="enroot", link="https://github.com/NVIDIA/enroot", example="[ERROR] URL https://registry-1.docker.io/v2/library/x/manifests/1 returned error code: 404 Not Found"),
    Row("image", LINE, "enroot", r"enroot-(?:mount|nsenter|switchroot|mksquashovlfs|aufs2ovlfs): |\[ERROR\] (?:No such file or directory|Could not process JSON input|Invalid image format|Image not found|.*squashfs|.*layer)", of="enroot", example="enroot-mount: failed to mount: /dev/shm at /enroot/x/dev/shm: Operation not permitted"),
    Row("image", LINE, "[ERROR] ", r"^\[ERROR\] (?:No such file or directory: \S+\.sqsh|Could not process JSON input|Invalid image format|Image \S+ not found|File already exists: \S+\.sqsh|Failed to (?:download|extract|import|unpack))", of="enroot", example="[ERROR] Invalid image format: /a/x.sqsh"),
    Row("image", LINE, "user namespace", r"[Ff]ailed to create (?:a )?(?:new )?user namespace|user namespaces? (?:disabled|(?:is|are) not)", of="Apptainer, enroot", example="ERROR  : Failed to create user namespace: user namespace disabled"),
    Row("image", LINE, "nvidia-container-cli: requirement error", of="NVIDIA container toolkit", example="nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.9, please update your driver to a newer version"),
    Row("node", LINE, "Cannot connect to the Docker daemon", of="Docker", example="docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?."),
    Row("error", LINE, "executable file not found", of="runc, Apptainer", example='exec: "python": executable file not found in $PATH: unknown'),
)
SHELLS = (
    Row("error", LINE, "Lmod has detected the following error:", more=2, of="Lmod", link="https://lmod.readthedocs.io", example="Lmod has detected the following error: The following module(s) are unknown:"),
    Row("error", LINE, "Could not find conda environment", of="conda", example="EnvironmentNameNotFound: Could not find conda environment: train"),
    Row("error", LINE, "Unable to locate a modulefile for", of="Environment Modules", example="ERROR: Unable to locate a modulefile for 'cuda/12.9'"),
    Row("error", LINE, "' not found (required by ", r"version `\S+' not found \(required by ", of="glibc", example="python: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by python)"),
    Row("error", LINE, "error while loading shared libraries", of="glibc", example="a.out: error while loading shared libraries: libcudart.so.12: cannot open shared object file: No such file or directory"),
    Row("cancelled", LINE, "KeyboardInterrupt", r"^KeyboardInterrupt$", of="Python", example="KeyboardInterrupt"),
    Row("cancelled", EXCEPTION, "KeyboardInterrupt", r"KeyboardInterrupt\b", of="Python", example="KeyboardInterrupt"),
)
CLUSTERS = (
    Row("node", LINE, "lost communication with", r"(?:ORTE|PRTE|PMIx|prterun|mpirun) has lost communication with a remote daemon", of="Open MPI 3 and later", example="ORTE has lost communication with a remote daemon."),
    Row("node", LINE, "unable to reliably start one or more daemons", more=1, of="Open MPI", example="ORTE was unable to reliably start one or more daemons."),
    Row("error", LINE, "There are not enough slots available", more=1, of="Open MPI", example="There are not enough slots available in the system to satisfy the 4"),
    Row("network", LINE, "TCP connection", r"unable to (?:complete|establish|make) a TCP connection|failed to (?:complete|establish) a TCP connection", aftermath=True, of="Open MPI", example="A process or daemon was unable to complete a TCP connection"),
    Row("network", LINE, "MPI failed to TCP connect", aftermath=True, of="Open MPI 4", example="WARNING: Open MPI failed to TCP connect to a peer MPI process.  This"),
    Row("network", LINE, "UCX", r"UCX +ERROR .*(?:Endpoint|endpoint|Transport retry count exceeded|Connection|connect|timed? ?out|unreachable|Remote access)", aftermath=True, of="UCX", example="[1764410441.113] [n1:77 :0] ib_mlx5_log.c:171 UCX  ERROR Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)"),
    Row("network", LINE, "OFI", r"\bOFI\b.* failed\b.*(?:Transport endpoint|Connection|unreachable|Input/output|timed out|No route)", aftermath=True, of="MPICH, Cray MPICH", example="MPIDI_OFI_handle_cq_error(1042)..: OFI poll failed (ofi_events.c:1042:MPIDI_OFI_handle_cq_error:Transport endpoint is not connected)"),
    Row("network", LINE, "PMIX ERROR", r"PMIX ERROR: (?:PMIX_ERR_)?(?:UNREACHABLE|LOST[-_]CONN\w*|COMM[-_]FAILURE|TIMEOUT)", aftermath=True, of="PMIx", example="[n1:77] PMIX ERROR: UNREACHABLE in file ../../../src/server/pmix_server.c at line 2198"),
    Row("network", LINE, "btl_", r"btl_(?:tcp|openib)\w*.*(?:failed: |RETRY EXCEEDED|timed out|unreachable)", aftermath=True, of="Open MPI before 5", example="[n1][[123,1],0][btl_tcp_frag.c:242:mca_btl_tcp_frag_recv] mca_btl_tcp_frag_recv: readv failed: Connection reset by peer (104)"),
    Row("network", LINE, "retry counter exceeded", r"(?:transport|RNR) retry counter exceeded|IBV_WC_RETRY_EXC_ERR", aftermath=True, of="libibverbs", example="error polling for completion: status 12 (transport retry counter exceeded)"),
    Row("network", LINE, "Temporary failure in name resolution", of="glibc: the name server did not answer", example="ssh: Could not resolve hostname n2: Temporary failure in name resolution"),
    Row("error", LINE, "Could not resolve hostname", of="OpenSSH", example="ssh: Could not resolve hostname n9: Name or service not known"),
    Row("error", LINE, "Permission denied (", r"Permission denied \((?:publickey|password|keyboard|gssapi|hostbased)", of="OpenSSH", example="u@n2: Permission denied (publickey,password)."),
    Row("error", LINE, "Host key verification failed", of="OpenSSH", example="Host key verification failed."),
    Row("node", LINE, "connect to host", r"ssh: connect to host \S+ port \d+: (?:Connection (?:refused|timed out)|No route to host|Host is down|Network is unreachable)", of="OpenSSH", example="ssh: connect to host n2 port 22: No route to host"),
    Row("network", LINE, "Connection ", r"^(?:kex_exchange_identification: |ssh_exchange_identification: )?(?:Connection (?:closed|reset) by (?:remote host|peer)$|Connection to \S+ closed by remote host|Connection (?:closed|reset) by \S+ port \d+|read: Connection reset)", of="OpenSSH", example="Connection to n2 closed by remote host."),
    Row("network", LINE, "client_loop: send disconnect", of="OpenSSH", example="client_loop: send disconnect: Broken pipe"),
    Row("network", LINE, "Timeout, server ", r"^Timeout, server \S+ not responding", of="OpenSSH", example="Timeout, server n2 not responding."),
)
REPORTS = (
    Row("", LAUNCHER, "exits with return code = ", r"exits with return code = (?P<code>-?\d+)", of="DeepSpeed", example="[2026-04-07 13:09:33,220] [ERROR] [launch.py:324:sigkill_handler] ['/usr/bin/python3', '-u', 'a.py'] exits with return code = -9"),
    Row("", LAUNCHER, "Killing subprocess ", r"\bKilling subprocess \d+$", of="DeepSpeed", example="[2026-04-07 13:09:33,201] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 80"),
    Row("", LAUNCHER, "ssh exited with exit code", r"ssh exited with exit code (?P<code>\d+)", of="pdsh", example="pdsh@n1: n2: ssh exited with exit code 247"),
    Row("", LAUNCHER, "exited on signal", r"(?:mpirun|mpiexec|prterun|orterun|PRTE)\b.*exited on\s+signal (?P<signal>\d+)|exited on signal (?P<code>\d+) \(", of="Open MPI", example="mpirun noticed that process rank 0 with PID 77 on node n1 exited on signal 9 (Killed)."),
    Row("", LAUNCHER, "KILLED BY SIGNAL: ", r"KILLED BY SIGNAL: (?P<signal>\d+)", of="Intel MPI", example="=   KILLED BY SIGNAL: 9 (Killed)"),
    Row("", LAUNCHER, "YOUR APPLICATION TERMINATED WITH", r"(?:EXIT STRING: [\w ]+ \(signal (?P<signal>\d+)\)|EXIT CODE: (?P<code>\d+))", of="MPICH, Intel MPI", example="YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)"),
    Row("", LAUNCHER, "(exitcode: ", r"failed \(exitcode: (?P<code>-?\d+)\) (?:local_rank: \d+ \(pid: \d+\) )?of", of="torchrun", example="E1129 10:00:41.113 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 0 (pid: 80) of binary: /usr/bin/python3"),
    Row("", LAUNCHER, "died with <Signals.", r"died with <Signals\.(?P<signal>SIG\w+)", of="Python", example="subprocess.CalledProcessError: Command '['a']' died with <Signals.SIGKILL: 9>."),
    Row("", LAUNCHER, "terminated with code ", r"Child process with PID \d+ terminated with code (?P<code>-?\d+)", of="Lightning", example="[rank: 0] Child process with PID 80 terminated with code -9. Forcefully terminating all other processes to avoid zombies"),
    Row("", LAUNCHER, "crashed with exit code ", r"Rank \d+ crashed with exit code (?P<code>-?\d+)", of="Composer", example="ERROR:composer.cli.launcher:Rank 3 crashed with exit code -9."),
    Row("", LAUNCHER, "exited with code ", r"[Gg]lobal rank \d+ \(PID \d+\) exited with code (?P<code>-?\d+)", of="Composer", example="ERROR:composer.cli.launcher:Global rank 0 (PID 80) exited with code -15"),
    Row("", LAUNCHER, "for all training processes to terminate", of="Composer", example="Waiting up to 30 seconds for all training processes to terminate. Press Ctrl-C to exit immediately."),
    Row("", LAUNCHER, "terminated by ", r"\bterminated by (?:signal )?(?P<signal>SIG[A-Z]+|\d+)\b", of="xargs, fish, time, supervisord", example="xargs: python: terminated by signal 9"),
    Row("", LAUNCHER, "make", r"^make(?:\[\d+\])?: \*\*\* \[.*\] (?P<signal>[A-Z][a-z]+(?: [a-z]+)*)(?: \(core dumped\))?$", of="make", example="make: *** [Makefile:3: train] Killed"),
    Row("", LAUNCHER, " -", r"\bexit(?:ed)?(?: with)? (?:code|status)[ :=]+(?P<code>-\d+)\b", of="launchers in Python", example="worker 3 exited with code -9"),
    Row("", LAUNCHER, "exit with status code", r"[Pp]rocess \d+ exit with status code (?P<code>-?\d+)", of="Horovod", example="Process 0 exit with status code 137."),
    Row("", LAUNCHER, "task", r"^srun: error: \S+: tasks? [\d,-]+: (?P<signal>[A-Z][a-z ]+[a-z])(?: \(core dumped\))?$", of="Slurm", example="srun: error: n1: task 0: Killed"),
    *(
        Row("", LAUNCHER, word, rf"^(?:.*: line \d+: +\d+ )?(?P<signal>{word})\b(?: \(core dumped\))?(?: {{2,}}.*|)$", of="shells", example=f"bash: line 3: 881 {word}   python t.py")
        for word in ("Killed", "Terminated", "Segmentation fault", "Aborted", "Bus error", "Illegal instruction", "Floating point exception")
    ),
    Row("", LAUNCHER, "exit code ", r"^srun: error: \S+: tasks? [\d,-]+: Exited with exit code (?P<code>\d+)", of="Slurm", example="srun: error: n1: task 0: Exited with exit code 247"),
)
# fmt: on
ROWS = (*CLUSTERS, *FILES, *MEMORY, *LIMITS, *IMAGES, *SHELLS, *REPORTS)
