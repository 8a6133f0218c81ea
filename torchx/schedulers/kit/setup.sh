# shellcheck shell=bash disable=SC1090,SC1091,SC2016,SC2154,SC2329
# Runs the lines of set-up, the first argument, and then the program in the same environment; see setup.py. The lines see no
# arguments, as a file that they source may read them. `:` ends them, so that `[ -e x ] && y` may be their last one.
# In images without bash, `sh` stops at the first failure, and cannot name it.
if [ -z "${BASH_VERSION-}" ]; then
  torchx_setup() {
    torchx_lines=$1
    shift "$#"
    eval "$torchx_lines

:"
  }
  trap 'torchx_c=$?; echo "torchx: set-up failed: a line of it (exit $torchx_c)" >&2; [ "$torchx_c" != 0 ] || exit 1' EXIT
  set -e
  torchx_setup "$1"
  set +e
  trap - EXIT
  shift
  exec "$@"
fi
torchx_failed() {
  trap - DEBUG ERR EXIT
  # `exit` makes `eval` the current command, a signal does not
  if (($1 == 143)) || { ((!$1)) && [[ $3 != exit* && $3 != 'eval "$torchx_lines"'* ]]; }; then
    kill "$$"  # a signal ends this shell, or has ended the command
    exit 143  # in a container: its first process cannot kill itself
  fi
  [[ $2 != 'eval "$torchx_lines"'* ]] || set -- "$1" "its lines"
  echo "torchx: set-up failed: ${2//$'\n'/ } (exit $1)" >&2
  (($1)) || exit 1
  exit "$1"
}
torchx_words=("${@:2}") torchx_lines=$1
set --
# What an interactive shell would have defined
if [[ $torchx_lines =~ (^|[;&|[:space:]])(module|ml)[[:space:]] ]] && ! command -v module >/dev/null; then
  for torchx_file in "${LMOD_PKG:-/}/init/bash" "${MODULESHOME:-/}/init/bash" \
    /etc/profile.d/{z00_lmod,lmod,z00-modules,modules}.sh /usr/share/{lmod/lmod,modules}/init/bash; do
    [ ! -r "$torchx_file" ] || { . "$torchx_file" && break; }
  done
fi
if [[ $torchx_lines == *"conda activate"* ]] && [ "$(type -t conda)" != function ]; then
  for torchx_file in "${CONDA_EXE:-/}" "$(command -v conda)" ~/{mini,ana}conda3/bin/conda ~/miniforge3/bin/conda /opt/conda/bin/conda; do
    [ ! -f "$torchx_file" ] || { eval "$("$torchx_file" shell.bash hook)" && break; }
  done
fi
# A command of a file or a function may fail; the lines themselves may not. The traps see a command twice.
trap '(( ${#BASH_SOURCE[@]} )) || { torchx_was=${torchx_now-} torchx_now=$BASH_COMMAND; }' DEBUG
trap 'torchx_c=$? torchx_w=$torchx_was; (( ${#BASH_SOURCE[@]} )) || torchx_failed "$torchx_c" "$torchx_w"' ERR
trap 'torchx_c=$? torchx_w=$torchx_was; torchx_failed "$torchx_c" "$torchx_w" "$BASH_COMMAND"' EXIT
eval "$torchx_lines"$'\n\n:'
trap - DEBUG ERR EXIT
set -- "${torchx_words[@]}"
unset -f torchx_failed
unset torchx_was torchx_now torchx_c torchx_w torchx_file torchx_lines torchx_words
exec "$@"
