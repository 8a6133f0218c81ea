#!/bin/sh
# Runs a command under ECS Exec, with its streams multiplexed over a terminal.
#
#   sh inside.sh MARK TTY WORD...      with the terminal in raw mode, and a function `torchx_start WORD...`
#
# With TTY=yes the command gets the terminal. Otherwise stdout and stderr are lines of Base64 after 1 or 2, as the agent
# transfers only text. The last line is the exit code after MARK. Working directory and environment are those of
# PID 1 if they can be read. Needs: sh, stty, dd, base64, sed, tr.
_tx_mark=$1 _tx_tty=$2
shift 2
for _tx_word in dd base64 sed tr; do
  command -v "$_tx_word" >/dev/null || { echo "the image has no $_tx_word" && exit 1; }
done
eval "$({
  # NAME='value' of each variable; a line end in it is passed through as \001
  tr '\0\n' '\n\001' </proc/1/environ |
    LC_ALL=C sed -n "/^E*UID=/d; /^PPID=/d; /^SHELLOPTS=/d; /^BASHOPTS=/d; s/'/'\\\\''/g; s/^\([A-Za-z_][A-Za-z0-9_]*\)=\(.*\)\$/export \1='\2'/p" | tr '\001' '\n'
} 2>/dev/null)"
if cd /proc/1/cwd 2>/dev/null; then cd "$(pwd -P)" || :; fi

_tx_lines() {  # stream number: one write per line, so that the two streams do not mix
  while _tx_piece=$(dd bs=49152 count=1 2>/dev/null | base64) && [ -n "$_tx_piece" ]; do
    printf '%s\n' "$_tx_piece" | sed "s/^/$1/"
  done
}
_tx_run() (  # close by `exec`: with a redirection the shell would keep copies open, and stdin's reader would outlive it
  exec 3>&- 4>&- 5>&-
  trap - INT TERM HUP QUIT USR1 USR2
  torchx_start "$@"
)

trap '' INT TERM HUP QUIT USR1 USR2
if [ "$_tx_tty" = yes ]; then
  stty sane
  _tx_run "$@"
  _tx_code=$?
else
  exec 3>&1
  _tx_code=$(
    {
      {
        (
          exec 2>&1 >&5 5>&-
          _tx_run "$@"
          echo "$?" >&4
        ) | _tx_lines 2 >&3
      } 5>&1 | _tx_lines 1 >&3
    } 4>&1
  )
fi
echo "$_tx_mark= $_tx_code"
