#!/bin/sh
# Runs the program of one piece of a chain (`torchx run --total`), because Batch does not retry an attempt that reaches its
# own time limit.
#
#   sh -c <this> torchx SECONDS TOTAL WORD...
#
# Before the end of a piece, the program is asked for a checkpoint; after SECONDS it gets SIGTERM, and SIGKILL 30 s later. The
# exit code is then 85, which Batch retries. TOTAL is there for readers of the command.
_tx_limit=$1 _tx_due=
shift 2
export TORCHX_CHECKPOINT_NOW=/dev/shm/torchx-checkpoint TORCHX_PROGRESS=/dev/shm/torchx-progress
"$@" &
_tx_pid=$!
trap 'kill -TERM "$_tx_pid" 2>/dev/null' TERM INT
trap '_tx_due=1; kill -TERM "$_tx_pid" 2>/dev/null; { sleep 30; kill -KILL "$_tx_pid" 2>/dev/null; } &' USR1
{
  _tx_early=$((_tx_limit / 4 > 120 ? 120 : _tx_limit / 4))
  sleep "$((_tx_limit - _tx_early))"
  : >"$TORCHX_CHECKPOINT_NOW"
  while [ "$_tx_early" -gt 0 ] && ! [ "$TORCHX_PROGRESS" -nt "$TORCHX_CHECKPOINT_NOW" ]; do
    sleep 1
    _tx_early=$((_tx_early - 1))
  done
  kill -USR1 $$
} &
_tx_timer=$!
while wait "$_tx_pid"; _tx_code=$?; kill -0 "$_tx_pid" 2>/dev/null; do :; done # a signal interrupts `wait`
kill "$_tx_timer" 2>/dev/null
[ -z "$_tx_due" ] || exit 85
exit "$_tx_code"
