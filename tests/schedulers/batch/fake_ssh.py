"""A stand-in for ``ssh``: a real program that runs commands here, as a login shell would, and fails on demand."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PROGRAM = r"""#!/bin/sh
# A file of $folder says what goes wrong: each line of it for one time.
folder='@FOLDER@'
take() { # NAME: succeed, and print the first line of the file, if it has one
  [ -s "$folder/$1" ] || return 1
  head -n 1 "$folder/$1"; sed 1d "$folder/$1" > "$folder/$1.rest"; mv "$folder/$1.rest" "$folder/$1"
}
socket= control= master= config=
while [ $# -gt 0 ]; do
  case $1 in
    -S) socket=$2; shift 2;;
    -O) control=$2; shift 2;;
    -G) config=1; shift;;
    -F|-o|-l|-p) [ "$2" = BatchMode=no ] && talk=1; shift 2;;
    -M|-N) master=1; shift;;
    -f|-T|-tt) shift;;
    *) break;;
  esac
done
target=$1; shift
echo "${control:-${config:+config}${master:+login}${1:+run}} $target" >> "$folder/calls"
if [ -n "$config" ]; then cat "$folder/config" 2>/dev/null; exit 0; fi
if [ -n "$control" ]; then
  case $control in
    check) [ -e "$socket" ];;
    stop|exit) rm -f "$socket";;
  esac
  exit
fi
if [ -n "$master" ]; then
  if said=$(take login-fails); then echo "$said" >&2; exit 255; fi
  : > "$socket"; exit 0
fi
if take lost-master > /dev/null; then rm -f "$socket"; fi
if [ ! -e "$socket" ]; then
  echo "Control socket connect($socket): No such file or directory" >&2; exit 255
fi
if said=$(take refuses); then echo "mux_client_request_session: session request failed: Session open refused by peer" >&2; exit 255; fi
if take lost-before > /dev/null; then rm -f "$socket"; echo "Connection to login closed by remote host." >&2; exit 255; fi
if [ ! -e "$folder/quiet" ]; then
  echo "Welcome, this is a login script"
  echo "stty: standard input: Inappropriate ioctl for device" >&2
fi
if take lost-within > /dev/null; then  # stderr is complete and stdout is not; ssh passes on the exit code that it has heard
  sh -c "$*" | head -c 40; rm -f "$socket"; exit 0
fi
if take lost-after > /dev/null; then
  sh -c "$*" > /dev/null 2>&1; rm -f "$socket"; echo "client_loop: send disconnect: Broken pipe" >&2; exit 255
fi
sh -c "$*"
"""


class FakeSsh:
    """Put on PATH, it is what torchx finds as ``ssh``.

    Args:
        folder: keeps its files; ``there`` in it is the home folder of the login node.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.there = folder / "there"
        self.there.mkdir(parents=True)
        (folder / "bin").mkdir()
        program = folder / "bin" / "ssh"
        program.write_text(_PROGRAM.replace("@FOLDER@", str(folder)))
        program.chmod(0o755)
        self.path = f"{folder / 'bin'}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"

    def config(self, text: str) -> None:
        """Sets the output of ``ssh -G``."""
        (self.folder / "config").write_text(text)

    def login_fails(self, *said: str) -> None:
        """Makes the next logins fail with this message."""
        (self.folder / "login-fails").write_text("".join(f"{line}\n" for line in said))

    def refuses(self, times: int) -> None:
        """Makes the next sessions be rejected, as if there were too many."""
        (self.folder / "refuses").write_text("x\n" * times)

    def loses(self, when: str, times: int = 1) -> None:
        """So many times the connection is lost: ``before`` the command runs, ``after`` it, or ``within`` its answer; or its
        ``master`` is gone."""
        (self.folder / f"lost-{when}").write_text("x\n" * times)

    def quiet(self) -> None:
        """Makes login scripts print nothing, as rsync requires."""
        (self.folder / "quiet").touch()

    def calls(self) -> list[str]:
        """The calls so far, in order: ``config``, ``login``, ``check``, ``stop``, ``exit``, ``run``."""
        log = self.folder / "calls"
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []
