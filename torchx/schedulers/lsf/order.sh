#!/bin/bash
# The part of the replicas' script for roles that wait for others, present in jobs with an order: replica.sh calls its functions in
# the lines marked @ORDER@. torchx/schedulers/lsf/order.py sets the arrays of roles `members`, `gang` (how many must have a host),
# `after`, `probes`, `what`, `within`, `least_ready`, `ends_job`, `scopes`, `listed` and `probe_port` (the first port, and that to probe; `moves`: it is counted up).
#
# Replicas leave marks in the folder `order`, KIND.ROLE.K, which begin with the number of the attempt.
#
# shellcheck disable=SC2034,SC2154

torchx_mark() { # kind, text
    echo "$attempt ${*:2}" >"$job/order/.$1.$role.$k" && mv -f "$job/order/.$1.$role.$k" "$job/order/$1.$role.$k"
}

torchx_marks() { # kind, role: number and text of each replica that has left such a mark in this attempt
    local file number text now; now=$(torchx_number "$job${scopes[$2]}/attempt")
    for file in "$job/order/$1.$2".*; do
        { read -r number text <"$file"; } 2>/dev/null && [ "$number" = "$now" ] && echo "${file##*.} $text"
    done
}
torchx_count() { torchx_marks "$@" | wc -l; }

torchx_join() { # at each start
    mkdir -p "$job/order"
    for own in finished late "ended.$attempt"; do [ ! -e "$job/$own" ] || exit 143; done # LSF had requeued it when the job ended
    rm -f "$job/order/"{began,ready,over}."$role.$k"
    own=${LSB_MCPU_HOSTS%% *}; own=${own:-$(hostname)}
    torchx_mark host "$own"
}

torchx_until() { # number, kind, role: waits for so many marks
    until [ "$(torchx_count "$2" "$3")" -ge "$1" ]; do
        [ "$killed" = 0 ] || return 1
        torchx_pause 0.5
        ls "$job/order" >/dev/null # NFS caches that a file does not exist
    done
}

torchx_is_ready() { # role, command that is called with number, kind and role
    local kind=ready; [ -n "${probes[$1]}" ] || kind=began
    "$2" "${least_ready[$1]}" "$kind" "$1"
}

torchx_await() { # until all replicas have a host, and the roles that this one waits for are ready
    local r n host index p
    for r in "${!members[@]}"; do torchx_until "${gang[r]}" host "$r" || return 1; done
    for r in "${!members[@]}"; do
        local -A seen=()
        hosts[r]=''
        while read -r n host; do
            index=${seen[$host]-0}; seen[$host]=$((index + 1))
            hosts[r]+=${hosts[r]:+,}$host${listed[r]:+:$((listed[r] + index))}
            [ "$n" != 0 ] || first[r]=$host
            [ "$r.$n" != "$role.$k" ] || mine=$index
        done < <(torchx_marks host "$r" | sort -n)
        [ ${#hosts[r]} -le 65536 ] || hosts[r]='' # Linux takes no longer variables
    done
    for p in $ports; do printf -v "port_$p" %d $((p + mine)); done
    for r in ${after[role]}; do torchx_is_ready "$r" torchx_until || return 1; done
    [ "$killed" = 0 ] || return 1
    began_at=("$(stat -c %s "$dir/stdout.log" 2>/dev/null || echo 0)" "$(stat -c %s "$dir/stderr.log" 2>/dev/null || echo 0)")
    torchx_mark began "$(printf '%(%s)T' -1)"
    [ -z "${probes[role]}" ] || { torchx_prober 2>/dev/null & prober=$!; }
    [ "$killed" = 0 ] # or it was ended while it began
}

torchx_look() {
    local file=${what[role]}
    [ "${probes[role]}" != file ] || [ "${file:0:1}" = / ] || file=$PWD/$file
    probe "${probes[role]}" "$own" $((probe_port[role] + (moves[role] ? mine : 0))) "$file" \
        "$dir/stdout.log" "${began_at[0]}" "$dir/stderr.log" "${began_at[1]}"
}

torchx_prober() { # in the background
    local said since=$SECONDS
    until said=$(torchx_look); do
        if [ $((SECONDS - since)) -ge "${within[role]}" ] && ! torchx_is_ready "$role" torchx_has; then
            torchx_unready late "$said"; return
        fi
        torchx_pause 1
    done
    torchx_mark ready "$(printf '%(%s)T' -1)"
}
torchx_has() { [ "$(torchx_count "$2" "$3")" -ge "$1" ]; }

torchx_unready() { # how, what the last probe saw: ends the job, whose role was not ready
    local file said=''
    for file in "$dir"/std{err,out}.log; do
        [ -n "$said" ] || said=$(tail -c 4096 -- "$file" | grep '[^[:space:]]' | tail -n 1 | tr -d '[:cntrl:]')
    done
    (set -C; printf '%s %s %s %s\t%s\n' "$role" "$k" "$1" "$2" "${said:0:200}" >"$job/late") 2>/dev/null || return 0
    torchx_end_job
}

torchx_end_job() {
    local others
    rm -f "$job/secrets.sh"
    mapfile -t others < <(torchx_others "" "$app.")
    [ -n "${code-}" ] || others+=("$LSB_JOBID") # its program still runs
    [ ${#others[@]} = 0 ] || bkill "${others[@]}" >/dev/null 2>&1
}

torchx_leave() { # its program has ended
    [ -z "${prober-}" ] || { kill "$prober"; wait "$prober"; } 2>/dev/null
    if [ "$code" != 0 ]; then rm -f "$job/order/ready.$role.$k"; return; fi
    case ${probes[role]} in
        log | file) [ -e "$job/order/ready.$role.$k" ] || ! torchx_look >/dev/null || torchx_mark ready "$(printf '%(%s)T' -1)" ;;
    esac
    torchx_mark over
    torchx_close
}

torchx_close() { # whether the end of this replica ends the job
    local r waits='' lost=("$job/lost.$role.$attempt"/*) over never
    [ -e "${lost[0]}" ] || lost=()
    over=$(($(torchx_count over "$role") + ${#lost[@]}))
    if [ "${ends_job[role]}" = 1 ]; then
        [ "$over" -ge "${members[role]}" ] && (set -C; echo "$role" >"$job/finished") 2>/dev/null && torchx_end_job
        return
    fi
    for r in "${!members[@]}"; do
        case " ${after[r]} " in *" $role "*) torchx_has "${gang[r]}" began "$r" || waits=1 ;; esac
    done
    [ -n "$waits" ] && [ -n "${probes[role]}" ] || return 0
    never=$(comm -23 <(torchx_marks over "$role" | cut -d ' ' -f 1 | sort) <(torchx_marks ready "$role" | cut -d ' ' -f 1 | sort) | wc -l)
    [ $((members[role] - never - ${#lost[@]})) -ge "${least_ready[role]}" ] || torchx_unready early ''
}
