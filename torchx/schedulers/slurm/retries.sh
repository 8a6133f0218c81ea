#!/bin/bash
# The part of a Slurm job's batch script that starts the job again by the cause of a failure. It stands in job.sh where the
# job has a policy; the program that decides is retry.pyz in the job's folder, see torchx/schedulers/slurm/attempts.py;
# `decide`, which asks it, stands before it. It prints `again HOSTS MEMORY`, or `end`.
#
# shellcheck disable=SC2034,SC2154

ask_for_checkpoint() { : >"$folder/checkpoint"; }

change() {  # hosts to avoid, or -; thousandths of the memory asked for
  local component=$SLURM_JOB_ID changes=()
  [[ $1 == - ]] || changes+=("ExcNodeList=${exclude:+$exclude,}$1")  # what the user excludes stays excluded
  if (($2 > 1000 && ${SLURM_MEM_PER_NODE:-0} > 0)); then
    changes+=("MinMemoryNode=$((SLURM_MEM_PER_NODE * $2 / memory))")
  fi
  ((${#changes[@]})) || return 0
  for component in "$SLURM_JOB_ID" "${!SLURM_JOB_ID_HET_GROUP_@}"; do
    [[ $component != SLURM_JOB_ID_* ]] || component=${!component}
    for ((i = 0; i < 20; i++)); do  # while Slurm ends this attempt it takes changes to the next one, but not at once
      if (trap '' TERM; scontrol update "JobId=$component" "${changes[@]}" 2>>"$folder/retry.log"); then break; fi
      sleep 1
    done
  done
}

again() {  # hosts to avoid, or -; thousandths of the memory
  note retry "$(wc -l <"$folder/attempts.jsonl")"
  echo "$2" >"$folder/memory"
  # Slurm ends all of the job while it answers: scontrol must be deaf to it, or a requeue would look like a refusal.
  if (trap '' TERM; exec scontrol requeue "$SLURM_JOB_ID"); then
    change "$1" "$2"
    for ((i = 0; i < 60 || terminated; i++)); do sleep 1; done
  fi
  # Where a job cannot be requeued from within, it starts again on the nodes that it has.
  ((terminated)) || TORCHX_TRY=$((${TORCHX_TRY:-0} + 1)) exec "$BASH" "$folder/job.sh"
}

on_avoided() {  # hosts, comma separated: whether one of them is among those that this attempt got
  local group host
  for group in "${!group_nodes[@]}"; do
    for host in $(hosts_of "$group"); do
      if [[ ,$1, == *",$host,"* ]]; then return 0; fi
    done
  done
  return 1
}

begin_attempt() {
  memory=$(cat "$folder/memory" 2>/dev/null || echo 1000)
  export TORCHX_CHECKPOINT_NOW=$folder/checkpoint TORCHX_PROGRESS=$folder/progress
  trap 'terminated=1; ask_for_checkpoint' TERM
  # A `read` that a signal has interrupted may forget its time limit: it is given something to read.
  trap 'clock; due=1 due_at=$((now + (early > 60 ? early - 40 : early / 3))); ask_for_checkpoint; echo due >&"$bus"' USR1
  if ((${SLURM_RESTART_COUNT:-0})) && [[ -z ${TORCHX_TRY-} ]]; then  # was it us, or Slurm?
    read -r verdict hosts factor < <(decide requeued)
    if [[ $verdict == end ]]; then
      note end 1
      exit 1
    fi
    # The change may have been refused, or undone: a few times the job goes back into the queue, then it takes what it gets.
    if [[ $hosts != - ]] && on_avoided "$hosts"; then
      echo "torchx: started on a node that it is to avoid: $hosts" >>"$folder/retry.log"
      echo >>"$folder/put_back"
      if (($(wc -l <"$folder/put_back") <= 3)); then again "$hosts" "$factor"; fi
    fi
  fi
  rm -f "$folder/checkpoint"
}
