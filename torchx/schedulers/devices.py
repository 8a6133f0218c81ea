"""Maps the named devices of a resource to device files."""

from __future__ import annotations

from collections.abc import Callable

from torchx.specs.api import DeviceMount

EFA_DEVICE = "vpc.amazonaws.com/efa"
NEURON_DEVICE = "aws.amazon.com/neurondevice"


def to_devicemounts(num_devices: int, device_type: str) -> list[DeviceMount]:
    """Return the mounts of ``num_devices`` numbered devices.

    Args:
        device_type: path without the number.

    >>> [m.src_path for m in to_devicemounts(2, "/dev/neuron")]
    ['/dev/neuron0', '/dev/neuron1']
    """
    paths = [f"{device_type}{i}" for i in range(num_devices)]
    return [DeviceMount(src_path=path, dst_path=path) for path in paths]


# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html
# https://awsdocs-neuron.readthedocs-hosted.com/en/latest/containers/
DEVICES: dict[str, Callable[[int], list[DeviceMount]]] = {
    EFA_DEVICE: lambda n: to_devicemounts(n, "/dev/infiniband/uverbs"),
    NEURON_DEVICE: lambda n: to_devicemounts(n, "/dev/neuron"),
}


def get_device_mounts(devices: dict[str, int]) -> list[DeviceMount]:
    """Return the device files of all named devices. An unknown device is skipped with a warning.

    >>> [m.dst_path for m in get_device_mounts({EFA_DEVICE: 1})]
    ['/dev/infiniband/uverbs0']
    """
    mounts: list[DeviceMount] = []
    for name, count in devices.items():
        to_mounts = DEVICES.get(name)
        if to_mounts is None:
            import warnings

            warnings.warn(
                f"no device files are known for `{name}`: it is left out; known are {', '.join(sorted(DEVICES))}",
                stacklevel=2,
            )
            continue
        mounts += to_mounts(count)
    return mounts
