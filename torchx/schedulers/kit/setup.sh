# shellcheck shell=bash disable=SC1090,SC1091,SC2154,SC2329
# Runs the lines of set-up, the first argument, and then the program in the same environment; see setup.py.
# In images without bash, `sh` stops at the first failure, and cannot name it.
if [ -z "${BASH_VERSION-}" ]; then
  trap 'echo "torchx: set-up failed: a line of it (exit $?)" >&2' EXIT
  set -e
  eval "$1"
  set +e
  trap - EXIT
  shift
  exec "$@"
fi
failed() {
  trap - DEBUG ERR EXIT
  [ "$2" != "eval \"\$1\"" ] || set -- "$1" "its lines"
  echo "torchx: set-up failed: ${2//$'\n'/ } (exit $1)" >&2
  [ "$1" -gt 0 ] || exit 1
  exit "$1"
}
# What an interactive shell would have defined
if [[ $1 =~ (^|[;&|[:space:]])(module|ml)[[:space:]] ]] && ! command -v module >/dev/null; then
  for file in "${LMOD_PKG:-/}/init/bash" "${MODULESHOME:-/}/init/bash" \
    /etc/profile.d/{z00_lmod,lmod,z00-modules,modules}.sh /usr/share/{lmod/lmod,modules}/init/bash; do
    [ ! -r "$file" ] || { . "$file" && break; }
  done
fi
if [[ $1 == *"conda activate"* ]] && [ "$(type -t conda)" != function ]; then
  for file in "${CONDA_EXE:-/}" "$(command -v conda)" ~/{mini,ana}conda3/bin/conda ~/miniforge3/bin/conda /opt/conda/bin/conda; do
    [ ! -f "$file" ] || { eval "$("$file" shell.bash hook)" && break; }
  done
fi
# A command of a file or a function may fail; the lines themselves may not. The traps see a command twice.
trap '(( ${#BASH_SOURCE[@]} )) || { was=$now; now=$BASH_COMMAND; }' DEBUG
trap 'c=$? w=$was; (( ${#BASH_SOURCE[@]} )) || failed "$c" "$w"' ERR
trap 'c=$? w=$was; failed "$c" "$w"' EXIT
eval "$1"
trap - DEBUG ERR EXIT
unset -f failed
unset was now c w file
shift
exec "$@"
