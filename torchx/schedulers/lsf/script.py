"""The script that runs the replicas of an LSF job: one file in the job's folder, run as ``replicas.sh ROLE_INDEX K``.

LSF runs one job for each replica, and each runs this script, which knows what LSF does not: where replica 0 is, that
replicas belong together, and how often which of them are started again.

* Replica 0 of a role writes its host to ``rank0.<role index>.<attempt>``; the others wait for that file, and ask
  ``bjobs`` where it does not come.
* A replica that fails is retried, while there are retries, by ``REQUEUE_CODE``: ``bsub -Q`` has LSF put it back into
  the queue. For the policies APPLICATION and ROLE it has the others put back as well (``brequeue``), once for all.
* The first that fails for good ends the others (``bkill``); an elastic role first loses the replicas that it can spare.
"""

from __future__ import annotations

import posixpath

from torchx.schedulers.batch.folders import ERROR_FILE, STDERR_LOG, STDOUT_LOG, TIMES_INDEX, folder_name
from torchx.schedulers.kit.shell import env_words, exports, quote
from torchx.schedulers.lsf.rows import group_of, job_name
from torchx.specs.api import BindMount, DeviceMount, RetryPolicy, VolumeMount
from torchx.specs.mounts import format_mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx.schedulers.kit.replicas import Replica
    from torchx.specs.api import AppDef, Role

REPLICAS_FILE = "replicas.sh"
SUBMIT_FILE = "submit.sh"
REPORTS = "reports"
RESTARTS_FILE = "restarts"
EXIT_FILE = "exit"
STARTED_FILE = "started"
ENDED_FILE = "ended"
SUBMITTED_FILE = "submitted"
REQUEUE_CODE = 99
# Variables that bash lets nobody set; `env` does.
_READ_ONLY = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
ENV_RANK0_HOST = "TORCHX_RANK0_HOST"
ENV_RANK0_PORT = "TORCHX_RANK0_PORT"

