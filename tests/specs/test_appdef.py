"""AppDef, Role, Resource and related classes."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import pathlib
import pickle
import typing
from typing import Any

import pytest

import torchx.specs as specs
from torchx.errors import SpecError, TorchXError
from torchx.specs import (
    NULL_RESOURCE,
    TORCHX_HOME,
    AppDef,
    AppDryRunInfo,
    BindMount,
    Resource,
    RetryPolicy,
    Role,
    Submission,
    VolumeMount,
    Workspace,
)
from torchx.specs import api as specs_api
from torchx.specs.cases import cases


def full_app() -> AppDef:
    return AppDef(
        "train",
        [
            Role(
                "trainer",
                "img:1",
                min_replicas=1,
                entrypoint="python",
                args=["-m", "x"],
                env={"A": "b"},
                num_replicas=2,
                max_retries=3,
                retry_policy=RetryPolicy.ROLE,
                resource=Resource(1, 2, 3, {"c": [1]}, {"efa": 1}, {"t": "u"}),
                port_map={"tb": 6006},
                metadata={"k8s": {"spec": [1, {"a": None}]}},
                mounts=[BindMount("/a", "/b"), VolumeMount("v", "/c", read_only=True)],
                workspace=Workspace({"/src": ""}),
                overrides={"image": "img:2"},
            )
        ],
        {"team": "x"},
    )


@pytest.mark.parametrize("module", [specs, specs_api], ids=["torchx.specs", "torchx.specs.api"])
def test_every_exported_name_is_there(module: Any) -> None:
    """`__all__` has no duplicates, and each name exists."""
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None, name
        assert name in dir(module)


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    """A misspelled name raises AttributeError despite the lazy names."""
    with pytest.raises(AttributeError, match="no_such_name"):
        specs.no_such_name  # type: ignore[attr-defined]  # that is the point


def test_resource_with_and_without_gpu() -> None:
    """The default is no GPU; the positional order is cpu, gpu, memMB."""
    assert Resource(cpu=1, memMB=128) == Resource(1, 0, 128) == Resource(cpu=1, gpu=0, memMB=128)
    assert Resource(cpu=4, gpu=1, memMB=8192).gpu == 1


@pytest.mark.parametrize("kwargs", [{}, {"cpu": 1}, {"memMB": 1}, {"cpu": 1, "gpu": 1}], ids=str)
def test_resource_needs_cpu_and_memory(kwargs: dict[str, int]) -> None:
    """A missing cpu or memMB raises TypeError, like any missing argument."""
    with pytest.raises(TypeError):
        Resource(**kwargs)  # type: ignore[arg-type]


def test_resource_copy_is_deep_and_adds_capabilities() -> None:
    """The copy has the capabilities of both, and shares nothing with the original."""
    original = Resource(1, 0, 2, {"a": [1]}, {"d": 1}, {"t": [1]})
    made = Resource.copy(original, b=2)
    assert made == Resource(1, 0, 2, {"a": [1], "b": 2}, {"d": 1}, {"t": [1]})
    made.capabilities["a"].append(2)
    made.devices["d"] = 5
    made.tags["x"] = 1
    assert original == Resource(1, 0, 2, {"a": [1]}, {"d": 1}, {"t": [1]})


def test_defaults_of_a_role() -> None:
    """A role with only name and image has the documented defaults, and its own null resource."""
    role = Role("r", "img")
    assert role.entrypoint == specs.MISSING == "<MISSING>"
    assert (role.num_replicas, role.max_retries, role.min_replicas) == (1, 0, None)
    assert role.retry_policy is RetryPolicy.APPLICATION
    assert role.resource == NULL_RESOURCE
    assert (NULL_RESOURCE.cpu, NULL_RESOURCE.gpu, NULL_RESOURCE.memMB) == (-1, -1, -1)
    role.resource.tags["x"] = 1
    assert NULL_RESOURCE.tags == {}


def test_order_of_fields_is_public() -> None:
    """Positional arguments of the three types keep their order."""
    assert [f.name for f in dataclasses.fields(Role)] == [
        "name", "image", "min_replicas", "entrypoint", "args", "env", "num_replicas", "max_retries", "retry_policy",
        "resource", "port_map", "metadata", "mounts", "workspace", "overrides",
            "after", "ready", "ends_job", "restarts_after",
    ]  # fmt: skip
    assert [f.name for f in dataclasses.fields(AppDef)] == ["name", "roles", "metadata"]
    assert list(inspect.signature(Resource).parameters) == ["cpu", "gpu", "memMB", "capabilities", "devices", "tags"]


def test_metadata_type_is_accepted() -> None:
    """`AppDef(metadata=Metadata(...))` has a plain dict."""
    assert AppDef("a", metadata=specs.Metadata(x="1")).metadata == {"x": "1"}


@pytest.mark.parametrize("how", [copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))], ids=["deepcopy", "pickle"])
def test_a_copy_is_equal_and_independent(how: Any) -> None:
    """Changes of the copy do not affect the original."""
    app = full_app()
    made = how(app)
    assert made == app
    role = made.roles[0]
    role.args.append("y")
    role.env["B"] = "c"
    role.metadata["k8s"]["spec"][1]["a"] = 5
    role.mounts[0].src_path = "/z"
    role.resource.capabilities["c"].append(2)
    role.workspace.projects["/other"] = "x"
    role.overrides["args"] = []
    role.port_map["x"] = 1
    made.metadata["team"] = "y"
    assert app == full_app()


def test_deepcopy_keeps_subclasses_and_shares_overrides_that_cannot_be_copied() -> None:
    """The copy has the same subclass, and a coroutine among the overrides does not prevent it."""

    class MyRole(Role):
        pass

    async def image() -> str:
        return "x"

    pending = image()
    made = copy.deepcopy(AppDef("a", [MyRole("r", "img", overrides={"image": pending})]))
    assert type(made.roles[0]) is MyRole
    assert made.roles[0].overrides["image"] is pending
    pending.close()


def test_deepcopy_of_exotic_metadata() -> None:
    """`copy.deepcopy` copies values that are not plain data."""
    role = Role("r", "img", metadata={"path": pathlib.Path("/x"), "set": {1, 2}, "tuple": ([1],)})
    made = copy.deepcopy(role)
    assert made == role
    assert made.metadata["set"] is not role.metadata["set"]
    made.metadata["tuple"][0].append(2)
    assert role.metadata["tuple"] == ([1],)


def test_pre_proc_returns_the_request() -> None:
    """The hook changes nothing unless a subclass overrides it."""
    info = AppDryRunInfo("request", str)
    assert Role("r", "img").pre_proc("slurm", info) is info


def test_dryrun_info_shows_the_request_with_its_formatter() -> None:
    """`repr` is the formatted request, and the private fields for schedulers exist."""
    info = AppDryRunInfo({"a": 1}, lambda r: f"<{r['a']}>")
    assert (repr(info), str(info), info.request) == ("<1>", "<1>", {"a": 1})
    assert (info._app, info._cfg, info._scheduler) == (None, {}, None)
    assert info._fmt({"a": 2}) == "<2>"


def test_each_dryrun_info_has_a_submission_of_its_own_that_shows_no_secrets() -> None:
    """Requests share nothing, and what is looked up for one is not in the `repr` of its submission."""
    info, other = AppDryRunInfo("request", str), AppDryRunInfo("request", str)
    info.submission.tags["a"] = "b"
    info.submission.secrets["env:K"] = info.submission.at_end = "sesame"  # type: ignore[assignment]
    info.submission.notices, info.submission.settings = {"way": "sesame"}, {"api_key": "sesame"}  # type: ignore[dict-item]
    assert other.submission == Submission() != info.submission
    assert "sesame" not in repr(info.submission)
    assert "tags={'a': 'b'}" in repr(info.submission)


def test_dryrun_info_is_generic() -> None:
    """It can be subscripted in evaluated annotations, and the result can be subclassed."""

    class Request: ...

    class Info(AppDryRunInfo[Request]):
        pass

    assert issubclass(Info, AppDryRunInfo)
    assert typing.get_args(AppDryRunInfo[Request]) == (Request,)


def test_type_hints_of_the_public_classes_can_be_evaluated() -> None:
    """`typing.get_type_hints` works on the public classes."""
    for cls in (AppDef, Role, Resource, specs.AppStatus, specs.RoleStatus, specs.ReplicaStatus, BindMount, Workspace):
        assert typing.get_type_hints(cls)
    assert typing.get_type_hints(Role)["args"] == list[str]


async def _late(value: str) -> str:
    await asyncio.sleep(0)
    return value


@pytest.mark.parametrize(
    "value", ["new", lambda: "new", lambda: _late("new")], ids=["value", "function", "async function"]
)
def test_overrides_are_resolved(value: Any) -> None:
    """A value, the result of a function, and the result of an awaitable become the value of the field."""
    role = Role("r", "img", overrides={"image": value})
    role.resolve_overrides()
    assert (role.image, role.overrides) == ("new", {})
    role.resolve_overrides()
    assert role.image == "new"


def test_overrides_are_resolved_inside_a_running_event_loop() -> None:
    """Overrides are resolved while the calling thread has a running loop, as in a notebook."""
    role = Role("r", "img", overrides={"image": _late("new")})

    async def main() -> None:
        role.resolve_overrides()

    asyncio.run(main())
    assert role.image == "new"


def test_an_override_of_no_field_is_an_error_with_a_hint() -> None:
    """The error names the typo, and the role is unchanged."""
    role = Role("r", "img", overrides={"image": "x", "imgae": "y"})
    with pytest.raises(SpecError, match="`imgae`") as e:
        role.resolve_overrides()
    assert e.value.hint == "did you mean `image`?"
    assert role.overrides == {"image": "x", "imgae": "y"}
    role.overrides.clear()
    assert role.image == "img"


def test_overrides_are_seen_when_the_field_is_read() -> None:
    """A resolved value is cached; without the override, the field has its own value again."""
    made: list[str] = []
    role = Role("r", "img", overrides={"image": lambda: made.append("x") or "new"})
    assert (role.image, role.image, made, role.name) == ("new", "new", ["x"], "r")
    role.overrides["num_replicas"] = lambda: _late("3")
    role.overrides["entrypoint"] = "late"
    assert [role.num_replicas, role.num_replicas, role.entrypoint] == ["3", "3", "late"]
    assert copy.deepcopy(role).image == "new"
    assert dataclasses.replace(role, name="other").image == "new"
    assert "image='new'" in repr(role)
    del role.overrides["image"]
    assert role.image == "img"


def test_torchx_home_creates_the_directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is below $TORCHX_HOME and exists afterwards."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
    made = TORCHX_HOME("a", "b")
    assert made == tmp_path / "home" / "a" / "b"
    assert made.is_dir()
    assert TORCHX_HOME("a", "b") == made


@pytest.mark.parametrize(
    ("camel", "snake"),
    [
        ("name", "name"),
        ("nodeSelector", "node_selector"),
        ("readOnlyMany", "read_only_many"),
        ("v1Pod", "v1_pod"),
        ("", ""),
    ],
)
def test_cases_there_and_back(camel: str, snake: str) -> None:
    """Names without runs of capitals survive the round trip."""
    assert cases.camel_to_snake(camel) == snake
    assert cases.snake_to_camel(snake) == camel


@pytest.mark.parametrize(
    ("camel", "snake"), [("HTTPServer", "http_server"), ("podIP", "pod_ip"), ("MyJob", "my_job"), ("a_b", "a_b")]
)
def test_camel_to_snake_of_capitals(camel: str, snake: str) -> None:
    """Consecutive capitals are one word."""
    assert cases.camel_to_snake(camel) == snake


def test_retry_policy_is_its_name() -> None:
    """Members equal their strings, as in configuration files."""
    assert RetryPolicy("ROLE") is RetryPolicy.ROLE == "ROLE"
    assert {p.name for p in RetryPolicy} == {"REPLICA", "APPLICATION", "ROLE"}


def test_exceptions_are_in_the_tree_and_are_the_builtins_that_callers_catch() -> None:
    """Each public exception is a TorchXError and the matching builtin exception."""
    from torchx.specs import handles

    assert isinstance(specs.MalformedAppHandleException("x"), (TorchXError, ValueError))
    assert isinstance(specs.UnknownAppException("a://b/c"), LookupError)
    error = handles.UnknownSchedulerException("slrum", ["slurm", "lsf"])
    assert isinstance(error, LookupError)
    assert (str(error), error.hint) == ("scheduler `slrum` is not known", "did you mean `slurm`?")
    assert "one of: lsf" in handles.UnknownSchedulerException("zzz", ["lsf"]).hint
    assert specs.InvalidRunConfigException("bad", "key", {"key": 1}).cfg_key == "key"


# What programs import from the two modules; see also `__all__`.
_PUBLIC = [
    "ALL",
    "AppDef",
    "AppDryRunInfo",
    "AppHandle",
    "AppState",
    "AppStatus",
    "AppStatusError",
    "BindMount",
    "CfgVal",
    "DeviceMount",
    "InvalidRunConfigException",
    "MISSING",
    "MalformedAppHandleException",
    "MountType",
    "NONE",
    "ParsedAppHandle",
    "RESET",
    "ReplicaState",
    "ReplicaStatus",
    "Resource",
    "RetryPolicy",
    "Role",
    "RoleStatus",
    "TORCHX_HOME",
    "UnknownAppException",
    "UnknownSchedulerException",
    "VolumeMount",
    "Workspace",
    "YELLOW_BOLD",
    "cases",
    "get_type_name",
    "is_started",
    "is_terminal",
    "macros",
    "parse_app_handle",
    "runopt",
    "runopts",
]
_PUBLIC_OF_THE_PACKAGE = [
    "AWS_NAMED_RESOURCES",
    "CUSTOM_NAMED_RESOURCES",
    "GENERIC_NAMED_RESOURCES",
    "GiB",
    "ResourceFactory",
    "get_named_resources",
    "import_attr",
    "load_group",
    "make_app_handle",
    "materialize_appdef",
    "parse_mounts",
    "resource",
]


def test_names_that_programs_import() -> None:
    """These names must not be removed; the package exports the same objects as `torchx.specs.api`."""
    for name in _PUBLIC:
        assert getattr(specs, name) is getattr(specs_api, name)
    for name in _PUBLIC_OF_THE_PACKAGE:
        assert name in vars(specs)["__all__"]
        assert hasattr(specs, name)
