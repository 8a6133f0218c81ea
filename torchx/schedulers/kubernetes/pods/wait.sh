#!/bin/sh
# Waits, as an init container, until enough replicas of other roles are ready: the name of a role's Service has the
# addresses of those that are.
#
#   sh -c <this> wait [SERVICE COUNT HOST SECONDS ROLE]...
#
# It fails, with ROLE as its termination message, if it has not seen COUNT of them SECONDS after HOST, the role's first
# replica, had an address. Its shell has PID 1, and would ignore SIGTERM.
trap 'exit 143' TERM
command -v python3 >/dev/null || command -v getent >/dev/null || command -v nslookup >/dev/null || {
  echo "the image needs python3, getent or nslookup to wait for role $5" >&2
  exit 3
}
addresses() {
  python3 -c 'import socket, sys
for a in socket.getaddrinfo(sys.argv[1], 1): print(a[4][0])' "$1" || getent ahosts "$1" || {
    nslookup "$1" | sed -n '/^Name/,$s/^Address[ 0-9]*: *//p'
  }
} 2>/dev/null
count() {
  addresses "$1" | {
    seen=' ' n=0
    while read -r address _; do
      case $seen in *" $address "*) ;; *) seen="$seen$address " n=$((n + 1)) ;; esac
    done
    echo "$n"
  }
}
while [ $# -gt 0 ]; do
  began=
  until [ "$(count "$1")" -ge "$2" ]; do
    if [ -z "$began" ] && [ "$(count "$3")" -gt 0 ]; then
      began=$(date +%s)
    elif [ "$began" ] && [ $(($(date +%s) - began)) -gt "$4" ]; then
      printf %s "$5" >/dev/termination-log
      exit 3
    fi
    sleep 1
  done
  shift 5
done
