"""Types of GPUs: how each backend is asked for one, by a table that config files extend.

``--gpu h100:8`` is the resource ``Resource(gpu=8, capabilities={"gpu_type": "h100"})``. Section ``[gpu_types:BACKEND]``
adds types, or replaces those below::

    [gpu_types:kubernetes]
    h100 = cloud.google.com/gke-accelerator=nvidia-h100-80gb
    h100-shared = claim:h100-{n}
    mi300x = amd.com/gpu amd.com/gpu.family=AI
"""

from __future__ import annotations

import re

from torchx.errors import ConfigError
from torchx.specs import configured
from torchx.specs.api import GPU_TYPE, Resource
from torchx.util.strings import did_you_mean

# The label of NVIDIA's GPU feature discovery; alternatives are separated by `|`.
_PRODUCT = "nvidia.com/gpu.product="
_A100_80 = "NVIDIA-A100-SXM4-80GB|NVIDIA-A100-80GB-PCIe"
_A100_40 = "NVIDIA-A100-SXM4-40GB|NVIDIA-A100-PCIE-40GB"
_V100_16, _V100_32 = "Tesla-V100-SXM2-16GB|Tesla-V100-PCIE-16GB", "Tesla-V100-SXM2-32GB|Tesla-V100-PCIE-32GB"
_INSTANCES = {
    "h200": "p5e p5en",
    "h100": "p5",
    "a100": "p4d p4de",
    "a100-80gb": "p4de",
    "v100": "p3 p3dn",
    "l40s": "g6e",
    "a10g": "g5",
    "t4": "g4dn",
}
TABLE: dict[str, dict[str, str]] = {
    # the type in `--gres gpu:TYPE:N`, which a site chooses; others are passed on as they are
    "slurm": {},
    # `gmodel` of `bsub -gpu`; others are passed on as they are
    "lsf": {name: name.upper() for name in ("h200", "h100", "a100", "v100", "l40s", "l4", "a10", "t4")},
    # words: LABEL=VALUE|VALUE selects nodes; claim:TEMPLATE is a claim (DRA), with {n} for the number; another
    # word is the resource to ask for instead of nvidia.com/gpu
    "kubernetes": {
        "gb200": f"{_PRODUCT}NVIDIA-GB200",
        "b200": f"{_PRODUCT}NVIDIA-B200",
        "h200": f"{_PRODUCT}NVIDIA-H200|NVIDIA-H200-NVL",
        "h100": f"{_PRODUCT}NVIDIA-H100-80GB-HBM3|NVIDIA-H100-PCIe|NVIDIA-H100-NVL",
        "a100": f"{_PRODUCT}{_A100_80}|{_A100_40}",
        "a100-80gb": f"{_PRODUCT}{_A100_80}",
        "v100": f"{_PRODUCT}{_V100_16}|{_V100_32}",
        "l40s": f"{_PRODUCT}NVIDIA-L40S",
        "l4": f"{_PRODUCT}NVIDIA-L4",
        "a10": f"{_PRODUCT}NVIDIA-A10",
        "a10g": f"{_PRODUCT}NVIDIA-A10G",
        "t4": f"{_PRODUCT}Tesla-T4",
    },
    # families of instances, of which the smallest that suffices is chosen, or instance types
    "aws_batch": _INSTANCES,
    "aws_sagemaker": _INSTANCES,
}
"""Backend -> type -> how it is asked for. A backend that is not in the table cannot ask for a type."""

_ANY = ("slurm", "lsf")
_ALIASES = {"kubernetes_mcad": "kubernetes"}


def knows_types(backend: str) -> bool:
    """Whether a backend can be asked for a type of GPU."""
    return _ALIASES.get(backend, backend) in TABLE or bool(configured.gpu_types(backend))


def native(resource: Resource, backend: str) -> str:
    """Return how ``backend`` is asked for the resource's type of GPU; empty if the resource names none.

    Raises:
        ConfigError: the backend does not know the type.

    >>> native(Resource(1, 8, 1024, {"gpu_type": "a100"}), "slurm")
    'a100'
    """
    kind = str(resource.capabilities.get(GPU_TYPE) or "")
    if not kind or resource.gpu <= 0:
        return ""
    if not re.fullmatch(r"[A-Za-z][\w.-]*", kind, re.ASCII):
        raise ConfigError(f"`{kind}` is not a type of GPU", hint="such as `h100`, as in `--gpu h100:8`")
    backend = _ALIASES.get(backend, backend)
    known = {**TABLE.get(backend, {}), **configured.gpu_types(backend)}
    for name in (kind, kind.lower()):
        if name in known:
            return known[name]
    if backend in _ANY:
        return kind
    close = did_you_mean(kind.lower(), known)
    raise ConfigError(
        f"`{backend}` has no GPU type `{kind}`",
        hint=f"{close or 'there are: ' + ', '.join(known)}; [gpu_types:{backend}] of .torchxconfig adds one",
    )
