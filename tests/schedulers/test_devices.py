"""Device files behind named devices."""

from __future__ import annotations

import pytest

from torchx.schedulers.devices import DEVICES, EFA_DEVICE, NEURON_DEVICE, get_device_mounts, to_devicemounts


def test_devices_are_mounted_at_their_own_paths() -> None:
    """Numbered from 0, source and target the same, readable and writable."""
    mounts = get_device_mounts({NEURON_DEVICE: 2, EFA_DEVICE: 1})
    assert [m.src_path for m in mounts] == ["/dev/neuron0", "/dev/neuron1", "/dev/infiniband/uverbs0"]
    assert all(m.src_path == m.dst_path and m.permissions == "rwm" for m in mounts)
    assert set(DEVICES) == {NEURON_DEVICE, EFA_DEVICE}
    assert to_devicemounts(0, "/dev/x") == []


def test_an_unknown_device_is_warned_of_and_left_out() -> None:
    """A name without device files does not fail the job."""
    with pytest.warns(UserWarning, match="`quantum`"):
        assert get_device_mounts({"quantum": 3}) == []
