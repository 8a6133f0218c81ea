# Runs the tasks of one element of a job array, one after another; follows task.sh in sweeps with `--pack`.
#
# shellcheck shell=bash disable=SC2034,SC2154

wish=pack # so that replica.sh calls the next three
torchx_up() { :; }
torchx_looked() { [ ! -e "$job/skipped.$k" ] || { code=143; killed=1; }; }
torchx_look_out() { # in the process that polls the logs: ends this task if it is cancelled; SIGTERM, then SIGKILL
    local pid
    [ -e "$job/skipped.$k" ] && { read -r pid <"$dir/pid"; } 2>/dev/null || return 0
    told=$((told + 1))
    [ "$told" != 1 ] || kill -- "-$pid" 2>/dev/null
    [ "$told" -le 30 ] || kill -KILL -- "-$pid" 2>/dev/null
}

torchx_program() { # as a process group, of which nothing is left when the next task begins
    local child=
    trap '[ -z "$child" ] || kill -- "-$child"' INT TERM
    trap '[ -z "$child" ] || kill -USR2 -- "-$child"' USR2
    set -m; torchx_task & child=$!; set +m
    exec 2>/dev/null; echo "$child" >"$dir/pid" # not bash's messages about the end
    while wait "$child"; code=$?; kill -0 "$child"; do :; done
    kill -KILL -- "-$child"
    exit "$code"
}

torchx_element() { # FIRST FOLDER: number of the array's first element, and the role's folder
    local stop='' worst=0 timed='' first=$((($1 + LSB_JOBINDEX - 1) * pack))
    trap 'stop=1' INT TERM USR2
    for ((k = first; k < first + pack && k < tasks; k++)); do
        if [ -n "$stop" ] || [ -e "$job/cancelled" ]; then worst=143; break; fi
        grep -hs "^$k " "$job"/ends.* | grep -qE '^\S+ \S+ 0 ' && continue # it ended before LSF started this again
        if [ -e "$job/skipped.$k" ]; then code=143 killed=1; torchx_note; continue; fi
        (folder=$2/$k; torchx_run) || worst=$?
    done
    exit "$worst"
}
