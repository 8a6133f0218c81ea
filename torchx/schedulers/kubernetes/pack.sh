# shellcheck shell=sh
# Runs one of the tasks that share a pod, in a container of its own; torchx/schedulers/kubernetes/packed.py sets `torchx_at`
# (its number within the pod), `torchx_pack` (tasks in a pod) and `torchx_tasks` (of the sweep), and defines `torchx_task`.
# The containers share the folder /torchx-pack, with the files `pid.TASK`, `skipped.TASK` (written by a cancellation) and `failed`.
# shellcheck disable=SC2154
export TORCHX_REPLICA_ID=$((torchx_element * torchx_pack + torchx_at)); unset torchx_element
torchx_end() { # exit code of the task: the first line of the container's message. The container succeeds, so that the next one starts.
  torchx_said=$(head -c 3000 /dev/termination-log 2>/dev/null)
  printf 'torchx: exit code %s\n%s' "$1" "$torchx_said" >/dev/termination-log
  [ "$1" = 0 ] || [ -e "/torchx-pack/skipped.$TORCHX_REPLICA_ID" ] || : >/torchx-pack/failed
  if [ "$((torchx_at + 1))" = "$torchx_pack" ] && [ -e /torchx-pack/failed ]; then exit 1; fi
  exit 0
}
torchx_one() {
  [ "$TORCHX_REPLICA_ID" -lt "$torchx_tasks" ] || torchx_end 0
  [ ! -e "/torchx-pack/skipped.$TORCHX_REPLICA_ID" ] || torchx_end 143
  torchx_task & torchx_child=$!
  exec 2>/dev/null # not the shell's message about a signal
  trap 'kill "$torchx_child"' TERM INT
  echo "$torchx_child" >"/torchx-pack/pid.$TORCHX_REPLICA_ID"
  while wait "$torchx_child"; torchx_code=$?; kill -0 "$torchx_child"; do :; done
  torchx_end "$torchx_code"
}