# bash and not sh: for `read -t`, which waits without a program, and /dev/tcp, which tells whether a port is taken.
_PROGRAM = r"""
job=$(cd "$(dirname "$0")" && pwd) || exit 1

torchx_number() { local n=0; read -r n 2>/dev/null <"$1"; echo "${n:-0}"; }
torchx_pause() { local _; read -rt "$1" _ <> <(:); }

# The sizes of the logs by the time, for --since and --until.
torchx_tick() {
    local now; now=$(stat -c %s "$dir/@OUT@" "$dir/@ERR@" 2>/dev/null)
    [ "$now" = "$sizes" ] && return
    sizes=$now; printf '%(%s)T %s\n' -1 "${now//$'\n'/ }" >>"$dir/@TIMES@"
}
torchx_clock() { while :; do torchx_tick; torchx_pause 1; done; }

# Where replica 0 of the role is.
torchx_rank0() {
    local file=$job/rank0.$role.$attempt tries=0 answer host port
    if [ "$k" = 0 ]; then
        host=${LSB_MCPU_HOSTS%% *}; host=${host:-$(hostname)}
        port=$((20000 + ${LSB_JOBID:-0} % 10000))
        while (: <"/dev/tcp/$host/$port") 2>/dev/null; do port=$((port + 1)); done
        echo "$host $port" >"$file.new" && mv -f "$file.new" "$file"
    else
        until read -r host port 2>/dev/null <"$file"; do
            ls "$job" >/dev/null # NFS forgets that there was no such file
            [ "$killed" = 0 ] || return 1
            torchx_pause 0.5; tries=$((tries + 1))
            [ $((tries % 40)) = 0 ] || continue
            answer=$(bjobs -a -noheader -o "stat exec_host delimiter=','" -J "$rank0" 2>/dev/null)
            ls "$job" >/dev/null
            [ ! -s "$file" ] || continue # it has come in the meantime, be replica 0 over or not
            case $answer in
                RUN*)
                    [ "$tries" -ge 240 ] || continue
                    host=${answer#*,}; host=${host%%:*}; host=${host#*\*}; port=; break ;;
                EXIT*|DONE*|"") echo "torchx: replica 0 is over, or LSF cannot be asked about it" >&2; return 1 ;;
            esac
        done
    fi
    export @HOST@="$host"
    [ -z "$port" ] || [ -n "$own_network" ] || export @PORT@="$port"
}

torchx_others() { # ids of the jobs of this app, or of this role; but for this one
    bjobs $1 -noheader -o "jobid job_name delimiter=','" -g "$group" 2>/dev/null | while IFS=, read -r id name; do
        case $name in "$2"*) [ "$id" = "$LSB_JOBID" ] || echo "$id" ;; esac
    done
}

# This replica is in attempt N, as `run.N.JOBID` says, and others have begun the next one. Whoever makes `again.N.JOBID`
# sees to it that this one takes part, too: put back twice, it would be killed in the new attempt.
torchx_go_on() {
    local tries=0
    if mkdir "$scope/again.$attempt.$LSB_JOBID" 2>/dev/null; then
        until [ "$(torchx_number "$scope/attempt")" != "$attempt" ] || [ $((tries++)) = 600 ]; do torchx_pause 0.1; done
        return
    fi
    trap - INT TERM; torchx_pause 60 # it is being put back
    exit @REQUEUE@
}

torchx_retried() { # whether this failure is made good by another attempt
    if [ "$policy" = REPLICA ]; then
        [ "$runs" -le "$retries" ] && echo "$role $k" >>"$job/@RESTARTS@"
        return
    fi
    [ "$attempt" -lt "$retries" ] || return 1
    mkdir "$scope/restart.$attempt" 2>/dev/null || { torchx_go_on; return 0; } # another one sees to it
    echo "$role $k" >>"$job/@RESTARTS@"
    echo $((attempt + 1)) >"$scope/attempt.new" && mv -f "$scope/attempt.new" "$scope/attempt"
    local others=$app. claimed= id; [ "$policy" = ROLE ] && others=$app.$role-
    for id in $(torchx_others -a "$others"); do
        [ -e "$scope/run.$attempt.$id" ] && mkdir "$scope/again.$attempt.$id" 2>/dev/null && claimed="$claimed $id"
    done
    [ -z "$claimed" ] || brequeue -r -d -e $claimed >/dev/null 2>&1
    return 0
}

torchx_failed() {
    if [ "$(torchx_number "$scope/attempt")" != "$attempt" ]; then torchx_go_on; exit @REQUEUE@; fi
    if [ "$killed" = 0 ] && torchx_retried; then exit @REQUEUE@; fi
    [ "$code" = @REQUEUE@ ] && [ "$retries" -gt 0 ] && code=1
    mkdir -p "$job/lost.$role.$attempt/$k"
    local lost=("$job/lost.$role.$attempt"/*) others
    if [ ${#lost[@]} -gt "$spare" ] && mkdir "$job/ended.$attempt" 2>/dev/null; then
        others=$(torchx_others "" "$app."); [ -z "$others" ] || bkill $others >/dev/null 2>&1
    fi
    exit "$code"
}

torchx_container() { # NAME COMMAND...: when LSF's SIGKILL takes the client, its container would go on
    local name=$1 child code; shift
    trap '{ torchx_pause 2; docker kill "$name"; } >/dev/null 2>&1 &' TERM
    trap : INT
    "$@" & child=$!
    while wait "$child"; code=$?; kill -0 "$child" 2>/dev/null; do :; done
    exit "$code"
}

torchx_run() {
    dir=$job/$folder
    mkdir -p "$dir" || exit 73
    exec </dev/null
    runs=$(($(torchx_number "$dir/runs") + 1)); echo "$runs" >"$dir/runs"
    attempt=$(torchx_number "$scope/attempt")
    while : >"$scope/run.$attempt.$LSB_JOBID"; [ "$(torchx_number "$scope/attempt")" != "$attempt" ]; do
        torchx_go_on; attempt=$(torchx_number "$scope/attempt")
    done
    export TORCHELASTIC_ERROR_FILE="${TORCHELASTIC_ERROR_FILE:-$dir/@ERROR@}"
    rm -f "$dir/@EXIT@" "$dir/@ERROR@"
    (set -C; printf '%(%s)T' -1 >"$job/@STARTED@") 2>/dev/null
    sizes=; torchx_clock & clock=$!
    killed=0; ended=0; trap 'killed=1 ended=1' INT TERM; trap 'killed=1' USR2
    # In a process of its own: variables of the program are not ours, and what bash says of its end is not its output.
    if { cd "$cwd" && torchx_rank0; } 2>>"$dir/@ERR@"; then
        (exec >>"$dir/@OUT@" 2>>"$dir/@ERR@"; torchx_program); code=$?
    else code=1; fi
    trap '' INT TERM USR2
    [ "$code$ended" = 01 ] && code=143 # else LSF counts a job that ends well when killed as done
    kill "$clock" 2>/dev/null; wait "$clock" 2>/dev/null; sizes=; torchx_tick
    printf '%s %s %(%s)T\n' "$code" "$killed" -1 >"$dir/@EXIT@"
    printf '%(%s)T' -1 >"$job/@ENDED@"
    [ "$code" = 0 ] || torchx_failed
    exit 0
}
"""


