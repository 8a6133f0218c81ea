"""Selects the layers of earlier pushes to reuse, so that small changes need small uploads.

A cache has the layers that were pushed for a workspace, and their contents. The next image reuses them, and adds a
layer with the changes. No layer ever *removes* a file, because that could uncover a file of the base image. A layer
with a file that no longer exists is therefore replaced as a whole, which is why layers have a moderate size. A layer
is also replaced if more than half of it is outdated; if there are too many layers, the small ones are merged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from torchx.util.records import dataclass
from torchx.workspace.images.cache import Cache
from torchx.workspace.images.layers import Item, Layer, lookup

# An image can have 127 layers on overlayfs; base images have up to 40 or so.
MOST_LAYERS = 24
_LAYER_BYTES = 32 << 20
_FIRST_LAYERS = 12  # of a large workspace; the rest is for changes
_FORMAT = 1
_CACHE = Cache("images", most=100)


@dataclass(frozen=True)
class Arrangement:
    """Layers to reuse, bottom first, and the items of each new layer on top of them."""

    kept: list[Layer]
    new: list[list[Item]]


def arrange(desired: Mapping[str, Item], pushed: Sequence[Layer], most_layers: int = MOST_LAYERS) -> Arrangement:
    """Selects the layers of an earlier push, bottom first, to reuse in a result of at most ``most_layers``.

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
    """Returns whether more than half of the layer is hidden by later layers or outdated."""
    whole = live = 0
    for path, (key, size) in layer.contents.items():
        whole += size
        live += size if top[path][0] is layer and key == desired[path].key else 0
    return 2 * live < whole


def _divide(desired: Mapping[str, Item], changed: set[str]) -> list[list[Item]]:
    """Divides the changed items into groups of moderate size, each with its parent directories."""
    total = sum(desired[path].size for path in changed)
    room = max(_LAYER_BYTES, total // _FIRST_LAYERS)
    groups: list[set[str]] = []
    left = 0
    for path in sorted(changed, key=lambda p: p.split("/")):
        size = desired[path].size
        if not groups or size > left:
            groups.append(set())
            left = room
        groups[-1].add(path)
        left -= size
    return [lookup(desired, group) for group in groups]


class Pushed:
    """Cache of the pushed layers in ``$TORCHX_HOME/cache/images``; without it, everything is pushed again.

    ``what``: all that the layers depend on except the files: repository, workspace, place in the image.
    """

    def __init__(self, what: Iterable[str]) -> None:
        self._key = json.dumps([_FORMAT, *what])

    def load(self) -> list[Layer]:
        """Returns the cached layers, bottom first."""
        try:
            known = json.loads(_CACHE.recall(self._key))["layers"]
            contents = [
                {str(path): (str(key), int(size)) for path, (key, size) in one["contents"].items()} for one in known
            ]
            return [Layer(**{**one, "contents": of}) for one, of in zip(known, contents, strict=True)]
        except (ValueError, LookupError, TypeError, AttributeError):  # there is none yet, or it is damaged
            return []

    def save(self, layers: Sequence[Layer]) -> None:
        """Caches the layers, bottom first."""
        known = {"layers": [vars(layer) for layer in layers]}
        _CACHE.remember(self._key, json.dumps(known).encode())
