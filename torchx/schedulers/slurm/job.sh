#!/bin/bash
# The batch script of a Slurm job: it starts a step for each replica and records what happens to it.
#
# It needs bash 4.2 and Slurm's own commands, and nothing else on the nodes. torchx/schedulers/slurm/request.py replaces the
# line `# @JOB@` by what differs between jobs: the arrays `paths`, `role_of`, `group_of`, `node_of`, `group_nodes`, `sizes`,
# `least`, `retries` and `policy`; a function `replica_N` for each replica; and the variables `cwd`, `secrets` (1: steps read
# secrets), `python` (the Python to try first; empty: no policy for retries by cause), `notify` and `watch` (the same for
# notices and the watchdog), `wish` (the watchdog's timeout and action, such as 10m:cancel), `idle` (the same for idle jobs;
# `plain`: work of processors is a first step), `every` (seconds between two samples of the replicas' usage; empty: none), `early` (how many seconds before the time limit the script is warned)
# and `inside` (the nodes of an allocation, which stays as it is: the script is itself one of its steps).
#
# Lines that begin with `# @ORDER@` are for jobs whose roles wait for others: see order.sh.
#
# shellcheck disable=SC2016,SC2034,SC2154,SC2206,SC2329

folder=$PWD
if [[ ! -s $folder/job.json ]]; then
  echo "torchx: node ${SLURMD_NODENAME:-?} does not see the folder of this job; it must be on a shared file system" >&2
  exit 78
fi
# @JOB@
at='' allocation=${SLURM_JOB_ID%%.*}
if [[ -n ${inside-} ]]; then
  at=${SLURM_JOB_ID#"$allocation"} at=${at#.} at=${at:-$SLURM_STEP_ID}
  for name in "${!SLURM_@}"; do  # what this step was given would count for those of the replicas
    case $name in SLURM_CONF | SLURM_CLUSTERS | SLURM_JWT) ;; *) unset "$name" ;; esac
  done
  export SLURM_JOB_ID=$allocation.$at SLURM_JOB_NODELIST=$inside
fi
# -- state of the job --------------------------------------------------------------------------------
declare -A host=() pid=() ended=() tries=() known=() again=() lost=() rank0=()
alive=0 failed=0 code=0 guilty=0 stopping=0 deadline=0 terminated=0 stamped=0 grace=30 now=0
exec {bus}<> <(:)  # a pipe to this script, through which replicas report how they ended
trap 'terminated=1' TERM

clock() {  # monotonic seconds, unlike SECONDS; IFS is explicit because a trap may run within another `read`
  local up
  IFS=' ' read -r up _ </proc/uptime && now=${up%.*} ticks=${up/./}
}
clock
began=$now

note() { printf '%(%s)T %s\n' -1 "$*" >>"$folder/events"; }

expand() {  # the hosts of n[1-3,7]x, if scontrol is missing
  local list=$1 head inner tail range from to i
  while [[ $list =~ ^([^][,]*)(\[([^]]*)\])?([^][,]*),?(.*)$ && -n $list ]]; do
    head=${BASH_REMATCH[1]} inner=${BASH_REMATCH[3]} tail=${BASH_REMATCH[4]} list=${BASH_REMATCH[5]}
    [[ -n $inner ]] || echo "$head$tail"
    for range in ${inner//,/ }; do
      from=${range%-*} to=${range#*-}
      for ((i = 10#$from; i <= 10#$to; i++)); do printf "%s%0${#from}d%s\n" "$head" "$i" "$tail"; done
    done
  done
}

hosts_of() {  # group
  local name=SLURM_JOB_NODELIST_HET_GROUP_$1
  local list=${!name:-$SLURM_JOB_NODELIST}
  if [[ -n $list && $list != *[][,]* ]]; then echo "$list"; return; fi  # one node: do not ask Slurm
  scontrol show hostnames "$list" 2>/dev/null || expand "$list"
}

# -- replicas ----------------------------------------------------------------------------------------
secrets_read='
  if [ ! -f "${0%/*/*}/secrets.sh" ]; then
    echo "torchx: the secrets of this job were removed when it ended; submit it again" >&2
    exit 78
  fi
  . "${0%/*/*}/secrets.sh"'
# Its parent exits at once, so that no program waits for it. Signals are for the program.
case $every in 0*) first_s=$every ;; *) first_s=1 ;; esac
sampled='
  ( (trap "" INT TERM HUP QUIT USR1 USR2; sleep '"$first_s"'
     exec python3 -I -S "${0%/*/*}/metrics.py" '"$every"' "$$" "$0/metrics.jsonl") </dev/null >/dev/null 2>&1 &)'
into='exec >>"$0/stdout.log" 2>>"$0/stderr.log" || exit 78'"${every:+$sampled}${secrets:+$secrets_read}"'
  command -v "$1" >/dev/null || { echo "torchx: \`$1\` is not on this node, or not on PATH" >&2; exit 127; }
  exec "$@"'

# The name identifies the replica of the step.
step() {
  export SLURM_JOB_ID=$allocation
  exec srun ${inside:+--overlap} --nodes=1 --ntasks=1 --export=ALL --job-name="replica.$i${at:+@$at}" --chdir="$dir" "$@"
}

choose_dir() {
  dir=$1
  [[ $dir == /* && -d $dir ]] || dir=$cwd
}

start() {  # replica
  local i=$1 path=$folder/${paths[$1]} lengths=() status
  # @ORDER@ if hold "$i"; then return; fi
  rm -f "$path/error.json"
  unset "pid[$i]"  # the old pid may belong to another process by now
  alive=$((alive + 1)) ended[$i]=0
  if [[ -s $path/stdout.log || -s $path/stderr.log ]]; then  # from earlier attempts
    mapfile -t lengths < <(stat -c %s -- "$path/stdout.log" "$path/stderr.log" 2>/dev/null)
  fi
  note up "${paths[$i]}" "${host[$i]}" "${lengths[@]}"
  (
    trap '' TERM  # Slurm itself ends the replica, and its exit code must still be read
    export TORCHX_RANK0_HOST=${rank0[${role_of[$i]}]} TORCHELASTIC_ERROR_FILE=$path/error.json TORCHX_STEPS=$path/steps
    "replica_$i" >"$path/srun.log" 2>&1 &
    echo "pid $i $!" >&"$bus"
    wait "$!"
    status=$?
    clock
    echo "down $i $status $ticks" >&"$bus"
  ) &
  # @ORDER@ begun "$i" "${lengths[@]}"
}

kill_steps() {  # [role]
  local i
  for i in "${!pid[@]}"; do
    if [[ ${ended[$i]} == 0 && (-z ${1-} || ${role_of[$i]} == "$1") ]]; then kill "${pid[$i]}" 2>/dev/null; fi
  done
}

stop() {  # all replicas: SIGTERM, and SIGKILL after the grace period
  clock
  stopping=1 deadline=$((now + grace)) stopped=${ticks-}
  local whose=("$SLURM_JOB_ID")
  if [[ -n $inside ]]; then  # with --ctld only the nodes of a step are asked
    mapfile -t whose < <(squeue --steps --noheader --jobs="$allocation" --format='%i %j' | sed -n "s/ replica\\..*@$at *$//p")
    whose=(--ctld "${whose[@]}")
  fi
  scancel --signal=TERM "${whose[@]}" 2>/dev/null || kill_steps
}

overdue() { ((stopping && now >= deadline)); }

down() {  # replica, exit code, when
  local i=$1 role=${role_of[$1]} status=$2 how=''
  # srun exits with 0 when a node is lost.
  if ((status == 0)) && [[ $(<"${paths[$i]}/srun.log") == *"Node failure on"* ]]; then status=1; fi
  alive=$((alive - 1)) ended[$i]=1
  if ((failed && stopping && status)) && ((${3-0} >= ${stopped:-1})); then how=' stopped'; fi
  # @ORDER@ if ((failed && stopping && ${3-0} >= ${stopped:-1})); then how=' stopped'; fi
  note down "${paths[$i]}" "$status$how"
  stamp "$i"
  # @ORDER@ gone "$i" "$status"
  ((stopping)) && return
  if ((status != 0)) && [[ ${again[$role]-0} == 0 ]]; then
    sleep 1  # when the whole job ends, replicas are signalled first
    ((terminated)) || failure "$i" "$role" "$status"
  fi
  [[ ${again[$role]-0} == 0 ]] || restart_role "$role"
  # @ORDER@ ((failed || stopping || terminated)) || closed "$role"
}

failure() {  # replica, role, exit code
  local key
  case ${policy[$2]} in REPLICA) key=$1 ;; ROLE) key=role$2 ;; *) key= ;; esac
  if [[ -n $key ]] && ((${tries[$key]-0} < retries[$2])); then
    tries[$key]=$((${tries[$key]-0} + 1))
    note again "${paths[$1]}"
    if [[ $key == "$1" ]]; then start "$1"; else again[$2]=1; kill_steps "$2"; fi
    # @ORDER@ restart_with "$2"
    return
  fi
  lost[$2]=$((${lost[$2]-0} + 1))
  ((sizes[$2] - ${lost[$2]} >= least[$2])) && return
  failed=1 code=$3 guilty=$2
  ((alive == 0)) || stop
}

restart_role() {  # after all of its replicas have ended
  local j
  for j in "${!role_of[@]}"; do
    if [[ ${role_of[$j]} == "$1" && ${ended[$j]-1} == 0 ]]; then return; fi
  done
  again[$1]=0
  for j in "${!role_of[@]}"; do
    if [[ ${role_of[$j]} == "$1" && -n ${host[$j]} ]]; then start "$j"; fi
  done
}

# -- sizes of the logs over time ---------------------------------------------------------------------
stamp() {  # [replica]
  local chosen=("${!paths[@]}") files=() lengths=() i n=0 now
  [[ -z ${1-} ]] || chosen=("$1")
  for i in "${chosen[@]}"; do files+=("${paths[$i]}/stdout.log" "${paths[$i]}/stderr.log"); done
  for i in "${files[@]}"; do : <"$i"; done 2>/dev/null  # opening a file makes NFS refresh its size
  mapfile -t lengths < <(stat -c %s -- "${files[@]}" 2>/dev/null)
  ((${#lengths[@]} == ${#files[@]})) || return
  for i in "${chosen[@]}"; do
    now="${lengths[n]} ${lengths[n + 1]}"
    n=$((n + 2))
    [[ ${known[$i]-0 0} != "$now" ]] || continue
    printf '%(%s)T %s\n' -1 "$now" >>"${paths[$i]}/times.idx"
    known[$i]=$now
  done
}

# -- silence -----------------------------------------------------------------------------------------
watch() {  # the program prints `hang` for each finding, with the action to take
  local since
  printf -v since '%(%s)T' -2  # the start of this shell
  start_watch ${idle:+"$idle" "$every" "$plain" "$since"} 1>&"$bus" || note hang
}

hang() {  # [cancel, retry or checkpoint]
  note hang
  if [[ -z ${1-} ]] || ((stopping || alive == 0)); then return; fi
  note silent
  hung=$1 failed=1 code=1
  if [[ $1 != checkpoint ]]; then stop; return; fi
  clock
  due=1 due_at=$((now + (early > 60 ? early - 40 : 60)))
  ask_for_checkpoint
}

# -- the job -----------------------------------------------------------------------------------------
due=0 hung='' watcher=''
if [[ -n ${watch-} ]]; then export TORCHX_PROGRESS=$folder/progress; fi
if [[ -n $python ]]; then begin_attempt; fi
note start "${SLURM_RESTART_COUNT:-0}" "$SLURM_JOB_ID"
for group in "${!group_nodes[@]}"; do
  mapfile -t nodes < <(hosts_of "$group")
  if [[ -n ${spares-} ]]; then mapfile -t nodes < <(mkdir -p -- "${paths[0]}" && fit_first "${nodes[@]}"); fi
  for i in "${!paths[@]}"; do
    if ((group_of[i] == group)); then host[$i]=${nodes[${node_of[$i]}]-}; fi
  done
done
for i in "${!paths[@]}"; do
  mkdir -p -- "${paths[$i]}"
  touch -- "${paths[$i]}/stdout.log" "${paths[$i]}/stderr.log"
  if [[ -z ${rank0[${role_of[$i]}]-} ]]; then rank0[${role_of[$i]}]=${host[$i]}; fi
done
# @ORDER@ find_addresses
export TORCHX_RANK0_PORT=$((10000 + (allocation * 7 + 131 * ${at:-0} + ${SLURM_RESTART_COUNT:-0}) % 20000))
rdzv=$SLURM_JOB_ID${SLURM_RESTART_COUNT:+.$SLURM_RESTART_COUNT}${TORCHX_TRY:+-$TORCHX_TRY}
unset TORCHX_TRY
for i in "${!paths[@]}"; do
  if [[ -n ${host[$i]} ]]; then
    start "$i"
  else  # an elastic job got fewer nodes
    note absent "${paths[$i]}"
    lost[${role_of[$i]}]=$((${lost[${role_of[$i]}]-0} + 1))
  fi
done
if [[ -n ${watch-} ]]; then watch; fi
news=
while ((alive)); do
  line=
  if ! IFS= read -r -t 1 -u "$bus" line; then
    news+=$line  # `read` may time out in the middle of a line
  else
    words=($news$line) news=
    case ${words[0]} in pid) pid[${words[1]}]=${words[2]} ;; down) down "${words[@]:1}" ;; hang) hang "${words[@]:1}" ;; esac
    # @ORDER@ heard "${words[@]}"
  fi
  clock
  # @ORDER@ keep_time
  if ((now - stamped > (now - began) / 3600 + ${#paths[@]} / 100)); then
    stamp
    stamped=$now
  fi
  if [[ -n $inside && -e $folder/stop ]] && ((!stopping)); then
    terminated=1
    stop
  fi
  if overdue; then kill_steps; fi
  if ((due && !stopping)) && [[ $now -ge $due_at || $folder/progress -nt $folder/checkpoint ]]; then
    [[ -n $hung ]] || note due
    stop
  fi
  for role in "${!again[@]}"; do  # again, because an srun that is just starting misses the signal
    if [[ ${again[$role]} == 1 ]]; then kill_steps "$role"; fi
  done
done
# @ORDER@ if ((finished)); then failed=0 due=0; fi

if [[ -n $hung ]]; then wait "$watcher"; elif [[ -n $watcher ]]; then kill "$watcher" 2>/dev/null; fi  # it may be sending notices
if [[ $hung == cancel || $hung == checkpoint ]]; then
  :  # never retried
elif [[ -n $python ]] && ((!terminated && (failed || (due && stopping)))); then
  how=failed
  ((failed)) || how=timeout
  read -r verdict hosts factor < <(trap '' TERM; decide "$how")
  if [[ $verdict == again ]]; then again "$hosts" "$factor"; fi
  ((failed)) || code=1
elif ((failed && !terminated)) && [[ ${policy[$guilty]} == APPLICATION ]]; then
  used=$(cat retried 2>/dev/null || echo 0)
  if ((used < retries[guilty])); then
    echo $((used + 1)) >retried
    note retry $((used + 1))
    # Slurm ends the job before scontrol exits: without the trap a requeue would look like a rejection.
    if [[ -z $inside ]] && (trap '' TERM; exec scontrol requeue "$SLURM_JOB_ID"); then
      # Wait for Slurm to kill this script: it would take an exit code for the end of the job.
      for ((i = 0; i < 60 || terminated; i++)); do sleep 1; done
    fi
    # If the job cannot requeue itself, it restarts on its nodes.
    ((terminated)) || TORCHX_TRY=$((used + 1)) exec "$BASH" "$folder/job.sh"
  fi
fi
for_good() {  # whether Slurm ends this job without requeueing it: a requeued job still needs its secrets
  local job  # its state is COMPLETING either way; a requeued job has no end time, a preempted one has PreemptTime
  job=$(trap '' TERM; scontrol show job --oneliner "$SLURM_JOB_ID" 2>/dev/null)
  [[ $job == *" EndTime="[0-9]* && $job != *" PreemptTime="[0-9]* ]]
}
send_notices() {
  local python
  python=$(python_of "$notify")
  [[ -n $python ]] || return
  (trap '' TERM; PYTHONPATH='' exec "$python" "$folder/retry.pyz" notices "$code" "$terminated") 2>>"$folder/notices.log"
}
last=1
if [[ -z $inside && -n $secrets${notify-} ]] && ((terminated)) && ! for_good; then last=0; fi
if ((last)) && [[ -n $secrets ]]; then rm -f -- "$folder/secrets.sh"; fi
words=("$code")
((terminated)) || words+=(over)
note end "${words[@]}"
if ((last)) && [[ -n ${notify-} && -f $folder/notices.json ]]; then send_notices; fi
exit "$code"
