"""Image layers from workspace files. The bytes of a layer depend only on its files.

A layer is a tar archive of files with their directories, see
https://github.com/opencontainers/image-spec/blob/main/layer.md. Owners are root, as with ``COPY``; all times are the
same. Layers are compressed if a sample shows that it pays, because most large files are compressed already.

Small changes need small uploads: a cache has the layers that were pushed for a workspace, and their contents. The next
image reuses them, and adds a layer with the changes. No layer ever *removes* a file, because that could uncover a file
of the base image. A layer with a file that no longer exists is therefore replaced as a whole, which is why layers have
a moderate size. A layer is also replaced if more than half of it is outdated; if there are too many layers, the small
ones are merged.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torchx.errors import SpecError
from torchx.settings import make_private, torchx_home
from torchx.util.records import dataclass, field
from torchx.workspace.content import FILE, LINK, Entry, sha256_of
from torchx.workspace.hashes import identity
from torchx.workspace.images import archive
from torchx.workspace.images.cache import Cache
from torchx.workspace.images.registry import Blob

# 1981: valid in every time zone in zip archives, and so in wheels that a job builds.
TIME = 347155200
_CHUNK = 1 << 20
_IN_MEMORY = 1 << 20
_SAMPLES = 32
_SAMPLE = 16 << 10
_SAMPLED = 64 << 10  # smaller files are compressed without a sample
_PAYS = 0.85
_SMALL = 256 << 10  # below this the sample would cost as much as the compression
_LEVEL = 4  # 3 times as fast as the default, for 5 % more bytes of Python source
_REMOVES = ".wh."
# An image can have 127 layers on overlayfs; base images have up to 40 or so.
MAX_LAYERS = 24
_LAYER_BYTES = 32 << 20
_FIRST_LAYERS = 12  # of a large workspace; the rest is for changes
_FORMAT = 1
_CACHE = Cache("images", most=100)


@dataclass(frozen=True)
class Folder:
    """A directory of the base image above the workspace. Layers must contain it, or engines create it with defaults."""

    path: str
    mode: int = 0o755
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True)
class Item:
    """A workspace entry with its key: kind, mode, and the hash of the content or the link's target."""

    entry: Entry
    key: str


@dataclass(frozen=True)
class Layer:
    """A layer as in an image's configuration and manifest, and its contents."""

    digest: str  # of the bytes in the registry
    diff_id: str  # digest of the uncompressed tar archive
    size: int  # bytes in the registry
    compressed: bool  # with gzip
    contents: dict[str, tuple[str, int]] = field(default_factory=dict, repr=False)  # path -> (key, size) of each item


def item(entry: Entry, sha256: Callable[[Entry], str]) -> Item:
    """Return the entry with its key; raise SpecError if it is unreadable, or its name has a meaning in a layer."""
    name = entry.path.rpartition("/")[2]
    if name.startswith(_REMOVES):
        raise SpecError(
            f"workspace file `{entry.path}` cannot be in an image: in a layer, a name with `.wh.` removes a file",
            hint="rename it, or name it in `.torchxignore`",
        )
    of = sha256(entry) if entry.kind == FILE else entry.target if entry.kind == LINK else ""
    return Item(entry, f"{entry.kind} {entry.mode:o} {of}")


def pack(items: list[Item], place: str, above: list[Folder]) -> tuple[Layer, Blob]:
    """Build a layer. Keeps its bytes if they are compressed; otherwise reads the files again for the upload.

    Args:
        items: sorted, with all parent directories.
        place: directory of the workspace in the image, without the leading slash.
        above: directories of the image down to ``place``, inclusive.
    """
    contents = {i.entry.path: (i.key, i.entry.size) for i in items}

    def plainly() -> Iterator[bytes]:
        return (chunk for chunk, _ in archive.gathered((block, True) for block, _ in _blocks(items, place, above)))

    plain = hashlib.sha256()
    if not _worth_compressing(items):
        size = 0
        for chunk in plainly():
            plain.update(chunk)
            size += len(chunk)
        digest = f"sha256:{plain.hexdigest()}"
        return Layer(digest, digest, size, False, contents), Blob(digest, size, plainly)
    packed = hashlib.sha256()
    spool = _Spool()
    for chunk in _gzip(_blocks(items, place, above), plain):
        packed.update(chunk)
        spool.file.write(chunk)
    digest, size = f"sha256:{packed.hexdigest()}", spool.file.tell()
    layer = Layer(digest, f"sha256:{plain.hexdigest()}", size, True, contents)
    return layer, Blob(digest, size, spool.chunks)


