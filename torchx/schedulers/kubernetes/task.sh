# shellcheck shell=sh
# Reads the values of one task of a sweep; torchx/schedulers/kubernetes/sweeps.py appends the command of its program.
# TORCHX_REPLICA_ID is its number. The folder is a ConfigMap with `values`, which has a line for each task, and `skipped`.
# shellcheck disable=SC2034  # values use `nl`
if grep -qx "$TORCHX_REPLICA_ID" /torchx-values/skipped 2>/dev/null; then exit 0; fi
nl='
'
line=$(sed -n "$((TORCHX_REPLICA_ID + 1))p" /torchx-values/values) && [ -n "$line" ] || {
  echo "torchx: the values of task $TORCHX_REPLICA_ID cannot be read" >&2; exit 78; }
eval "$line"
export TORCHX_TASK="$TORCHX_REPLICA_ID" TORCHX_JOB_ID="${TORCHX_JOB_ID:+$TORCHX_JOB_ID/$TORCHX_REPLICA_ID}"
