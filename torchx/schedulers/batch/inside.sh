#!/bin/bash
# Runs a command inside a replica of a job, on its node: bash inside.sh MARK SIGN TERM COMMAND...
#
# The replica is the oldest process of this user that has SIGN in its environment. The command gets its environment, its
# working directory and, if it has one, its container. Reports on stderr start with MARK: first the Slurm step or the process
# group, at the end the exit code. bash 4.2.
mark=$1 sign=$2 term=$3
shift 3

stat() {  # process, n: the nth field of its /proc stat after the name; 2: process group, 19: start time in ticks since boot
  local line fields
  { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
  read -r -a fields <<<"${line##*) }"
  echo "${fields[$2]}"
}

space=$(readlink /proc/self/ns/mnt)
replica='' oldest='' inner=0
mapfile -t found < <(grep -lzxF -e "$sign" /proc/[0-9]*/environ 2>/dev/null)
if ((${#found[@]})) && [[ -n ${SLURM_STEP_ID-} ]]; then
  only='^SLURM_STEP_ID='  # skip the srun that started the step
  if [[ $sign == TORCHX_TASK=* ]]; then only="^SLURM_JOB_ID=$SLURM_JOB_ID\$"; fi  # no steps; numbers repeat in other sweeps
  mapfile -t found < <(grep -lz -e "$only" "${found[@]}" 2>/dev/null)
fi
for path in ${found[@]+"${found[@]}"}; do
  pid=${path#/proc/} pid=${pid%/environ}
  if ! ticks=$(stat "$pid" 19) || ! there=$(readlink "/proc/$pid/ns/mnt"); then continue; fi
  inside=0
  [[ $there == "$space" ]] || inside=1
  if [[ -z $replica || $inside -gt $inner || ($inside == "$inner" && $ticks -lt $oldest) ]]; then
    replica=$pid oldest=$ticks inner=$inside
  fi
done
if [[ -z $replica ]]; then
  echo "$mark- 0" >&2
  exit 0
fi

env=()
while IFS= read -r -d '' entry; do env+=("$entry"); done <"/proc/$replica/environ"
enter=()
if ((inner)); then
  enter=(nsenter --target="$replica" --mount --root --wd)
  [[ $(readlink "/proc/$replica/ns/user") == "$(readlink /proc/self/ns/user)" ]] || enter+=(--user --preserve-credentials)
else
  cd "/proc/$replica/cwd" || exit 1
fi
if [[ -n $term ]]; then env+=("TERM=$term"); fi
trap : INT TERM HUP QUIT USR1 USR2
watcher=''
if [[ -n ${SLURM_STEP_ID-} ]]; then
  who=$SLURM_JOB_ID.$SLURM_STEP_ID
else  # the command must end with the replica
  who=$(stat $$ 2)
  (
    trap '' INT TERM HUP QUIT USR1 USR2
    while [[ $(stat "$replica" 19) == "$oldest" && $(stat "$replica" 0) != Z ]]; do read -rt 1 _ <> <(:); done
    kill -TERM -- "-$who"
    read -rt 5 _ <> <(:)
    kill -KILL -- "-$who"
  ) </dev/null &>/dev/null &
  watcher=$!
fi
echo "$mark$who" >&2
run=(${enter[@]+"${enter[@]}"} env -i ${env[@]+"${env[@]}"} "$@")
exec 3>&2 2>/dev/null  # hides bash's message about a signal that killed the command
if [[ -z $term && -t 1 ]]; then  # `srun --unbuffered` provides a terminal: give the command a pipe
  "${run[@]}" 2>&3 3>&- | (
    trap '' INT TERM HUP QUIT USR1 USR2
    exec cat 3>&-
  )
  code=${PIPESTATUS[0]}
else
  "${run[@]}" 2>&3 3>&-
  code=$?
fi
if [[ -n $watcher ]]; then kill -KILL "$watcher"; fi
echo "$mark= $code" >&3
exit 0