def _gzip(blocks: Iterable[tuple[bytes, bool]], plain: object) -> Iterator[bytes]:
    """Compresses blocks; stores incompressible ones, which is ten times as fast, in separate gzip members.

    A gzip file is a series of members: https://datatracker.ietf.org/doc/html/rfc1952#page-5
    """
    squeeze, squeezes = None, True
    for chunk, pays in archive.gathered(blocks):
        plain.update(chunk)  # type: ignore[attr-defined]  # hashlib has no public name for its type
        if squeeze is None or pays != squeezes:
            if squeeze is not None:
                yield squeeze.flush()
            # 31: with a gzip header, in which zlib writes no time
            squeeze, squeezes = zlib.compressobj(_LEVEL if pays else 0, zlib.DEFLATED, 31), pays
        yield squeeze.compress(chunk)
    if squeeze is not None:
        yield squeeze.flush()


def _blocks(items: list[Item], place: str, above: list[Folder]) -> Iterator[tuple[bytes, bool]]:
    """Yield the tar archive in pieces, each with whether it pays to compress it."""
    for folder in above:
        owner = (folder.uid, folder.gid)
        yield archive.header(folder.path, folder.mode, mtime=TIME, folder=True, owner=owner), True
    for one in items:
        entry = one.entry
        yield archive.header_of(entry, f"{place}/{entry.path}" if place else entry.path, TIME), True
        if entry.kind == FILE:
            pays = None if entry.size >= _SAMPLED else True
            for chunk in _content(one):
                pays = _pays(chunk[:_SAMPLE]) if pays is None else pays
                yield chunk, pays
            yield archive.padding(entry.size), pays is not False
    yield archive.END, True


def _pays(sample: bytes) -> bool:
    return len(zlib.compress(sample, 1)) < _PAYS * len(sample)


def _content(one: Item) -> Iterator[bytes]:
    """Yield the content of a file, and check that it matches the item's key."""
    entry = one.entry
    digest = None if entry.identity else hashlib.sha256()
    for chunk in entry.chunks():
        if digest:
            digest.update(chunk)
        yield chunk
    same = identity(entry.local) == entry.identity if digest is None else one.key.endswith(digest.hexdigest())
    # A file that only grows, such as the log of another job, is no error: its first bytes, which were read, are
    # unchanged. The hash detects any other change.
    if not same and digest is None:
        same = one.key.endswith(sha256_of(entry))
    if not same:
        raise SpecError(
            f"workspace file `{entry.path}` was changed while the image was made",
            hint="try again when nothing writes to it, or name it in `.torchxignore`",
        )


def _worth_compressing(items: list[Item]) -> bool:
    """Decides by a sample of the content only, so that the same content always gives the same layer."""
    files = [i.entry for i in items if i.entry.size]
    if sum(f.size for f in files) < _SMALL:
        return True
    step = max(1, len(files) // _SAMPLES)
    taken = squeezed = 0
    for entry in sorted(files, key=lambda f: -f.size)[::step]:
        for chunk in entry.chunks():
            sample = chunk[:_SAMPLE]
            taken += len(sample) * entry.size
            squeezed += len(zlib.compress(sample, 1)) * entry.size
            break
    return squeezed < taken * _PAYS


class _Spool:
    """Bytes in memory, or in an unnamed temporary file if there are many."""

    def __init__(self) -> None:
        import tempfile

        folder = torchx_home("cache")
        try:
            make_private(folder)
            where = folder if os.access(folder, os.W_OK) else None
        except OSError:
            where = None
        self.file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, dir=where)  # noqa: SIM115  # closed in __del__

    def chunks(self) -> Iterator[bytes]:
        self.file.seek(0)
        while chunk := self.file.read(_CHUNK):
            yield chunk

    def __del__(self) -> None:
        self.file.close()


