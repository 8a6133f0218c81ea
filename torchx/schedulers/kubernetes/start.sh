#!/bin/sh
# Entry point of a container whose code is not in its image: unpacks the archive next to this file into the working directory,
# or one that it downloads from the signed URL in the file `url`, and executes its program. Prefers Python, which needs no
# gzip and does not replace symlinks to folders, such as `/lib`.
torchx_fetch='
import shutil, sys, time, urllib.request
with open(sys.argv[1]) as file:
    url = file.read()
for pause in (1, 4, 16, 0):
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, open(sys.argv[2], "wb") as file:
            shutil.copyfileobj(answer, file)
            if file.tell() != int(answer.headers["Content-Length"] or file.tell()):
                raise OSError("the answer breaks off")
        break
    except OSError as e:
        if not pause or 400 <= (getattr(e, "code", 0) or 0) < 500:
            sys.exit(f"torchx: {e}")
    time.sleep(pause)
'
torchx_has() { command -v "$1" >/dev/null 2>&1; }
torchx_get() { # address, file
  if torchx_has python3 && python3 -IS -c "$torchx_fetch" "$1" "$2"; then return; fi
  if torchx_has curl && curl -fsS --retry 4 -o "$2" "$(cat "$1")"; then return; fi
  torchx_has wget && wget -q -O "$2" "$(cat "$1")"
}
torchx_unpack() {
  if torchx_has python3 && python3 -IS -m tarfile -e "$1" .; then return; fi
  tar -xzomf "$1"
}
torchx_fail() {
  [ -z "$torchx_fetched" ] || rm -f "$torchx_fetched"
  echo "torchx: the code cannot be $1 $PWD, the working directory of the image" >&2
  exit 1
}
torchx_code=${0%/*}/code.tgz torchx_fetched=
if [ ! -e "$torchx_code" ]; then
  torchx_fetched=$(mktemp ./.torchx-code.XXXXXX) || torchx_fail "written to"
  torchx_get "${0%/*}/url" "$torchx_fetched" || torchx_fail "fetched from its bucket into"
  torchx_code=$torchx_fetched
fi
torchx_unpack "$torchx_code" || torchx_fail "unpacked into"
[ -z "$torchx_fetched" ] || rm -f "$torchx_fetched"
exec "$@"
