#!/bin/bash
# The part of the replicas' script for retries by cause, present in jobs with such a policy, before replica.sh. `decide`,
# defined before it, runs retry.pyz (torchx/schedulers/lsf/attempts.py), which prints `again` after it has written the
# submission script of the next attempt, `end` or `stopped`.
#
# shellcheck disable=SC2034,SC2154

torchx_current() { ls "$job" >/dev/null; [ "$(torchx_number "$job/attempt")" = "$attempt" ]; }

torchx_fence() { # until no replica of the last attempt runs; a chain of pieces waits for a lost host, too
    local found id name stat lost=UNKWN
    ! grep -q '"torchx/retry": "[^"]*total:' "$job/job.json" || lost=
    while found=$(torchx_bjobs -noheader -o "jobid job_name stat delimiter=','" -g "$group"); do
        while IFS=, read -r id name stat; do
            case $stat in PEND|PSUSP|"$lost") continue ;; esac
            [ ! -e "$job/run.$((attempt - 1)).$id" ] || { torchx_pause 1; continue 2; }
        done <<<"$found"
        return
    done
    torchx_pause 5; torchx_fence
}

torchx_begin() { # the attempt that this LSF job was submitted for
    attempt=$1; suffix=.$1; start=$PWD; timed=; back=
    torchx_current || exit 0 # it was requeued while the next attempt was submitted
    [ "$attempt" = 0 ] || torchx_fence
    export TORCHX_CHECKPOINT_NOW="$job/checkpoint" TORCHX_PROGRESS="$job/progress"
    rm -f "$dir/due"
    read -r back 2>/dev/null <"$job/run.$attempt.$LSB_JOBID" || return 0
    code=1 killed=0; torchx_failed # this job ran before: LSF has requeued it
}

torchx_watch() { # in the process that polls the logs: LSF sends URG when the time limit is near
    near=
    trap '[ -n "$near" ] || [ -e "$job/checkpoint" ] || : >"$job/checkpoint"; near=1' URG
}

torchx_due() { # ends this attempt after the ranks have marked progress
    [ -n "$near" ] && [ "$job/progress" -nt "$job/checkpoint" ] || return 0
    : >"$dir/due"; kill "$(torchx_number "$dir/pid")" 2>/dev/null; near=
}

torchx_judged() { # whether another attempt follows this failure, and was submitted
    local how=failed asked=$killed tries=0 others=() lost verdict
    torchx_current || return 0
    mkdir -p "$job/lost.$role.$attempt/$k"; lost=("$job/lost.$role.$attempt"/*)
    [ ${#lost[@]} -gt "$spare" ] || return 1
    if ! mkdir "$job/restart.$attempt" 2>/dev/null; then # another replica does it
        while torchx_current && [ ! -e "$job/ended.$attempt" ] && [ $((tries++)) -lt 600 ]; do torchx_pause 0.5; done
        ! torchx_current; return
    fi
    [ "$killed" = 0 ] || how=killed
    [ -z "$timed" ] && [ ! -e "$dir/due" ] || how=timeout
    [ -z "$back" ] || how=requeued
    [ ! -e "$job/silent" ] || how=failed
    [ "$how" != failed ] || trap 'killed=1' INT TERM # the user may cancel the job meanwhile
    # shellcheck disable=SC2086  # $back is a host or empty
    verdict=$(folder=$job decide "$how" "$role" "$k" $back)
    if [ "$verdict" = stopped ]; then rmdir "$job/restart.$attempt"; exit "$code"; fi # after a requeue it decides again
    # @ORDER@ [ ! -e "$job/finished" ] || return 1
    [ "$verdict$killed" = "again$asked" ] && [ ! -e "$job/cancelled" ] || return 1
    mapfile -t others < <(torchx_others "" "$app.")
    echo "$role $k" >>"$job/restarts"; rm -rf "$job/over" "$job/checkpoint" "$job/silent"
    echo $((attempt + 1)) >"$job/attempt.new" && mv -f "$job/attempt.new" "$job/attempt"
    if ! (unset TORCHELASTIC_ERROR_FILE TORCHX_RANK0_HOST TORCHX_RANK0_PORT TORCHX_CHECKPOINT_NOW TORCHX_PROGRESS TORCHX_STEPS
        cd "$start" && exec /bin/bash "$job/submit.sh") >>"$job/retry.log" 2>&1; then
        echo "torchx: LSF did not take the next attempt: $(tail -n 1 "$job/retry.log")" >>"$dir/stderr.log"
        rm -f "$job/secrets.sh"
    fi
    [ "$killed" = "$asked" ] && [ ! -e "$job/cancelled" ] || bkill -g "$group" 0 >/dev/null 2>&1
    [ ${#others[@]} = 0 ] || bkill "${others[@]}" >/dev/null 2>&1
    return 0
}
