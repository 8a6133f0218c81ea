#!/bin/bash
# The batch script of a sweep on Slurm: each task of a job array runs it; the first task that starts submits the remaining
# arrays, and what Slurm had no room for is left to the last task of an array.
#
# It needs bash 4.2 and Slurm's own commands. torchx/schedulers/slurm/sweeps.py replaces the line `# @JOB@` by what differs
# between sweeps: the variables `count` (of all elements), `size` (maximum per array), `width` (elements at a time; empty: no
# limit), `tasks` (their number), `pack` (how many of them an element runs, one after another), `name`, `role` (folder of the logs), `every` (seconds between two samples of a task's usage; empty: no sampling),
# `kept` (variables of Slurm for later arrays), `hidden` (variables that `sbatch` does not get), and the function `task`, which becomes the task's program.
#
# Slurm calls `array.sh FIRST [SWEEP]`, torchx calls `array.sh more SWEEP`. Files in the folder: `values`, one line per task;
# `chunks`, one line `FIRST COUNT JOBID` per array; `more.lock`; `more.tried`; `ends.HOST`, lines `TASK CODE TIME`; `cancelled`; `skipped.TASK`.
#
# shellcheck disable=SC2154

folder=${BASH_SOURCE[0]%/*}
[[ ${1-} == more ]] || folder=$PWD
cd "$folder" || exit 78
if [[ ! -s job.json ]]; then
  echo "torchx: node ${SLURMD_NODENAME:-?} does not see the folder of this job; it must be on a shared file system" >&2
  exit 78
fi
# @JOB@
# shellcheck disable=SC2329  # called by `task`
run() {
  command -v "$1" >/dev/null || { echo "torchx: \`$1\` is not on this node, or not on PATH" >&2; exit 127; }
  exec "$@"
}

started() {  # start time of a local process, in ticks
  local line
  read -r line <"/proc/$1/stat" && read -r -a line <<<"${line##*) }" && echo "${line[19]}"
} 2>/dev/null

lock() {  # a link that names its owner on any node; taken over if the owner was killed, or is silent elsewhere
  local owner host pid began
  ln -sT "$HOSTNAME $$ $(started $$)" more.lock 2>/dev/null && return
  owner=$(readlink more.lock) && read -r host pid began <<<"$owner" || return
  if [[ $host == "$HOSTNAME" ]]; then
    # The owner's `sbatch` may outlive it while it retries, and still submit the array.
    if [[ $(started "$pid") == "$began" ]] || grep -qsz "^--job-name=$name+" /proc/[0-9]*/cmdline; then return 1; fi
  else
    [[ -n $(find more.lock -maxdepth 0 -mmin +10 2>/dev/null) ]] || return
  fi
  # Each process locks only once, so only the one that creates this folder may remove the lock.
  mkdir "left.${owner// /.}" 2>/dev/null && rm -f more.lock && lock && taken=1
}

named() { squeue --noheader --me --states=all --name="$1" --format=%F | grep -m 1 -xE '[0-9]+'; }

more() {  # submit as many arrays as Slurm accepts; one process at a time
  local first=0 n=$size id words last='' taken='' outer=()
  if ((size >= count)) || [[ -e cancelled ]] || ! lock; then return 0; fi
  [[ -s chunks ]] || echo "0 $size $sweep" >chunks
  while read -r -a words; do
    if ((words[0] + words[1] > first)); then first=$((words[0] + words[1])) last=${words[2]}; fi
  done <chunks
  for id in "${!SLURM_@}"; do  # a job inherits nothing of the one in which it is submitted
    [[ " $kept " == *" $id "* ]] || outer+=(-u "$id")
  done
  for id in $hidden; do outer+=(-u "$id"); done
  while ((first < count && n > 0)) && [[ ! -e cancelled ]]; do
    touch -h more.lock  # a sign of life
    ((n <= count - first)) || n=$((count - first))
    words=(--parsable --chdir="$folder" --job-name="$name+$first+$n" --output="${folder//%/%%}/${role//%/%%}/$first+%a.log")
    [[ -z $width ]] || words+=("--dependency=afterany:$last")
    # A previous owner that was killed may have submitted this array without recording it.
    id=${taken:+$(named "$name+$first+$n")}
    if [[ -n $id ]] || id=$(env "${outer[@]}" sbatch "${words[@]}" --array="0-$((n - 1))${width:+%$width}" array.sh "$first" "$sweep" 2>more.log); then
      last=$(sed -nE 's/^\s*([0-9]+)(;\S*)?\s*$/\1/p' <<<"$id" | sort -u)  # some sites print more
      [[ $last =~ ^[0-9]+$ ]] || last=$(named "$name+$first+$n")
      echo "$first $n $last" >>chunks
      first=$((first + n))
    else
      n=$((n / 2))
    fi
  done
  : >more.tried
  rm -f more.lock
}

