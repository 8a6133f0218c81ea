"""Mounts of a replica, and their string form.

The string form is that of ``docker run --mount``, in one list for all mounts: each ``type=`` begins the next mount.

====================================  ===================================================================
``type=bind,src=PATH,dst=PATH``       a directory or file of the host; ``readonly`` makes it read-only
``type=volume,src=NAME,dst=PATH``     a named volume (a Kubernetes PVC, a Docker volume); ``readonly``
``type=device,src=PATH``              a device of the host; ``dst`` defaults to ``src``, ``perm`` to ``rwm``
====================================  ===================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from torchx.errors import SpecError
from torchx.util.records import dataclass
from torchx.util.strings import did_you_mean


class MountType(str, Enum):
    """The value of ``type=`` in the string form of a mount."""

    BIND = "bind"
    VOLUME = "volume"
    DEVICE = "device"


@dataclass
class BindMount:
    """A path of the host, mounted into the replica.

    Args:
        src_path: absolute path on the host.
        dst_path: absolute path in the replica.
        read_only: whether the mount is read-only.
    """

    src_path: str
    dst_path: str
    read_only: bool = False


@dataclass
class VolumeMount:
    """A named, persistent volume of the scheduler.

    Args:
        src: name of the volume (on Kubernetes, of the persistent volume claim).
        dst_path: absolute path in the replica.
        read_only: whether the mount is read-only.
    """

    src: str
    dst_path: str
    read_only: bool = False


@dataclass
class DeviceMount:
    """A device of the host, exposed to the replica.

    Args:
        src_path: the device on the host, for example ``/dev/infiniband/uverbs0``.
        dst_path: its path in the replica.
        permissions: any of the letters ``r`` (read), ``w`` (write) and ``m`` (mknod).
    """

    src_path: str
    dst_path: str
    permissions: str = "rwm"


Mount = BindMount | VolumeMount | DeviceMount

# The spellings that `docker run --mount` accepts for each key.
_KEYS = {
    "type": "type",
    "src": "src",
    "source": "src",
    "dst": "dst",
    "destination": "dst",
    "target": "dst",
    "readonly": "readonly",
    "ro": "readonly",
    "perm": "perm",
    "permissions": "perm",
}
_ALLOWED = {
    MountType.BIND: ("type", "src", "dst", "readonly"),
    MountType.VOLUME: ("type", "src", "dst", "readonly"),
    MountType.DEVICE: ("type", "src", "dst", "perm"),
}
_TRUE = ("", "true", "1")
_FALSE = ("false", "0")
_EXAMPLE = "write `type=bind,src=/host/path,dst=/path[,readonly]`"


def parse_mounts(opts: list[str]) -> list[BindMount | VolumeMount | DeviceMount]:
    """Parse the string form of mounts.

    Args:
        opts: ``key=value`` pairs, split at commas or not: ``["type=bind,src=/a,dst=/b"]`` and
            ``["type=bind", "src=/a", "dst=/b"]`` are the same mount. Within a value, write ``\\,`` for a comma and
            ``\\\\`` for a backslash.

    Raises:
        SpecError: a pair is invalid.

    >>> parse_mounts(["type=bind,src=/data,dst=/mnt,readonly", "type=device", "src=/dev/fuse"])
    [BindMount(src_path='/data', dst_path='/mnt', read_only=True), \
DeviceMount(src_path='/dev/fuse', dst_path='/dev/fuse', permissions='rwm')]
    """
    mounts: list[Mount] = []
    current: dict[str, str] = {}
    for piece in _pieces(opts):
        spelled, eq, value = piece.partition("=")
        key = _KEYS.get(spelled.strip())
        if key is None:
            hint = did_you_mean(spelled.strip(), _KEYS) or "one of: type, src, dst, readonly, perm"
            raise SpecError(f"mount option `{piece}` is not known", hint=hint)
        if not eq and key != "readonly":
            raise SpecError(f"mount option `{piece}` has no value", hint=_EXAMPLE)
        if key == "type" and current:
            mounts.append(_build(current))
            current = {}
        if key != "type" and not current:
            raise SpecError(f"mount option `{piece}` comes before any `type=`", hint=_EXAMPLE)
        if key in current:
            raise SpecError(
                f"mount option `{piece}` is given twice for one mount", hint="begin each mount with `type=`"
            )
        current[key] = value
    if current:
        mounts.append(_build(current))
    return mounts


def format_mount(mount: BindMount | VolumeMount | DeviceMount) -> str:
    """Return the string form of a mount; :func:`parse_mounts` reads it back to an equal one.

    >>> format_mount(VolumeMount(src="data", dst_path="/mnt", read_only=True))
    'type=volume,src=data,dst=/mnt,readonly'
    """
    if isinstance(mount, DeviceMount):
        text = f"type=device,src={_escape(mount.src_path)},dst={_escape(mount.dst_path)}"
        return text if mount.permissions == "rwm" else f"{text},perm={_escape(mount.permissions)}"
    kind, src = ("bind", mount.src_path) if isinstance(mount, BindMount) else ("volume", mount.src)
    text = f"type={kind},src={_escape(src)},dst={_escape(mount.dst_path)}"
    return f"{text},readonly" if mount.read_only else text


def _build(found: dict[str, str]) -> Mount:
    try:
        kind = MountType(found["type"])
    except ValueError:
        names = [t.value for t in MountType]
        hint = did_you_mean(found["type"], names) or f"one of: {', '.join(names)}"
        raise SpecError(f"mount type `{found['type']}` is not known", hint=hint) from None
    shown = ",".join(f"{k}={v}" for k, v in found.items())
    for key in found:
        if key not in _ALLOWED[kind]:
            raise SpecError(f"a {kind.value} mount takes no `{key}`: `{shown}`", hint=_EXAMPLE)
    src = found.get("src", "")
    dst = found.get("dst", src if kind is MountType.DEVICE else "")
    for key, value in (("src", src), ("dst", dst)):
        if not value:
            raise SpecError(f"mount `{shown}` has no `{key}`", hint=_EXAMPLE)
    if kind is MountType.DEVICE:
        perm = found.get("perm", "rwm")
        if not perm or len(set(perm)) != len(perm) or not set(perm) <= set("rwm"):
            raise SpecError(f"device permissions `{perm}` are not letters out of `rwm`", hint="for example `perm=rw`")
        return DeviceMount(src_path=src, dst_path=dst, permissions=perm)
    flag = found.get("readonly", "false")
    if flag.lower() not in (*_TRUE, *_FALSE):
        raise SpecError(f"mount option `readonly={flag}` is not true or false", hint="write `readonly` or leave it out")
    read_only = flag.lower() in _TRUE
    if kind is MountType.BIND:
        return BindMount(src_path=src, dst_path=dst, read_only=read_only)
    return VolumeMount(src=src, dst_path=dst, read_only=read_only)


def _pieces(opts: list[str]) -> Iterator[str]:
    for opt in opts:
        pieces = opt.split(",")
        if "\\" in opt:  # rare: `import torchx.specs` is faster without `re`
            import re

            pieces = [re.sub(r"\\([\\,])", r"\1", p) for p in re.findall(r"(?s)(?:[^\\,]|\\.|\\\Z)+", opt)]
        yield from (piece for piece in pieces if piece.strip())


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,")
