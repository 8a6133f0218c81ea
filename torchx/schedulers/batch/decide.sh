#!/bin/bash
# How a batch script asks what follows an attempt; see torchx/schedulers/batch/attempts.py.
#
# shellcheck disable=SC2154

decide() {  # how the attempt ended, and what the backend adds. Prints `again`, and what the backend wants; or `end`
  local candidate
  for candidate in "$python" python3 python; do
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
    "$candidate" "$folder/retry.pyz" "$@" 2>>"$folder/retry.log" && return
  done
  echo "torchx: no Python 3.10 or newer on node $(hostname): the job is not started again" >>"$folder/retry.log"
  echo end
}
