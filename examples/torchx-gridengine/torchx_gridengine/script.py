"""The script of a job: Grid Engine runs it once for each replica, as one task of an array job."""

from __future__ import annotations

from torchx.schedulers.batch.folders import folder_name
from torchx.schedulers.kit.replicas import Replica, replicas
from torchx.schedulers.kit.shell import env_words, exports, quote
from torchx.specs import AppDef

JOB_SCRIPT = "job.sh"
RANK0_ENV = "TORCHX_RANK0_HOST"

# A replica writes `started` (time, host) and `exit` (exit code, starts, time) into its folder: what Grid Engine forgets
# within seconds of the end is still known there. One that fails for good ends the others.
_PROGRAM = r"""
now() { date +%s; }
tick() { # sizes of the logs by the time, for --since and --until
    new=$(stat -c %s "$dir/stdout.log" "$dir/stderr.log" | tr '\n' ' ')
    [ "$new" = "$sizes" ] || echo "$(now) $new" >>"$dir/times.idx"
    sizes=$new
}
mkdir -p "$dir" && : >>"$dir/stdout.log" && : >>"$dir/stderr.log" || exit 73
[ "$k" != 0 ] || { hostname >"$rank0.new" && mv "$rank0.new" "$rank0"; }
until [ -s "$rank0" ]; do ls "$job" >/dev/null; sleep 1; done # `ls`: NFS forgets that there was no such file
TORCHX_RANK0_HOST=$(cat "$rank0"); export TORCHX_RANK0_HOST
TORCHELASTIC_ERROR_FILE=$dir/error.json; export TORCHELASTIC_ERROR_FILE
echo "$(now) $(hostname)" >"$dir/started"
sizes='0 0 '; (while sleep 1; do tick; done) & clock=$!
starts=0
while :; do
    starts=$((starts + 1))
    (cd "$cwd" && torchx_program) </dev/null >>"$dir/stdout.log" 2>>"$dir/stderr.log"; code=$?
    [ "$code" != 0 ] && [ "$starts" -le "$retries" ] || break
done
kill "$clock"; wait "$clock"; tick
echo "$code $starts $(now)" >"$dir/exit.new" && mv "$dir/exit.new" "$dir/exit"
[ "$code" = 0 ] || PATH=$PATH:$SGE_BINARY_PATH qdel "$JOB_ID"
exit "$code"
"""


def render(app_id: str, app: AppDef, cwd: str, folder: str) -> str:
    """The script. Whatever is in the words of a role, they reach its program as they are.

    Args:
        cwd: where a role runs whose image is not a folder.
        folder: the job's own folder.
    """
    lines = ["#!/bin/sh", f"# torchx job {app_id}; a task of it is one replica", f"job={quote(folder)}"]
    lines.append('case "$SGE_TASK_ID" in')
    for replica in replicas(app, app_id, rank0_env=RANK0_ENV, img_root=lambda role: role.image):
        lines += _case(replica, cwd)
    return "\n".join([*lines, "*) exit 64 ;;", "esac", _PROGRAM.strip(), ""])


def _case(replica: Replica, cwd: str) -> list[str]:
    role, k = replica.role, replica.k
    folder = quote(folder_name(role.name))
    where = role.image if role.image.startswith("/") else cwd
    return [
        f"{replica.index + 1})",
        f"dir=$job/{folder}/{k} rank0=$job/{folder}/rank0 k={k} retries={role.max_retries} cwd={quote(where)}",
        "torchx_program() {",
        *exports(role.env),
        " ".join(["exec", *env_words(role.env), quote(role.entrypoint), *map(quote, role.args)]),
        "} ;;",
    ]
