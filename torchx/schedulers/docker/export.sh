#!/bin/bash
# The part that all exported docker jobs share: starts the services and waits until they have ended.
#
# run.sh sets `here`, and `project`, the compose project name of the job.
#
# shellcheck disable=SC2154

if docker compose version >/dev/null 2>&1; then
  compose=(docker compose)
elif command -v docker-compose >/dev/null; then
  compose=(docker-compose)
else
  echo "run.sh: neither \`docker compose\` nor \`docker-compose\` is installed" >&2
  exit 69
fi
compose+=(--project-name "$project" --file "$here/compose.yaml")

logs=$here/logs/$(date +%Y%m%d-%H%M%S)-$$
code=0
mkdir -p -- "$logs"
trap '"${compose[@]}" stop >/dev/null 2>&1; code=130' INT TERM
trap '"${compose[@]}" down >/dev/null 2>&1 || true' EXIT # also when a service does not start
"${compose[@]}" up --detach >&2
mapfile -t containers < <(docker ps --all --quiet --no-trunc --filter "label=com.docker.compose.project=$project")
exec {bus}<> <(:) # a pipe to ourselves, through which waiting processes report how a container ended

watch() { # container
  local status
  while status=$(docker wait "$1") && [[ $(docker inspect --format '{{.State.Running}}{{.State.Restarting}}' "$1") == *true* ]]; do :; done
  echo "$1 ${status:-1}" >&"$bus"
}

echo "logs: $logs" >&2
for container in "${containers[@]}"; do watch "$container" & done
for ((left = ${#containers[@]}; left; left--)); do
  read -r container status <&"$bus" || break
  if ((status != 0 && code == 0)); then
    code=$status
    name=$(docker inspect --format '{{.Config.Hostname}}' "$container")
    echo "FAILED: $name ended with exit code $status; the last lines of its output:" >&2
    docker logs --tail 5 "$container" >&2 || true # not every logging driver can be read
    "${compose[@]}" stop --timeout 10 >/dev/null 2>&1
  fi
done
for container in "${containers[@]}"; do
  name=$(docker inspect --format '{{.Config.Hostname}}' "$container")
  docker logs "$container" >"$logs/$name.stdout.log" 2>"$logs/$name.stderr.log" || true
done
((code)) || echo SUCCEEDED >&2
exit "$code"
