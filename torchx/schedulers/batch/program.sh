#!/bin/bash
# Functions of batch scripts that run the programs in the job's retry.pyz; see torchx/schedulers/batch/attempts.py.
#
# shellcheck disable=SC2034,SC2154

python_of() {  # the Python to try first; prints one that works
  local candidate
  for candidate in "$1" python3 python; do
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo "$candidate" && return
  done
}

decide() {  # how the attempt ended, and arguments of the backend. Prints `again` and values of the backend, or `end`
  local found
  found=$(python_of "$python")
  if [ -n "$found" ]; then
    for _ in 1 2 3; do
      "$found" "$folder/retry.pyz" attempts "$@" 2>>"$folder/retry.log" && return
      [ $? = 137 ] || break  # if it was killed, it runs again
    done
  else
    echo "torchx: no Python 3.10 or newer on node $(hostname): the job is not started again" >>"$folder/retry.log"
  fi
  echo end
}

start_watch() {  # arguments of the backend: starts the watchdog, which prints its findings
  local found
  found=$(python_of "$watch")
  if [ -z "$found" ]; then
    echo "not watched: no Python 3.10 or newer on node $HOSTNAME" >"$folder/watchdog.txt"
    return 1
  fi
  PYTHONPATH='' "$found" "$folder/retry.pyz" hangs "$wish" "$@" </dev/null 2>>"$folder/watchdog.log" &
  watcher=$!
}
