# shellcheck shell=bash disable=SC2034,SC2154,SC3043
# Puts a copy of a source, which the job holds as long as it runs, at a path on the node; see stage_node.py.
torchx_stage() {
  local copy
  copy=$(stage_node "$1") || return
  # the descriptor stays open in the program, so that no other job removes the copy
  case ${BASH_VERSION-} in ?*) eval 'exec {torchx_fd}<"${copy%/*}.lock"' && { ! command -v flock >/dev/null || flock -s "$torchx_fd"; } ;; esac
  [ -L "$2" ] || [ ! -e "$2" ] || { echo "torchx: \`$2\` exists already" >&2; return 1; }
  mkdir -p -- "$(dirname -- "$2")" && ln -sfn -- "$copy" "$2.$$" && mv -fT -- "$2.$$" "$2"
}
