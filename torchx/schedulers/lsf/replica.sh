#!/bin/bash
# Runs one replica of an LSF job; torchx/schedulers/lsf/replicas.py appends a case for each replica.
#
# Lines that begin with `# @ORDER@` are for jobs whose roles wait for others: see order.sh.
#
# bash, not sh: for `read -t`, which sleeps without a program, and /dev/tcp, which shows whether a port is in use.
#
# shellcheck disable=SC2034,SC2154

job=$(cd "$(dirname "$0")" && pwd) || exit 1

torchx_number() { local n=0; read -r n 2>/dev/null <"$1"; echo "${n:-0}"; }
torchx_pause() { local _; read -rt "$1" _ <> <(:); }

# Records the sizes of the logs over time, for --since and --until.
torchx_tick() {
    local now; now=$(stat -c %s "$dir/stdout.log" "$dir/stderr.log" 2>/dev/null)
    [ "$now" = "$sizes" ] && return
    sizes=$now; printf '%(%s)T %s\n' -1 "${now//$'\n'/ }" >>"$dir/times.idx"
}
torchx_clock() {
    [ -z "$python" ] || torchx_watch
    while :; do
        torchx_tick; [ -z "$python" ] || torchx_due; [ -z "$wish" ] || torchx_look_out; torchx_pause 1
    done
}

# Sets host and port of replica 0 of the role.
torchx_rank0() {
    local file=$job/rank0.$role.$attempt tries=0 over=0 answer host port
    if [ "$k" = 0 ]; then
        host=${LSB_MCPU_HOSTS%% *}; host=${host:-$(hostname)}
        port=$((20000 + ${LSB_JOBID:-0} % 10000))
        while (: <"/dev/tcp/$host/$port") 2>/dev/null; do port=$((port + 1)); done
        echo "$host $port" >"$file.new" && mv -f "$file.new" "$file"
    else
        until read -r host port 2>/dev/null <"$file"; do
            ls "$job" >/dev/null # makes NFS drop its cached "no such file"
            [ "$killed" = 0 ] || return 1
            torchx_pause 0.5; tries=$((tries + 1))
            [ $((tries % 40)) = 0 ] || continue
            # With a policy each attempt has an LSF job of this name: the running or pending one counts.
            answer=$(torchx_bjobs -a -noheader -o "stat exec_host delimiter=','" -J "$rank0") || continue
            answer=$(sort -r <<<"$answer" | head -n 1)
            ls "$job" >/dev/null
            [ ! -s "$file" ] || continue # the file has just appeared
            case $answer in
                RUN*)
                    [ "$tries" -ge 240 ] || continue
                    host=${answer#*,}; host=${host%%:*}; host=${host#*\*}; port=; break ;;
                EXIT*|DONE*) [ $((++over)) -ge 2 ] || continue ;;& # for some seconds LSF shows a requeued job as ended
                EXIT*|DONE*|"") echo "torchx: replica 0 is over" >&2; return 1 ;;
                *) over=0 ;;
            esac
        done
    fi
    export TORCHX_RANK0_HOST="$host"
    [ -z "$port" ] || [ -n "$own_network" ] || export TORCHX_RANK0_PORT="$port"
    # @ORDER@ torchx_await
}

torchx_bjobs() { # what bjobs prints; a failure, which does not mean that there are no jobs, is said in the log of the replica
    local said; said=$(bjobs "$@" 2>&1) && { echo "$said"; return; }
    case $said in *[Nn]"o matching job"*|*"not found"*|*"No unfinished job"*|*"No job found"*) return 0 ;; esac
    echo "torchx: bjobs failed, asking again: ${said##*$'\n'}" >>"$dir/stderr.log"; return 1
}

torchx_others() { # ids of the other jobs of this app, or of this role
    local found tries=0 id name
    until found=$(torchx_bjobs ${1:+"$1"} -noheader -o "jobid job_name delimiter=','" -g "$group"); do
        [ $((++tries)) -lt 60 ] || { echo "torchx: gave up: other replicas may go on" >>"$dir/stderr.log"; return 1; }
        torchx_pause 5
    done
    while IFS=, read -r id name; do
        case $name in "$2"*) [ "$id" = "$LSB_JOBID" ] || echo "$id" ;; esac
    done <<<"$found"
}

# This replica is in attempt N, as `run.N.JOBID` says, and others have begun the next one. Whichever process creates
# `again.N.JOBID` restarts this replica: requeued twice, it would be killed in the new attempt.
torchx_go_on() {
    local tries=0
    if mkdir "$scope/again.$attempt.$LSB_JOBID" 2>/dev/null; then
        until [ "$(torchx_number "$scope/attempt")" != "$attempt" ] || [ $((tries++)) = 600 ]; do torchx_pause 0.1; done
        return
    fi
    trap - INT TERM; torchx_pause 60 # it is being requeued
    exit 99
}

