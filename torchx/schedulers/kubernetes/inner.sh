# shellcheck shell=sh
# Runs a replica of a job inside a running pod, in the folder of the replica; torchx/schedulers/kubernetes/allocations.py sends it
# with `env.sh` (its environment), `task.sh` (its program), and perhaps `code.tgz`.
#
# It leaves `pid`, `child` (the program's pid), `begun`, `stdout.log`, `stderr.log`, `times.idx` (their sizes over time) and `end`, which is `CODE STOPPED TIME`;
# `stop` is written by whoever ends it, and is STOPPED. Nothing of it depends on the client, which may disconnect.
# shellcheck disable=SC2154
here=$PWD
echo $$ >pid; date +%s >begun
tick() {
  sizes=$(stat -c %s stdout.log stderr.log 2>/dev/null | tr '\n' ' ')
  [ "$sizes" = "$last" ] || { last=$sizes; echo "$(date +%s) $sizes" >>times.idx; }
}
clock() { while :; do tick; sleep 1; done; }
unpack() {
  [ -e code.tgz ] || return 0
  mkdir -p code && cd code || exit 78
  if command -v python3 >/dev/null 2>&1; then python3 -IS -m tarfile -e ../code.tgz .; else tar -xzomf ../code.tgz; fi ||
    { echo "torchx: the code cannot be unpacked into $PWD" >&2; exit 78; }
}
: >stdout.log; : >stderr.log
# shellcheck disable=SC1091
(unpack && . "$here/env.sh" && . "$here/task.sh") >stdout.log 2>stderr.log & child=$!
echo "$child" >child
clock >/dev/null 2>&1 & clock=$!
end() { # SIGTERM, and SIGKILL to what is still there after 30 s: a later process may have its pid
  n=30
  kill "$child" && while [ "$n" -gt 0 ]; do sleep 1; kill -0 "$child" || return; n=$((n - 1)); done
  kill -KILL "$child"
}
trap 'end >/dev/null 2>&1 &' TERM
while wait "$child"; code=$?; kill -0 "$child" 2>/dev/null; do :; done
kill "$clock" 2>/dev/null; last=; tick
rm -f env.sh # it may contain secrets
stopped=$(cat stop 2>/dev/null)
echo "$code ${stopped:--} $(date +%s)" >end.new && mv end.new end
[ ! -e group ] || kill -KILL -- "-$$" # what the program left behind
