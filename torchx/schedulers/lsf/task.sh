# Overrides functions of replica.sh for the tasks of a sweep; see torchx/schedulers/lsf/sweeps.py.
#
# shellcheck shell=bash disable=SC2034,SC2154

torchx_take_part() { attempt=0; }
torchx_rank0() { export TORCHX_RANK0_HOST=localhost; }
torchx_note() { printf '%s %s %s %(%s)T\n' "$k" "$code" "${timed:-$killed}" -1 >>"$job/ends.${LSB_MCPU_HOSTS%% *}"; }
torchx_failed() { exit "$code"; } # other tasks continue

torchx_values() {
    local lines; nl=$'\n'
    mapfile -t -s "$k" -n 1 lines <"$job/values"
    [ ${#lines[@]} = 1 ] || { echo "torchx: the values of task $k cannot be read" >&2; exit 78; }
    eval "${lines[0]}"
    export TORCHX_TASK=$k
}