torchx_retried() { # whether another attempt follows this failure
    if [ "$policy" = REPLICA ]; then
        [ "$runs" -le "$retries" ] && echo "$role $k" >>"$job/restarts"
        return
    fi
    [ "$attempt" -lt "$retries" ] || return 1
    mkdir "$scope/restart.$attempt" 2>/dev/null || { torchx_go_on; return 0; } # another replica does it
    echo "$role $k" >>"$job/restarts"; rm -rf "$job/over"
    echo $((attempt + 1)) >"$scope/attempt.new" && mv -f "$scope/attempt.new" "$scope/attempt"
    local others=$app. claimed=() id; [ "$policy" = ROLE ] && others=$app.$role-
    for id in $(torchx_others -a "$others"); do
        [ -e "$scope/run.$attempt.$id" ] && mkdir "$scope/again.$attempt.$id" 2>/dev/null && claimed+=("$id")
    done
    [ ${#claimed[@]} = 0 ] || brequeue -r -d -e "${claimed[@]}" >/dev/null 2>&1
    return 0
}

torchx_failed() {
    # @ORDER@ if [ -e "$job/finished" ] || [ -e "$job/late" ]; then [ "$code" != 99 ] || code=1; exit "$code"; fi
    local silent=; { read -r silent <"$job/silent"; } 2>/dev/null && spare=-1
    if [ "$silent" = cancel ]; then : # never retried
    elif [ -n "$python" ]; then ! torchx_judged || exit "$code"
    elif [ "$(torchx_number "$scope/attempt")" != "$attempt" ]; then torchx_go_on; exit 99
    elif [ "$killed" = 0 ] && torchx_retried; then exit 99; fi
    [ "$code" = 99 ] && [ "$retries" -gt 0 ] && code=1
    mkdir -p "$job/lost.$role.$attempt/$k"
    local lost=("$job/lost.$role.$attempt"/*) others
    if [ ${#lost[@]} -gt "$spare" ] && mkdir "$job/ended.$attempt" 2>/dev/null; then
        mapfile -t others < <(torchx_others "" "$app."); [ ${#others[@]} = 0 ] || bkill "${others[@]}" >/dev/null 2>&1
        rm -f "$job/secrets.sh"
    fi
    # LSF may requeue a replica that was killed.
    [ "$killed" = 1 ] && [ "$retries" -gt 0 ] || torchx_over
    # @ORDER@ [ ${#lost[@]} -gt "$spare" ] || torchx_close
    exit "$code"
}

torchx_secrets() {
    # shellcheck source=/dev/null
    [ -f "$job/secrets.sh" ] && . "$job/secrets.sh" && return
    echo "torchx: the secrets of this job were removed when it ended; submit it again" >&2; exit 78
}

torchx_over() { # the last replica to end removes the secrets
    [ -f "$job/secrets.sh" ] || return 0
    mkdir -p "$job/over/$role.$k"; set -- "$job/over"/*; [ $# -lt "$total" ] || rm -f "$job/secrets.sh"
}

torchx_container() { # NAME COMMAND...: kills the container, which would survive LSF's SIGKILL of its client
    local name=$1 child code; shift
    trap '{ torchx_pause 2; docker kill "$name"; } >/dev/null 2>&1 &' TERM
    trap : INT
    "$@" & child=$!
    while wait "$child"; code=$?; kill -0 "$child" 2>/dev/null; do :; done
    exit "$code"
}

torchx_take_part() { # joins the current attempt
    runs=$(($(torchx_number "$dir/runs") + 1)); echo "$runs" >"$dir/runs"
    attempt=$(torchx_number "$scope/attempt")
    [ -z "$python" ] || torchx_begin "$1"
    while echo "${LSB_MCPU_HOSTS%% *}" >"$scope/run.$attempt.$LSB_JOBID"; [ "$(torchx_number "$scope/attempt")" != "$attempt" ]; do
        torchx_go_on; attempt=$(torchx_number "$scope/attempt")
    done
}

torchx_note() { printf '%s %s %(%s)T\n' "$code" "${timed:-$killed}" -1 >"$dir/exit"; }

torchx_run() {
    dir=$job/$folder
    mkdir -p "$dir" || exit 73
    exec </dev/null
    [ ! -e "$job/cancelled" ] || exit 143 # LSF had requeued it when it was cancelled
    suffix='' timed=''
    torchx_take_part "$1"
    # @ORDER@ torchx_join
    export TORCHX_STEPS="$dir/steps" TORCHELASTIC_ERROR_FILE="$dir/error.json" # not that of a job in which this one was submitted
    rm -f "$dir/exit" "$dir/error.json"; rm -rf "$job/over/$role.$k"
    (set -C; printf '%(%s)T' -1 >"$job/started") 2>/dev/null
    [ -z "$wish" ] || torchx_up
    sizes=; torchx_clock & clock=$!
    killed=0; ended=0; trap 'killed=1 ended=1' INT TERM; trap 'killed=1 timed=2' USR2
    # In a subshell: to separate the program's variables, and bash's message about its end from its output.
    if { cd "$cwd" && torchx_rank0; } 2>>"$dir/stderr.log"; then
        (exec >>"$dir/stdout.log" 2>>"$dir/stderr.log"; [ -z "$python$wish" ] || echo "$BASHPID" >"$dir/pid"; torchx_program); code=$?
    else code=1; fi
    trap '' INT TERM USR2
    [ "$code$ended" = 01 ] && code=143 # otherwise LSF reports a killed job that exits with 0 as done
    kill "$clock" 2>/dev/null; wait "$clock" 2>/dev/null; sizes=; torchx_tick
    [ -z "$wish" ] || torchx_looked
    if [ -n "$python" ]; then
        torchx_current || exit "$code" # another attempt was submitted
        [ "$code" != 0 ] || [ ! -e "$dir/due" ] || code=143
    fi
    torchx_note
    printf '%(%s)T' -1 >"$job/ended"
    # @ORDER@ torchx_leave
    [ "$code" = 0 ] || torchx_failed
    torchx_over
    exit 0
}