if [[ ${1-} == more ]]; then
  sweep=$2
  more
  exit
fi

has_ended() {  # task: by itself, in an earlier attempt of this element
  grep -hs "^$1 " ends.* | grep -qv "^$1 143 "
}

record() { printf '%d %d %(%s)T\n' "$k" "$1" -1 >>"ends.${SLURMD_NODENAME:-$HOSTNAME}"; }

one() {  # run task k, and record how it ended
  local log=$folder/$role/$first+$SLURM_ARRAY_TASK_ID line sampler='' watcher=''
  mapfile -t -s "$k" -n 1 line <values
  eval "${line[0]}"
  export TORCHX_TASK=$k TORCHX_RANK0_HOST=localhost
  if ((pack == 1)); then
    task &
  else
    log+=.$((k % pack))
    group=-  # each task is a process group
    set -m
    task >>"$log.log" 2>&1 &
    set +m
  fi
  child=$!
  [[ -z $ended ]] || kill "$child" 2>/dev/null # the signal came before there was a child
  if ((pack > 1)); then
    (until [[ -e skipped.$k ]]; do read -rt 1 <> <(:); done; kill -- "-$child") </dev/null >/dev/null 2>&1 &
    watcher=$!
    disown "$watcher"
  fi
  if [[ -n $every ]]; then  # start nothing, not even `sleep`, before the first sample: most tasks end earlier
    (
      read -rt "$every" <> <(:)
      exec python3 -I -S metrics.py "$every" "$child" "$log.jsonl"
    ) </dev/null >/dev/null 2>&1 &
    sampler=$!
    disown "$sampler"
  fi
  while wait "$child"; code=$?; kill -0 "$child" 2>/dev/null; do :; done  # a signal interrupts `wait`
  [[ -z $sampler$watcher ]] || kill $sampler $watcher 2>/dev/null
  if [[ -n $ended || -e skipped.$k ]]; then code=143; fi  # whatever it exits with when killed
  record "$code"
}

first=$1 sweep=${2:-$SLURM_ARRAY_JOB_ID} child='' ended='' group='' worst=0
# shellcheck disable=SC2034  # `task` may use app_id, and a line of values nl
nl=$'\n' element=$((first + SLURM_ARRAY_TASK_ID)) app_id=sweep-$sweep
[[ ! -e cancelled ]] || exit 0
[[ -e more.tried ]] || more  # before the tasks, whose memory and processors it would use otherwise
trap 'ended=1; [[ -z $child ]] || kill -- "$group$child" 2>/dev/null' TERM
for ((k = element * pack; k < (element + 1) * pack && k < tasks; k++)); do
  if [[ -n $ended || -e cancelled ]]; then break; fi
  if ((pack > 1)) && has_ended "$k"; then continue; fi
  if [[ -e skipped.$k ]]; then
    ((pack == 1)) || record 143
    continue
  fi
  one
  ((code == 0)) || worst=$code
done
if ((SLURM_ARRAY_TASK_ID == SLURM_ARRAY_TASK_MAX)); then more; fi
exit "$worst"
