#!/bin/bash
# The part of a Slurm job's batch script for roles that wait for others, present in jobs with an order: job.sh calls its
# functions in the lines marked @ORDER@. torchx/schedulers/slurm/order.py sets the arrays of roles `after`, `probes`, `what`,
# `where` (folders of files), `within`, `least_ready`, `ends_job` and `restarts_after`; and those of replicas `port` (to probe) and `listed` (`:PORT` in lists).
#
# shellcheck disable=SC2034,SC2154,SC2329

declare -A ready=() held=() since=() seen=() prober=() sizes_at=() hosts=() new=()
finished=0

find_addresses() {
  local i role
  for i in "${!paths[@]}"; do
    role=${role_of[$i]}
    [[ -z ${host[$i]} ]] || hosts[$role]+=${hosts[$role]:+,}${host[$i]}${listed[$i]}
  done
  for role in "${!hosts[@]}"; do ((${#hosts[$role]} <= 65536)) || hosts[$role]=; done  # Linux takes no longer variables
}

is_ready() {  # role
  local i n=0
  for i in "${!ready[@]}"; do ((role_of[i] != $1)) || n=$((n + 1)); done
  ((n >= least_ready[$1]))
}

hold() {  # replica that is about to start: whether it has to wait
  local other
  for other in ${after[${role_of[$1]}]}; do
    is_ready "$other" && continue
    held[$1]=1
    [[ -z ${ended[$1]-} ]] || note waits "${paths[$1]}"
    return 0
  done
  unset "held[$1]"
  return 1
}

release() {  # starts those that waited
  local i
  for i in "${!paths[@]}"; do
    if [[ -n ${held[$i]-} ]] && ((!stopping && !terminated)); then start "$i"; fi
  done
}

is_up() {  # replica: it is ready
  local role=${role_of[$1]}
  ready[$1]=1
  unset "since[$1]"
  [[ -z ${probes[$role]} ]] || note ready "${paths[$1]}"
  if is_ready "$role"; then release; fi
}

look() {  # replica
  local role=${role_of[$1]} path=${paths[$1]} sizes file dir
  read -r -a sizes <<<"${sizes_at[$1]}"
  file=${what[$role]}
  if [[ ${probes[$role]} == file && $file != /* ]]; then choose_dir "${where[$role]}"; file=$dir/$file; fi
  probe "${probes[$role]}" "${host[$1]}" "${port[$1]}" "$file" "$path/stdout.log" "${sizes[0]}" "$path/stderr.log" "${sizes[1]}"
}

begun() {  # replica that has just started, sizes of its logs: probes it in the background
  local i=$1 role=${role_of[$1]}
  unset "ready[$i]"
  if [[ -z ${probes[$role]} ]]; then is_up "$i"; return; fi
  sizes_at[$i]="${2-0} ${3-0}"
  clock
  since[$i]=$now
  (
    pause=0.1 before=''
    until said=$(look "$i"); do
      [[ $said == "$before" ]] || echo "seen $i $said" >&"$bus"
      before=$said
      read -rt "$pause" <> <(:)
      case $pause in 0.1) pause=0.5 ;; 0.5) pause=1 ;; *) pause=2 ;; esac
    done
    echo "ready $i $BASHPID" >&"$bus"
  ) </dev/null &
  prober[$i]=$!
}

heard() {  # words of the bus
  case $1 in
    ready) [[ ${prober[$2]-} != "$3" ]] || is_up "$2" ;;
    seen) seen[$2]=${*:3} ;;
    pid) ((!stopping)) || new[$2]=1 ;;  # it was about to start when the others were told to end
  esac
}

gone() {  # replica, exit code: before anything follows from its end
  local role=${role_of[$1]}
  if [[ -n ${prober[$1]-} ]]; then kill "${prober[$1]}" 2>/dev/null; fi
  unset "prober[$1]" "since[$1]"
  if (($2)); then
    unset "ready[$1]"
  elif [[ -z ${ready[$1]-} && ${probes[$role]} == [lf]* ]] && look "$1" >/dev/null; then  # it ended before the next look
    is_up "$1"
  fi
}

closed() {  # role of which a replica has ended: whether this ends the job
  local i open=0 possible=0 waits=0
  for i in "${!role_of[@]}"; do
    if ((role_of[i] != $1)); then
      if [[ -n ${held[$i]-} && " ${after[${role_of[$i]}]} " == *" $1 "* ]]; then waits=1; fi
    elif [[ -n ${held[$i]-} || ${ended[$i]-1} == 0 || ${again[$1]-0} == 1 ]]; then
      open=$((open + 1)) possible=$((possible + 1))
    elif [[ -n ${ready[$i]-} ]]; then
      possible=$((possible + 1))
    fi
  done
  ((open == 0 && ends_job[$1])) || ((waits && possible < least_ready[$1])) || return
  sleep 1  # when the whole job ends, replicas are signalled first
  if ((terminated)); then return; fi
  if ((!ends_job[$1])); then unready "$1" early; return; fi
  finished=1
  give_up 0
}

unready() {  # role, `late` or `early`
  local i file said=''
  for i in "${!role_of[@]}"; do
    ((role_of[i] == $1)) && [[ -z ${ready[$i]-} && -n ${host[$i]} ]] && break
  done
  for file in "${paths[$i]}"/std{err,out}.log; do
    [[ -n $said ]] || said=$(tail -c 4096 -- "$file" | grep '[^[:space:]]' | tail -n 1 | tr -d '[:cntrl:]')
  done
  note unready "${paths[$i]}" "$2" "${seen[$i]-}"$'\t'"${said:0:200}"
  guilty=$1 policy[$1]=''  # not a failure of a replica, which would be started again
  give_up 1
}

give_up() {  # exit code: no role starts any more
  local i
  failed=1 code=$1
  for i in "${!prober[@]}"; do kill "${prober[$i]}" 2>/dev/null; done
  ((alive == 0)) || stop
}

keep_time() {
  local i
  for i in "${!new[@]}"; do
    if [[ ${ended[$i]} == 0 ]]; then kill "${pid[$i]}" 2>/dev/null; fi
  done
  ((!stopping && !terminated)) || return
  for i in "${!since[@]}"; do
    ((now - since[$i] >= within[${role_of[$i]}])) || continue
    unset "since[$i]"
    if ! is_ready "${role_of[$i]}"; then unready "${role_of[$i]}" late; return; fi
  done
}

forget() {  # role: its replicas will start again
  local i
  for i in "${!role_of[@]}"; do if ((role_of[i] == $1)); then unset "ready[$i]" "since[$i]"; fi; done
}

restart_with() {  # role that restarts: so do those after it that run
  local role i
  if [[ ${again[$1]-0} == 1 ]]; then forget "$1"; fi
  ((restarts_after[$1])) || return
  for role in "${!after[@]}"; do
    [[ " ${after[$role]} " == *" $1 "* && ${again[$role]-0} == 0 ]] || continue
    for i in "${!role_of[@]}"; do
      if ((role_of[i] == role)) && [[ ${ended[$i]-1} == 0 ]]; then
        again["$role"]=1
        kill_steps "$role"
        restart_with "$role"
        break
      fi
    done
  done
}
