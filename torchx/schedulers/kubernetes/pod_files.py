"""Files inside a running pod, by processes in it. The image needs `sh`, `head`, `tail`, `wc`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from torchx.errors import BackendError, TransientError
from torchx.schedulers.kit.files import MAX_GROWN
from torchx.schedulers.kit.inside.run import Ran, run
from torchx.schedulers.kubernetes.inside import PodProcess

if TYPE_CHECKING:
    from torchx.schedulers.kubernetes.client import KubeApi
    from torchx.schedulers.kubernetes.names import Object

_LOST = "the connection to the cluster was lost"
# Arguments: seconds, then path and offset of each file; a negative offset counts from the end. For each file that has
# grown it prints the number of the argument, the number of bytes, and these.
_GROWN = """\
left=$1; shift
while :; do
  n=0; news=
  for at; do
    n=$((n + 1))
    if [ $((n % 2)) = 1 ]; then path=$at; continue; fi
    [ -f "$path" ] || continue
    size=$(wc -c <"$path"); from=$at
    [ "$from" -ge 0 ] || from=$((size + from)); [ "$from" -ge 0 ] || from=0
    size=$((size - from)); [ "$size" -le MOST ] || size=MOST
    [ "$size" -gt 0 ] || continue
    news=1; echo "$n $size"; tail -c "+$((from + 1))" "$path" | head -c "$size"
  done
  if [ -n "$news" ] || [ "$left" -le 0 ]; then exit 0; fi
  left=$((left - 1)); sleep 1
done
"""


class PodFiles:
    """The part of :class:`torchx.schedulers.kit.files.Files` that readers of logs and of evidence need."""

    wait_s = 1.0

    def __init__(self, api: KubeApi, pod: Object) -> None:
        self._api = api
        self._pod = pod

    def run(self, *argv: str, stdin: bytes = b"") -> Ran:
        """Run a command; TransientError if the connection was lost."""
        try:
            return run(PodProcess(self._api, self._pod, argv, None), stdin)
        except BackendError as e:
            if _LOST in e.message:
                raise TransientError(e.message, hint=e.hint) from e
            raise

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes | None:
        """Read a file; None if it does not exist, or is empty from there on."""
        data = self.grown({path: offset}).get(path)
        return data if data is None or size < 0 else data[:size]

    def sizes(self, paths: Iterable[str]) -> dict[str, int | None]:
        """Size of each file in bytes; None if it does not exist."""
        wanted = [*paths]
        said = self.run("sh", "-c", 'for p; do wc -c <"$p" 2>/dev/null || echo -; done', "sh", *wanted).stdout.split()
        return {p: int(size) if size.isdigit() else None for p, size in zip(wanted, said, strict=False)}

    def grown(self, offsets: Mapping[str, int], wait_s: float = 0) -> dict[str, bytes]:
        """Read what was appended to files; see :meth:`torchx.schedulers.kit.files.LocalFiles.grown`."""
        paths = [*offsets]
        words = [word for path in paths for word in (path, str(offsets[path]))]
        script = _GROWN.replace("MOST", str(MAX_GROWN))
        data = self.run("sh", "-c", script, "sh", str(int(wait_s)), *words).stdout
        found: dict[str, bytes] = {}
        while data:
            head, _, data = data.partition(b"\n")
            number, size = map(int, head.split())
            found[paths[number // 2 - 1]] = data[:size]
            data = data[size:]
        return found
