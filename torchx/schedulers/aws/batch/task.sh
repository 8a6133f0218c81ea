# shellcheck shell=sh
# Reads the values of one task of a sweep; torchx/schedulers/aws/batch/sweeps.py appends the task's command.
# shellcheck disable=SC2034  # values refer to `nl`
nl='
'
line=$(printf '%s' "$TORCHX_VALUES" | sed -n "$((AWS_BATCH_JOB_ARRAY_INDEX + 1))p") || exit 78
eval "$line"
unset TORCHX_VALUES line
export TORCHX_TASK="$AWS_BATCH_JOB_ARRAY_INDEX"
export TORCHX_JOB_ID="${TORCHX_JOB_ID:+$TORCHX_JOB_ID/$AWS_BATCH_JOB_ARRAY_INDEX}"
