#!/bin/sh
# A login to a replica over the stdin and stdout of this: sh sshd.sh AUTHORIZED-KEYS. What it needs is in a folder that goes with it.
umask 077
PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin
for program in sshd ssh-keygen; do
  if ! command -v "$program" >/dev/null; then
    echo "torchx: the replica has no \`$program\`: install openssh-server in its image" >&2
    exit 127
  fi
done
folder=$(mktemp -d) || exit 1
# `ssh` sends SIGHUP when it has ended, which may be while the folder is being removed.
leave() {
  trap '' HUP INT TERM
  rm -rf "$folder"
}
trap leave EXIT
trap 'leave; exit 129' HUP
trap 'leave; exit 130' INT
trap 'leave; exit 143' TERM
ssh-keygen -q -t ed25519 -N '' -f "$folder/host" || exit 1
printf '%s\n' "$1" >"$folder/keys"
if [ "$(id -u)" = 0 ]; then mkdir -p /run/sshd; fi
cat >"$folder/config" <<END
HostKey $folder/host
AuthorizedKeysFile $folder/keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
LogLevel ERROR
END
exec 3<&0
"$(command -v sshd)" -i -e -f "$folder/config" <&3 3<&- &
exec 3<&-
wait "$!" 2>/dev/null
