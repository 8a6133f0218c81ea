#!/bin/bash
# A function of batch scripts whose roles wait until others are ready: it probes a replica; see torchx/specs/order.py.

# Kind of the probe, host, port, path or pattern or file; stdout.log and its size at the replica's start, the same of stderr.log.
# If the replica is not ready, it prints what it saw.
probe() {
  local said
  case $1 in
    file)
      ls -- "${4%/*}/" >/dev/null 2>&1  # NFS caches that a file does not exist
      [[ -e $4 ]] || { echo "it does not exist"; return 1; }
      return ;;
    log)
      { tail -c "+$(($6 + 1))" -- "$5" | sed $'s/\r$//' | grep -Eq -e "$4"; } 2>/dev/null && return
      { tail -c "+$(($8 + 1))" -- "$7" | sed $'s/\r$//' | grep -Eq -e "$4"; } 2>/dev/null && return
      echo "no line of its output matches"
      return 1 ;;
  esac
  # shellcheck disable=SC2016
  said=$(timeout 10 "$BASH" -c 'exec 3<>"/dev/tcp/$0/$1" || exit
    [[ -n $2 ]] || exit 0
    printf "GET %s HTTP/1.0\r\nHost: %s:%s\r\nConnection: close\r\n\r\n" "$2" "$0" "$1" >&3
    read -r answer <&3; echo "=$answer"
    head -c 65536 <&3 >/dev/null  # a server may complain about a reader that leaves early' "$2" "$3" "$4" 2>&1)
  case $?:$said in
    0: | *:=HTTP/*\ [23]??*) return 0 ;;
    *:=HTTP/*) said=${said#* } said="status ${said%%[!0-9]*}" ;;
    *:=) said="no answer" ;;
    *:=*) said="an answer that is not HTTP" ;;
    124:*) said="no answer within 10 s" ;;
    *) said=${said##*: } ;;
  esac
  echo "${said//[!a-zA-Z0-9 ]/}"
  return 1
}
