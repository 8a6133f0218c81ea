"""Named resources for AWS instance types that are common in machine learning.

A resource requests the whole instance, minus the memory that the operating system and the scheduler's agents use
(``MEM_TAX``). Its name is ``aws_`` and the instance type, ``aws_p3.2xlarge``; its factory is ``aws_p3_2xlarge``.
``capabilities[K8S_ITYPE]`` holds the instance type. Sizes: https://aws.amazon.com/ec2/instance-types/

>>> aws_p3_2xlarge()
Resource(cpu=8, gpu=1, memMB=59963, capabilities={'node.kubernetes.io/instance-type': 'p3.2xlarge'})
"""

from __future__ import annotations

from collections.abc import Callable

from torchx.errors import SpecError
from torchx.specs.api import Resource

TYPE_CHECKING = False

EFA_DEVICE = "vpc.amazonaws.com/efa"
"""Elastic Fabric Adapter, a network device."""

NEURON_DEVICE = "aws.amazon.com/neurondevice"
"""Inferentia and Trainium chips."""

K8S_ITYPE = "node.kubernetes.io/instance-type"
"""The capability that holds the instance type; also the Kubernetes node label."""

MEM_TAX = 0.96
"""The share of an instance's memory that is available to a job."""

GiB = int(1024 * MEM_TAX)
"""MiB available to a job per GiB of an instance."""

# instance type: logical cores, GPUs, memory in GiB, devices
_INSTANCES: dict[str, tuple[int, int, int, dict[str, int]]] = {
    "c5.18xlarge": (72, 0, 142, {}),
    "g4dn.12xlarge": (48, 4, 192, {EFA_DEVICE: 1}),
    "g4dn.16xlarge": (64, 1, 256, {EFA_DEVICE: 1}),
    "g4dn.2xlarge": (8, 1, 32, {}),
    "g4dn.4xlarge": (16, 1, 64, {}),
    "g4dn.8xlarge": (32, 1, 128, {EFA_DEVICE: 1}),
    "g4dn.metal": (96, 8, 384, {EFA_DEVICE: 1}),
    "g4dn.xlarge": (4, 1, 16, {}),
    "g5.12xlarge": (48, 4, 192, {EFA_DEVICE: 1}),
    "g5.16xlarge": (64, 1, 256, {EFA_DEVICE: 1}),
    "g5.24xlarge": (96, 4, 384, {EFA_DEVICE: 1}),
    "g5.2xlarge": (8, 1, 32, {}),
    "g5.48xlarge": (192, 8, 768, {EFA_DEVICE: 1}),
    "g5.4xlarge": (16, 1, 64, {}),
    "g5.8xlarge": (32, 1, 128, {EFA_DEVICE: 1}),
    "g5.xlarge": (4, 1, 16, {}),
    "g6e.12xlarge": (48, 4, 384, {}),
    "g6e.16xlarge": (64, 1, 512, {}),
    "g6e.24xlarge": (96, 4, 768, {EFA_DEVICE: 2}),
    "g6e.2xlarge": (8, 1, 64, {}),
    "g6e.48xlarge": (192, 8, 1536, {EFA_DEVICE: 4}),
    "g6e.4xlarge": (16, 1, 128, {}),
    "g6e.8xlarge": (32, 1, 256, {}),
    "g6e.xlarge": (4, 1, 32, {}),
    "inf2.24xlarge": (96, 0, 384, {NEURON_DEVICE: 6}),
    "inf2.48xlarge": (192, 0, 768, {NEURON_DEVICE: 12}),
    "inf2.8xlarge": (32, 0, 128, {NEURON_DEVICE: 1}),
    "inf2.xlarge": (4, 0, 16, {NEURON_DEVICE: 1}),
    "m5.2xlarge": (8, 0, 32, {}),
    "p3.16xlarge": (64, 8, 488, {}),
    "p3.2xlarge": (8, 1, 61, {}),
    "p3.8xlarge": (32, 4, 244, {}),
    "p3dn.24xlarge": (96, 8, 768, {EFA_DEVICE: 1}),
    "p4d.24xlarge": (96, 8, 1152, {EFA_DEVICE: 4}),
    "p4de.24xlarge": (96, 8, 1152, {EFA_DEVICE: 4}),
    "p5.48xlarge": (192, 8, 2048, {EFA_DEVICE: 32}),
    "p5e.48xlarge": (192, 8, 2048, {EFA_DEVICE: 32}),
    "p5en.48xlarge": (192, 8, 2048, {EFA_DEVICE: 16}),
    "t3.medium": (2, 0, 4, {}),
    "trn1.2xlarge": (8, 0, 32, {NEURON_DEVICE: 1}),
    "trn1.32xlarge": (128, 0, 512, {NEURON_DEVICE: 16, EFA_DEVICE: 8}),
}


def instance_type_from_resource(resource: Resource) -> str:
    """Return the instance type that a resource requests.

    Raises:
        SpecError: it requests none.

    >>> instance_type_from_resource(NAMED_RESOURCES["aws_p5.48xlarge"]())
    'p5.48xlarge'
    """
    instance_type = resource.capabilities.get(K8S_ITYPE)
    if instance_type is None:
        raise SpecError(
            f"resource `{resource}` does not name an instance type",
            hint=f"use a named resource such as `aws_p3.2xlarge`, or give the capability `{K8S_ITYPE}`",
        )
    return str(instance_type)


def instance_types(gpus: str, resource: Resource) -> list[str]:
    """Return the instance types for a resource that names a type of GPU, the smallest first.

    Args:
        gpus: what :func:`torchx.specs.gpu_types.native` returned: instance types, and families.

    >>> instance_types("g5", Resource(cpu=16, gpu=1, memMB=4096))[:2]
    ['g5.4xlarge', 'g5.8xlarge']
    """
    words = gpus.split()
    sizes = sorted((cpu, name) for name, (cpu, *_) in _INSTANCES.items() if name.partition(".")[0] in words)
    return [word for word in words if "." in word] + [
        name
        for _, name in sizes
        for cpu, gpu, gib, _ in [_INSTANCES[name]]
        if gpu >= resource.gpu and cpu >= resource.cpu and gib * GiB >= resource.memMB
    ]


def _factory(instance_type: str) -> Callable[[], Resource]:
    def make() -> Resource:
        cpu, gpu, memory_gib, devices = _INSTANCES[instance_type]
        return Resource(
            cpu=cpu,
            gpu=gpu,
            memMB=memory_gib * GiB,
            capabilities={K8S_ITYPE: instance_type},
            devices=dict(devices),
        )

    make.__name__ = make.__qualname__ = f"aws_{instance_type.replace('.', '_')}"
    make.__doc__ = f"AWS instance type ``{instance_type}``."
    return make


NAMED_RESOURCES: dict[str, Callable[[], Resource]] = {f"aws_{name}": _factory(name) for name in _INSTANCES}
"""Factories by name."""

globals().update({factory.__name__: factory for factory in NAMED_RESOURCES.values()})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[[], Resource]: ...
