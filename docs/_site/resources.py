"""The named resources that come with torchx."""

from __future__ import annotations

from _site.markdown import wide_table


def page() -> str:
    from torchx.specs import AWS_NAMED_RESOURCES, GENERIC_NAMED_RESOURCES

    parts = []
    for title, resources in (("For any scheduler", GENERIC_NAMED_RESOURCES), ("AWS", AWS_NAMED_RESOURCES)):
        rows = [_row(name, make()) for name, make in resources.items()]
        parts.append(f"## {title}\n\n{wide_table(['name', 'CPUs', 'GPUs', 'memory, MiB', 'devices'], rows)}")
    return "\n".join(parts)


def _row(name: str, resource) -> list[str]:
    devices = ", ".join(f"`{device}` {count}" for device, count in resource.devices.items())
    return [f"`{name}`", str(resource.cpu), str(resource.gpu), str(resource.memMB), devices or "–"]
