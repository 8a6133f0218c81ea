#!/bin/bash
# The part of an exported local job that is the same for every job: starts the replicas and handles their ends.
#
# job.sh sets `here`, `logs`, `grace` and `limit` (seconds; 0: none), the arrays `paths` and `role_of` by replica, `sizes`,
# `least`, `retries` and `policy` by role, and defines a function `replica_N` for each replica.
#
# shellcheck disable=SC2154

pid=() round=() used=() role_used=() lost=() ended=() code=0 alive=0 job_used=0
exec {bus}<> <(:) # a pipe to ourselves, on which replicas report their exit codes

if ((${#paths[@]} > 1)); then
  TORCHX_RANK0_PORT=$((20000 + RANDOM % 10000))
  while (: <"/dev/tcp/127.0.0.1/$TORCHX_RANK0_PORT") 2>/dev/null; do TORCHX_RANK0_PORT=$((TORCHX_RANK0_PORT + 1)); done
  export TORCHX_RANK0_PORT
fi

start() { # replicas
  local i path
  if (($# == ${#paths[@]})); then SECONDS=0; fi # the time limit is that of an attempt
  for i in "$@"; do
    path=$logs/${paths[i]}
    mkdir -p -- "$path" || exit 1
    rm -f -- "$path/error.json"
    round[i]=$((${round[i]-0} + 1)) ended[i]=
    set -m # a process group of its own
    ( # reports the exit code even if a signal ends the replica
      trap : TERM
      (trap - TERM; "replica_$i") >>"$path/stdout.log" 2>>"$path/stderr.log" </dev/null {bus}>&-
      echo "$i ${round[i]} $?" >&"$bus"
    ) &
    pid[i]=$!
    set +m
    alive=$((alive + 1))
  done
}

running() { # replicas
  local i
  for i in "$@"; do kill -0 -- "-${pid[i]}" 2>/dev/null && return 0; done
  return 1
}

finish() { # replicas: SIGTERM, then SIGKILL; later reports of them are ignored
  local i n=0
  for i in "$@"; do
    round[i]=$((round[i] + 1))
    if [[ -z ${ended[i]} ]]; then alive=$((alive - 1)) ended[i]=1; fi
    kill -TERM -- "-${pid[i]}" 2>/dev/null
  done
  while running "$@" && ((n < grace * 10)); do sleep 0.1; n=$((n + 1)); done
  for i in "$@"; do kill -KILL -- "-${pid[i]}" 2>/dev/null; done
}

members() { # role
  local i
  for i in "${!paths[@]}"; do [[ ${role_of[i]} != "$1" ]] || echo "$i"; done
}

failure() { # replica, exit code
  local i=$1 role=${role_of[$1]} all=()
  if [[ ${policy[role]} == REPLICA ]] && ((${used[i]-0} < retries[role])); then
    used[i]=$((${used[i]-0} + 1))
    start "$i"
    return
  fi
  lost[role]=$((${lost[role]-0} + 1))
  ((sizes[role] - lost[role] < least[role])) || return
  if [[ ${policy[role]} == ROLE ]] && ((${role_used[role]-0} < retries[role])); then
    role_used[role]=$((${role_used[role]-0} + 1)) lost[role]=0
    mapfile -t all < <(members "$role")
    finish "${all[@]}"
    start "${all[@]}"
    return
  fi
  if [[ ${policy[role]} == APPLICATION ]] && ((job_used < retries[role])); then
    job_used=$((job_used + 1)) lost=()
    finish "${!paths[@]}"
    start "${!paths[@]}"
    return
  fi
  code=$2
  echo "FAILED: ${paths[i]} ended with exit code $2; the last lines of its stderr:" >&2
  tail -n 5 -- "$logs/${paths[i]}/stderr.log" >&2
  finish "${!paths[@]}"
}

trap 'finish "${!paths[@]}"; exit 143' TERM HUP
trap 'finish "${!paths[@]}"; exit 130' INT
echo "logs: $logs" >&2
start "${!paths[@]}"
while ((alive)); do
  if ! read -r -t 1 -u "$bus" i r status; then
    if ((limit && SECONDS >= limit)); then
      echo "FAILED: the job has reached its time limit of $limit s" >&2
      finish "${!paths[@]}"
      code=124
    fi
    continue
  fi
  [[ ${round[i]} == "$r" && -z ${ended[i]} ]] || continue
  alive=$((alive - 1)) ended[i]=1
  ((status == 0)) || failure "$i" "$status"
done
((code)) || echo SUCCEEDED >&2
exit "$code"
