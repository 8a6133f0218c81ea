"""Named resources: built in, from plugins and from configuration files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import torchx.specs as specs
from torchx.errors import SpecError, TorchXError
from torchx.plugins import register
from torchx.specs import NULL_RESOURCE, Resource, get_named_resources, resource
from torchx.specs import named_resources_aws as aws
from torchx.specs import named_resources_generic as generic
from torchx.specs.configured import provide_named_resources
from torchx.specs.named_resources import parse_resource

GROUP = "torchx.named_resources"


@pytest.fixture
def plugin() -> Iterator[Callable[[str, Any], None]]:
    """Registers plugins during the test."""
    names: list[str] = []

    def add(name: str, factory: Any) -> None:
        register.named_resource(name)(factory)
        names.append(name)

    yield add
    for name in names:
        register.forget(GROUP, name)


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The resources of the configuration files."""
    values: dict[str, str] = {}
    monkeypatch.setattr("torchx.specs.configured._provider", lambda: values)
    return values


@pytest.mark.parametrize(
    ("name", "cpu", "gpu", "mem_mb", "devices"),
    [
        ("cpu.nano", 1, 0, 512, {}),
        ("cpu.micro", 1, 0, 1024, {}),
        ("cpu.small", 1, 0, 2048, {}),
        ("cpu.medium", 2, 0, 4096, {}),
        ("cpu.large", 2, 0, 8192, {}),
        ("cpu.xlarge", 8, 0, 32768, {}),
        ("gpu.small", 8, 1, 32768, {}),
        ("gpu.medium", 16, 2, 65536, {}),
        ("gpu.large", 32, 4, 131072, {}),
        ("gpu.xlarge", 64, 8, 262144, {}),
        ("aws_c5.18xlarge", 72, 0, 139586, {}),
        ("aws_g4dn.metal", 96, 8, 377472, {aws.EFA_DEVICE: 1}),
        ("aws_inf2.48xlarge", 192, 0, 754944, {aws.NEURON_DEVICE: 12}),
        ("aws_p3.2xlarge", 8, 1, 59963, {}),
        ("aws_p4d.24xlarge", 96, 8, 1132416, {aws.EFA_DEVICE: 4}),
        ("aws_p5en.48xlarge", 192, 8, 2013184, {aws.EFA_DEVICE: 16}),
        ("aws_t3.medium", 2, 0, 3932, {}),
        ("aws_trn1.32xlarge", 128, 0, 503296, {aws.NEURON_DEVICE: 16, aws.EFA_DEVICE: 8}),
    ],
)
def test_values(name: str, cpu: int, gpu: int, mem_mb: int, devices: dict[str, int]) -> None:
    """Resources have the published sizes; those of AWS also name their instance type."""
    capabilities = {aws.K8S_ITYPE: name[4:]} if name.startswith("aws_") else {}
    assert get_named_resources(name) == Resource(cpu, gpu, mem_mb, capabilities, devices)
    assert resource(h=name) == get_named_resources(name)


def test_every_aws_instance_has_a_factory_function() -> None:
    """The factory of `aws_p3.2xlarge` is `aws_p3_2xlarge`; the resource names its instance type."""
    assert len(aws.NAMED_RESOURCES) == 41
    for name, factory in aws.NAMED_RESOURCES.items():
        assert getattr(aws, name.replace(".", "_")) is factory
        assert aws.instance_type_from_resource(factory()) == name.removeprefix("aws_")
    assert (aws.GiB, aws.MEM_TAX, generic.GiB, specs.GiB) == (983, 0.96, 1024, 1024)


def test_a_resource_without_instance_type_is_refused() -> None:
    """The error names an alternative."""
    with pytest.raises(SpecError, match="not name an instance type") as e:
        aws.instance_type_from_resource(Resource(1, 0, 1))
    assert "aws_p3.2xlarge" in e.value.hint


def test_each_call_makes_a_new_resource() -> None:
    """Changing one resource does not change the next."""
    get_named_resources("aws_p4d.24xlarge").devices.clear()
    assert get_named_resources("aws_p4d.24xlarge").devices == {aws.EFA_DEVICE: 4}


@pytest.mark.parametrize("name", ["NULL", "MISSING"])
def test_names_of_nothing(name: str) -> None:
    """`NULL` and `MISSING` return the null resource."""
    assert get_named_resources(name) == NULL_RESOURCE


def test_resource_by_values() -> None:
    """The defaults are 2 cores, no GPU and 1024 MiB; a name overrides the values; None means the default."""
    assert resource() == Resource(2, 0, 1024)
    assert resource(cpu=2, gpu=1, memMB=5) == Resource(2, 1, 5)
    assert resource(cpu=0, memMB=0) == Resource(0, 0, 0)
    assert resource(cpu=2, gpu=1, memMB=5, h="cpu.nano") == Resource(1, 0, 512)
    assert resource(cpu=2, h=None) == resource(cpu=2, h="") == Resource(2, 0, 1024)


@pytest.mark.parametrize(("name", "hint"), [("gpu.smal", "did you mean `gpu.small`?"), ("zzzzz", "there are: aws_")])
def test_unknown_names(name: str, hint: str) -> None:
    """An unknown name raises an error that is a SpecError and a KeyError, with the nearest name or all names."""
    with pytest.raises(KeyError) as e:
        resource(h=name)
    assert isinstance(e.value, SpecError)
    assert str(e.value) == f"named resource `{name}` is not known"
    assert hint in e.value.hint