def render_replicas(
    app_id: str,
    app: AppDef,
    members: list[Replica],
    command: Callable[[str, Role], str],
    *,
    docker: bool = False,
    own_network: bool = False,
    whole: bool = True,
) -> str:
    """The text of ``replicas.sh``.

    Args:
        members: all replicas, macros replaced.
        command: makes a replica's command line, as the shell reads it, of the name of the LSF job and the role.
        docker: the commands run containers.
        own_network: replicas are not on their host's network, and ports of the host say nothing to them.
        whole: False: without the part that is the same in every job.
    """
    lines = [
        "#!/bin/bash",
        f"# The replicas of torchx job {app_id}; LSF runs this with the number of the role and of the replica.",
        f"app={quote(app_id)} group={quote(group_of(app_id))} own_network={'1' if own_network else ''}",
        _program() if whole else "# ... (torchx_run and its functions: the same in every job)",
        'case "$1.$2" in',
    ]
    numbers = {role.name: index for index, role in enumerate(app.roles)}
    for member in members:
        lines += _replica(app_id, numbers[member.role.name], member, command, docker=docker)
    return "\n".join([*lines, '*) echo "torchx: no replica $1.$2" >&2; exit 64 ;;', "esac", ""])


def _program() -> str:
    program = _PROGRAM
    for mark, value in {
        "OUT": STDOUT_LOG,
        "ERR": STDERR_LOG,
        "TIMES": TIMES_INDEX,
        "ERROR": ERROR_FILE,
        "EXIT": EXIT_FILE,
        "STARTED": STARTED_FILE,
        "ENDED": ENDED_FILE,
        "RESTARTS": RESTARTS_FILE,
        "REQUEUE": str(REQUEUE_CODE),
        "HOST": ENV_RANK0_HOST,
        "PORT": ENV_RANK0_PORT,
    }.items():
        program = program.replace(f"@{mark}@", value)
    return program


def _replica(
    app_id: str, index: int, member: Replica, command: Callable[[str, Role], str], *, docker: bool
) -> list[str]:
    role, k = member.role, member.k
    folder = folder_name(role.name)
    everybody = role.retry_policy is RetryPolicy.APPLICATION
    spare = 0 if role.min_replicas is None else role.num_replicas - role.min_replicas
    name = job_name(app_id, index, role.name, k)
    rank0 = job_name(app_id, index, role.name, 0)
    words = env_words(role.env)
    fixed = [f"{name}={quote(value)}" for name, value in role.env.items() if name in _READ_ONLY]
    words += fixed if words or not fixed else ["env", *fixed]
    return [
        f"{index}.{k})",
        f"role={index} k={k} folder={quote(posixpath.join(folder, str(k)))} rank0={quote(rank0)}",
        f"policy={role.retry_policy.value} retries={role.max_retries} spare={spare}"
        + (" scope=$job" if everybody else f" scope=$job/{quote(folder)}"),
        f"cwd={quote(role.image)}" if posixpath.isabs(role.image) else "cwd=$PWD",
        "torchx_program() {",
        *exports({name: value for name, value in role.env.items() if name not in _READ_ONLY}),
        " ".join([f"torchx_container {_container(name)}" if docker else "exec --", *words, command(name, role)]),
        "}",
        "torchx_run ;;",
    ]


def _container(name: str) -> str:
    return f"torchx-{name}"


def render_docker(name: str, role: Role, *, workdir: str | None, host_network: bool, shm_size: str | None) -> str:
    """The command line of a replica in a container of its image; see ``get_docker_command`` of the backend."""
    words = ["docker", "run", "--rm", "--init", "--name", _container(name)]
    late = ['-u "$(id -u):$(id -g)"', '-v "$job:$job"', f"-e {ENV_RANK0_HOST}", f"-e {ENV_RANK0_PORT}"]
    late += ["-e TORCHELASTIC_ERROR_FILE"]
    for mount in role.mounts:
        if isinstance(mount, DeviceMount):
            words += ["--device", f"{mount.src_path}:{mount.dst_path}:{mount.permissions}"]
        elif isinstance(mount, BindMount | VolumeMount):
            words += ["--mount", format_mount(mount)]
    # By name alone: the values are in our environment, and do not show in the host's list of processes.
    words += [word for variable in role.env for word in ("-e", variable)]
    words += ["--network", "host"] if host_network else []
    for port in sorted(set(role.port_map.values())) if not host_network else []:
        words += ["-p", f"{port}:{port}"]
    words += ["--shm-size", shm_size] if shm_size else []
    words += ["-w", workdir] if workdir else []
    if role.resource.gpu > 0:
        late += ['--gpus "\\"device=$CUDA_VISIBLE_DEVICES\\""']
    return " ".join(
        [*map(quote, words), *late, "--entrypoint", quote(role.entrypoint), quote(role.image), *map(quote, role.args)]
    )
