# shellcheck shell=bash disable=SC1091,SC3040,SC3043
# The environment of a project's lock file: one for each lock and node; one job makes it, and others wait.
torchx_uv() {
  local envs env
  command -v uv >/dev/null || { echo "torchx: uv is not in PATH on $(hostname)" >&2; return 127; }
  [ -f uv.lock ] || { echo "torchx: there is no uv.lock in $PWD" >&2; return 2; }
  envs=${TORCHX_UV_ENVS:-/tmp/torchx-uv-$(id -u)}
  (umask 077; mkdir -p "$envs") && [ -O "$envs" ] || { echo "torchx: $envs belongs to another user" >&2; return 1; }
  env=$envs/$(cat uv.lock pyproject.toml .python-version 2>/dev/null | sha256sum | cut -c1-24) || return
  (
    flock 9 || exit
    [ -e "$env/.complete" ] && exit
    UV_PROJECT_ENVIRONMENT=$env uv sync --frozen --no-install-project && : >"$env/.complete"
  ) 9>"$env.lock" || return
  . "$env/bin/activate"
  export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}"
}
torchx_uv