def test_plugins(plugin: Callable[[str, Any], None]) -> None:
    """A plugin adds a name or replaces a built-in one."""
    plugin("lab_gpu", lambda: Resource(3, 1, 5))
    plugin("gpu.small", lambda: Resource(9, 9, 9))
    assert get_named_resources("lab_gpu") == Resource(3, 1, 5)
    assert get_named_resources("gpu.small") == Resource(9, 9, 9)
    assert {"lab_gpu", "gpu.small"} <= set(specs.CUSTOM_NAMED_RESOURCES)
    assert specs.CUSTOM_NAMED_RESOURCES["lab_gpu"]() == Resource(3, 1, 5)
    assert "gpu.large" not in specs.CUSTOM_NAMED_RESOURCES
    assert "lab_gpu" in repr(specs.CUSTOM_NAMED_RESOURCES)


@pytest.mark.parametrize("factory", [lambda: 1 / 0, lambda: "no resource"], ids=["raises", "wrong type"])
def test_a_broken_plugin_breaks_only_its_own_name(plugin: Callable[[str, Any], None], factory: Any) -> None:
    """The error names the plugin; other names still work."""
    plugin("broken", factory)
    with pytest.raises(TorchXError, match="named resource `broken`"):
        get_named_resources("broken")
    assert get_named_resources("gpu.small").gpu == 1
    with pytest.raises(KeyError):
        get_named_resources("other")


def test_configuration_wins(plugin: Callable[[str, Any], None], configured: dict[str, str]) -> None:
    """A configured resource takes precedence over plugins and built-ins, and is in the mapping."""
    plugin("both", lambda: Resource(1, 1, 1))
    configured.update({"both": "cpu=2,memMB=3", "gpu.small": "cpu=5,gpu=1,memMB=6", "mine": '{"cpu": 7, "memMB": 8}'})
    assert get_named_resources("both") == Resource(2, 0, 3)
    assert get_named_resources("gpu.small") == Resource(5, 1, 6)
    assert resource(h="mine") == specs.CUSTOM_NAMED_RESOURCES["mine"]() == Resource(7, 0, 8)
    assert len(specs.CUSTOM_NAMED_RESOURCES) == len(list(specs.CUSTOM_NAMED_RESOURCES)) >= 3


def test_provide_named_resources(configured: dict[str, str]) -> None:
    """The Runner provides the configured resources, which are read at each lookup."""
    now = {"a": "cpu=1,memMB=2"}
    provide_named_resources(lambda: now)
    assert get_named_resources("a") == Resource(1, 0, 2)
    now["a"] = "cpu=2,memMB=2"
    assert get_named_resources("a") == Resource(2, 0, 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu=4,gpu=1,memMB=8192", Resource(4, 1, 8192)),
        ("cpu=4, memMB=8192", Resource(4, 0, 8192)),
        ('{"cpu": 4, "gpu": 1, "memMB": 8192}', Resource(4, 1, 8192)),
        ("cpu=4,memMB=1,devices=vpc.amazonaws.com/efa:2", Resource(4, 0, 1, {}, {"vpc.amazonaws.com/efa": 2})),
        (
            '{"cpu": 1, "memMB": 1, "capabilities": {"a": [1]}, "devices": {"d": 1}}',
            Resource(1, 0, 1, {"a": [1]}, {"d": 1}),
        ),
    ],
)
def test_parse_resource(text: str, expected: Resource) -> None:
    """A resource can be given as literal or as JSON."""
    assert parse_resource(text) == expected


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "`cpu` is missing", "cpu=4"),
        ("cpu=4", "`memMB` is missing", "cpu=4"),
        ("cpu=x,memMB=1", "`x` is not a whole number", "cpu=4"),
        ("cpu=1,memmb=1", "`memmb` is not known", "did you mean `memMB`?"),
        ('{"cpu": 1.5, "memMB": 1}', "`cpu=1.5` is not a whole number", "cpu=4"),
        ('{"cpu": true, "memMB": 1}', "`cpu=True` is not a whole number", "cpu=4"),
        ('{"cpu": 1, "memMB": 1, "devices": [1]}', "is not an object", "cpu=4"),
        ('{"cpu": 1, "memMB": 1, "devices": {"a": "b"}}', "invalid literal", "cpu=4"),
        ('{"cpu": 1', "Expecting", "cpu=4"),
    ],
)
def test_parse_resource_refuses(text: str, message: str, hint: str) -> None:
    """The error is one line with name, text and reason."""
    with pytest.raises(SpecError) as e:
        parse_resource(text, name="mine")
    assert str(e.value).startswith(f"named resource `mine` `{text}`: ")
    assert message in str(e.value)
    assert hint in e.value.hint


def test_the_module_is_a_mapping() -> None:
    """The module maps names to new resources, and keeps its attributes."""
    named = specs.named_resources
    assert isinstance(named, Mapping)
    assert {named} == {sys.modules["torchx.specs.named_resources"]}
    assert named["gpu.small"] == named.get_named_resources("gpu.small") == Resource(8, 1, 32768)
    assert named["gpu.small"] is not named["gpu.small"]
    assert named["NULL"] == NULL_RESOURCE
    assert {"gpu.small", "aws_p3.2xlarge", "NULL", "MISSING"} <= set(named)
    assert "gpu.small" in named
    assert "gpu.tiny" not in named
    assert len(named) == len(list(named)) == len(dict(named))
    assert named.get("gpu.tiny") is None
    with pytest.raises(KeyError):
        named["gpu.tiny"]
    assert dict(named)["cpu.small"].cpu == 1


def test_the_mapping_needs_no_import_of_its_own() -> None:
    """`torchx.specs.named_resources` works after `import torchx.specs`."""
    code = "import torchx.specs as specs; assert specs.named_resources['cpu.small'].memMB == 2048"
    subprocess.run([sys.executable, "-c", code], check=True)
