#!/bin/bash
# The part of a Slurm job's batch script for retries by cause, present in jobs with such a policy. `decide`, defined before
# it, runs retry.pyz in the job's folder (torchx/schedulers/slurm/attempts.py), which prints `again HOSTS MEMORY` or `end`.
#
# shellcheck disable=SC2034,SC2154

ask_for_checkpoint() { : >"$folder/checkpoint"; }

change() {  # hosts to avoid, or -; memory in thousandths of the request
  local component=$SLURM_JOB_ID changes=()
  [[ $1 == - ]] || changes+=("ExcNodeList=${exclude:+$exclude,}$1")  # keep the user's own exclusions
  if (($2 > 1000 && ${SLURM_MEM_PER_NODE:-0} > 0)); then
    changes+=("MinMemoryNode=$((SLURM_MEM_PER_NODE * $2 / memory))")
  fi
  ((${#changes[@]})) || return 0
  for component in "$SLURM_JOB_ID" "${!SLURM_JOB_ID_HET_GROUP_@}"; do
    [[ $component != SLURM_JOB_ID_* ]] || component=${!component}
    for ((i = 0; i < 20; i++)); do  # Slurm accepts changes to the next attempt while it ends this one, but not immediately
      if (trap '' TERM; scontrol update "JobId=$component" "${changes[@]}" 2>>"$folder/retry.log"); then break; fi
      sleep 1
    done
  done
}

again() {  # as `change`
  note retry "$(wc -l <"$folder/attempts.jsonl")"
  echo "$2" >"$folder/memory"
  # Slurm ends the job before scontrol exits: without the trap a requeue would look like a rejection.
  if (trap '' TERM; exec scontrol requeue "$SLURM_JOB_ID"); then
    change "$1" "$2"
    for ((i = 0; i < 60 || terminated; i++)); do sleep 1; done
  fi
  if [[ ${how-} == timeout ]]; then  # its time on its nodes is over: without a requeue, nothing follows
    decide refused >/dev/null
    return
  fi
  # If the job cannot requeue itself, it restarts on its nodes.
  ((terminated)) || TORCHX_TRY=$((${TORCHX_TRY:-0} + 1)) exec "$BASH" "$folder/job.sh"
}

on_avoided() {  # whether this attempt runs on one of these comma-separated hosts
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
  # A `read` may lose its timeout when a signal interrupts it, so give it a line to read.
  trap 'clock; due=1 due_at=$((now + (early > 60 ? early - 40 : early / 3))); ask_for_checkpoint; echo due >&"$bus"' USR1
  if ((${SLURM_RESTART_COUNT:-0})) && [[ -z ${TORCHX_TRY-} ]]; then  # requeued, by this script or by Slurm
    read -r verdict hosts factor < <(decide requeued)
    if [[ $verdict == end ]]; then
      note end 1
      exit 1
    fi
    # The change may have been rejected or undone: requeue up to three times, then accept the nodes.
    if [[ $hosts != - ]] && on_avoided "$hosts"; then
      echo "torchx: started on a node that it is to avoid: $hosts" >>"$folder/retry.log"
      echo >>"$folder/put_back"
      if (($(wc -l <"$folder/put_back") <= 3)); then again "$hosts" "$factor"; fi
    fi
  fi
  rm -f "$folder/checkpoint"
}
