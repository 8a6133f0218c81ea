#!/bin/bash
# The part of the replicas' script for the watchdog, present in jobs with one, before replica.sh. `start_watch`, defined
# before it, starts torchx/schedulers/lsf/hangs.py.
#
# shellcheck disable=SC2034,SC2154

torchx_up() { # records the host of this replica
    watcher=; told=0
    export TORCHX_PROGRESS="$job/progress"
    rm -f "$dir/pid"; echo "$attempt ${LSB_MCPU_HOSTS%% *}" >"$dir/up"
}

torchx_look_out() { # in the process that polls the logs: one replica at a time watches the whole job
    local who
    if [ -n "$watcher" ]; then [ ! -e "$job/silent" ] || torchx_end; return; fi
    if { read -r who <"$job/watching$suffix"; } 2>/dev/null; then [ "$who" = "$LSB_JOBID" ] || return 0
    else (set -C; echo "$LSB_JOBID" >"$job/watching$suffix") 2>/dev/null || return 0; fi
    unset TORCHELASTIC_ERROR_FILE # it identifies processes of the replica
    cd "$job" || return 0
    folder=$job start_watch >/dev/null || watcher=none
}

torchx_end() { # ends the program of this replica: SIGTERM, then SIGKILL
    local pid
    { read -r pid <"$dir/pid"; } 2>/dev/null || return 0
    told=$((told + 1))
    [ "$told" != 1 ] || kill "$pid" 2>/dev/null
    [ "$told" -le 30 ] || kill -KILL "$pid" 2>/dev/null
}

torchx_looked() { # after the end of this replica
    local who='' number=''
    { read -r number _ <"$dir/up"; read -r who <"$job/watching$suffix"; } 2>/dev/null
    [ "$code" = 0 ] || [ "$number" != "$attempt" ] || rm -f "$dir/up" # not that of the next attempt
    [ "$who" != "$LSB_JOBID" ] || rm -f "$job/watching$suffix"
    [ "$code" != 0 ] || [ ! -e "$job/silent" ] || code=143
}