@dataclass(frozen=True)
class Arrangement:
    """Layers to reuse, bottom first, and the items of each new layer on top of them."""

    kept: list[Layer]
    new: list[list[Item]]


def arrange(desired: Mapping[str, Item], pushed: Sequence[Layer], most_layers: int = MAX_LAYERS) -> Arrangement:
    """Select the layers of an earlier push, bottom first, to reuse in a result of at most ``most_layers``.

    Unpacking ``kept`` and ``new`` in order yields exactly the desired items.
    """
    kept = [layer for layer in pushed if layer.contents.keys() <= desired.keys()]
    while True:
        top = {path: (layer, content[0]) for layer in kept for path, content in layer.contents.items()}
        worn = {id(layer) for layer in kept if _is_worn(layer, top, desired)}
        if worn:
            kept = [layer for layer in kept if id(layer) not in worn]
            continue
        changed = {path for path, one in desired.items() if path not in top or top[path][1] != one.key}
        new = _divide(desired, changed)
        if len(kept) + len(new) <= most_layers or not kept:
            return Arrangement(kept, new)
        small = {id(layer) for layer in sorted(kept, key=lambda layer: layer.size)[: max(1, len(kept) // 2)]}
        kept = [layer for layer in kept if id(layer) not in small]


def _is_worn(layer: Layer, top: Mapping[str, tuple[Layer, str]], desired: Mapping[str, Item]) -> bool:
    """Return whether more than half of the layer is hidden by later layers or outdated."""
    whole = live = 0
    for path, (key, size) in layer.contents.items():
        whole += size
        live += size if top[path][0] is layer and key == desired[path].key else 0
    return 2 * live < whole


def _divide(desired: Mapping[str, Item], changed: set[str]) -> list[list[Item]]:
    """Divides the changed items into groups of moderate size, each with its parent directories."""
    total = sum(desired[path].entry.size for path in changed)
    room = max(_LAYER_BYTES, total // _FIRST_LAYERS)
    groups: list[set[str]] = []
    left = 0
    for path in sorted(changed, key=lambda p: p.split("/")):
        size = desired[path].entry.size
        if not groups or size > left:
            groups.append(set())
            left = room
        groups[-1].add(path)
        left -= size
    return [lookup(desired, group) for group in groups]


def parents(paths: Iterable[str]) -> set[str]:
    """Return all parent directories of the paths.

    >>> sorted(parents(["a/b/c", "d"]))
    ['a', 'a/b']
    """
    found: set[str] = set()
    for path in paths:
        head = path.rpartition("/")[0]
        while head and head not in found:
            found.add(head)
            head = head.rpartition("/")[0]
    return found


def lookup(desired: Mapping[str, Item], paths: set[str]) -> list[Item]:
    """Return the items of the paths and of their parent directories, in the order of a walk."""
    return [desired[p] for p in sorted(paths | parents(paths), key=lambda p: p.split("/"))]


class Pushed:
    """Cache of the pushed layers in ``$TORCHX_HOME/cache/images``; without it, everything is pushed again.

    ``what``: all that the layers depend on except the files: repository, workspace, place in the image.
    """

    def __init__(self, what: Iterable[str]) -> None:
        self._key = json.dumps([_FORMAT, *what])

    def load(self) -> list[Layer]:
        """Return the cached layers, bottom first."""
        try:
            known = json.loads(_CACHE.recall(self._key))["layers"]
            contents = [
                {str(path): (str(key), int(size)) for path, (key, size) in one["contents"].items()} for one in known
            ]
            return [Layer(**{**one, "contents": of}) for one, of in zip(known, contents, strict=True)]
        except (ValueError, LookupError, TypeError, AttributeError):  # there is none yet, or it is damaged
            return []

    def save(self, layers: Sequence[Layer]) -> None:
        """Cache the layers, bottom first."""
        known = {"layers": [vars(layer) for layer in layers]}
        _CACHE.remember(self._key, json.dumps(known).encode())
