"""The description of a job: :class:`AppDef`, its roles, and their resources.

``torchx.specs`` exports the same names.
"""

from __future__ import annotations

from enum import Enum

from torchx.specs.cases import cases
from torchx.specs.copies import copy_fields
from torchx.specs.handles import (
    AppHandle,
    MalformedAppHandleException,
    ParsedAppHandle,
    UnknownAppException,
    UnknownSchedulerException,
    make_app_handle,
    parse_app_handle,
)
from torchx.specs.macros import macros
from torchx.specs.mounts import BindMount, DeviceMount, MountType, VolumeMount
from torchx.specs.options.runopts import CfgVal, InvalidRunConfigException, get_type_name, runopt, runopts
from torchx.specs.ready import Ready
from torchx.specs.states import NONE, RESET, YELLOW_BOLD, AppState, ReplicaState, is_started, is_terminal
from torchx.specs.status import AppStatus, AppStatusError, ReplicaStatus, RoleStatus
from torchx.specs.workspaces import Workspace
from torchx.util.any import Any, Generic, T
from torchx.util.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Mapping

    from torchx.config import Setting

__all__ = [
    "ALL",
    "GPU_TYPE",
    "MISSING",
    "NONE",
    "NULL_RESOURCE",
    "RESET",
    "TORCHX_HOME",
    "YELLOW_BOLD",
    "AppDef",
    "AppDryRunInfo",
    "AppHandle",
    "AppState",
    "AppStatus",
    "AppStatusError",
    "BindMount",
    "CfgVal",
    "DeviceMount",
    "Gpus",
    "InvalidRunConfigException",
    "MalformedAppHandleException",
    "Metadata",
    "MountType",
    "ParsedAppHandle",
    "Ready",
    "ReplicaState",
    "ReplicaStatus",
    "Resource",
    "RetryPolicy",
    "Role",
    "RoleStatus",
    "Submission",
    "UnknownAppException",
    "UnknownSchedulerException",
    "VolumeMount",
    "Workspace",
    "cases",
    "get_type_name",
    "is_started",
    "is_terminal",
    "macros",
    "make_app_handle",
    "parse_app_handle",
    "runopt",
    "runopts",
]

ALL = "all"
GPU_TYPE = "gpu_type"
"""The capability that holds the type of a resource's GPUs; see :mod:`torchx.specs.gpu_types`."""
MISSING = "<MISSING>"
Metadata = dict
"""The type of ``AppDef.metadata``: a plain dict of strings."""


class RetryPolicy(str, Enum):
    """Which replicas are restarted when a replica fails, up to ``Role.max_retries`` times."""

    REPLICA = "REPLICA"
    """The failed replica only."""

    APPLICATION = "APPLICATION"
    """Every replica of every role."""

    ROLE = "ROLE"
    """Every replica of the role."""


class Gpus(int):
    """A number of GPUs of a type, for ``Resource.gpu``: the value of a component's argument ``gpu`` for ``h100:8``.

    >>> Resource(cpu=1, gpu=Gpus(8, "h100"), memMB=128)
    Resource(cpu=1, gpu=8, memMB=128, capabilities={'gpu_type': 'h100'})
    """

    kind: str

    def __new__(cls, count: int, kind: str) -> Gpus:
        gpus = super().__new__(cls, count)
        gpus.kind = kind
        return gpus


@dataclass
class Resource:
    """The resources of one replica.

    Args:
        cpu: number of logical cores; ``-1`` for unspecified.
        gpu: number of GPUs; of a certain type: :class:`Gpus`.
        memMB: main memory in MiB.
        capabilities: scheduler-specific requirements on the host.
        devices: count of other devices by name: ``{"vpc.amazonaws.com/efa": 4}``.
        tags: arbitrary metadata.

    >>> Resource(cpu=1, memMB=128) == Resource(1, 0, 128)
    True
    """

    _brief_repr = True

    cpu: int
    gpu: int
    memMB: int  # noqa: N815 - a public name
    capabilities: dict[str, Any] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    tags: dict[str, object] = field(default_factory=dict)

    # Hand-written because `gpu` is optional while `memMB` after it is required.
    def __init__(  # noqa: PLR0917 - the order of the fields is public
        self,
        cpu: int,
        gpu: int = 0,
        memMB: int | None = None,
        capabilities: dict[str, Any] | None = None,
        devices: dict[str, int] | None = None,
        tags: dict[str, object] | None = None,
    ) -> None:
        if memMB is None:
            raise TypeError("Resource() needs `memMB`, the memory in MiB: Resource(cpu=1, memMB=1024)")
        self.cpu = cpu
        self.gpu = gpu
        self.memMB = memMB
        self.capabilities = {} if capabilities is None else capabilities
        if gpu.__class__ is Gpus:
            self.gpu, self.capabilities = int(gpu), {GPU_TYPE: gpu.kind, **self.capabilities}
        self.devices = {} if devices is None else devices
        self.tags = {} if tags is None else tags

    @property
    def is_unset(self) -> bool:
        """Whether no amounts are specified, so that the defaults of the backend or site apply."""
        return (self.cpu, self.gpu, self.memMB) == (-1, -1, -1)

    @staticmethod
    def copy(original: Resource, **capabilities: Any) -> Resource:
        """Return a deep copy with additional capabilities.

        >>> Resource.copy(Resource(1, 0, 128), spot=True).capabilities
        {'spot': True}
        """
        new = copy_fields(original)
        new.capabilities.update(capabilities)
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> Resource:
        return copy_fields(self)


NULL_RESOURCE = Resource(cpu=-1, gpu=-1, memMB=-1)
"""An explicitly unspecified resource. Backends that have to reserve resources reject a role with it."""


class UnsetResource(Resource):
    """The default resource of a role: one CPU and 128 MiB, as an estimate and not as a limit.

    Schedulers whose sites define defaults use those instead (``is_unset``). It compares equal to
    :data:`NULL_RESOURCE`, because programs use that comparison to test whether a role has a resource.
    """

    def __init__(self, cpu: int = 1, gpu: int = 0, memMB: int = 128, **more: Any) -> None:
        super().__init__(cpu, gpu, memMB, **more)

    @property
    def is_unset(self) -> bool:
        return (self.cpu, self.gpu, self.memMB) == (1, 0, 128)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Resource):
            return NotImplemented
        if vars(self) == vars(other):
            return True
        return self.is_unset and {**vars(self), **_NULL} == vars(other)

    __hash__ = None  # type: ignore[assignment]  # mutable, like its base class


_NULL = {"cpu": -1, "gpu": -1, "memMB": -1}


@dataclass
class Role:
    """A set of identical replicas within an :class:`AppDef`.

    Args:
        name: name of the role, unique within the job.
        image: container image, or a directory for schedulers without containers.
        min_replicas: an elastic role continues as long as this many replicas are left; None requires all of them.
        entrypoint: the program, without arguments.
        args: its arguments. :class:`macros` are substituted in ``args``, ``env``, ``metadata`` and ``mounts``.
        env: environment variables; a value may be a :class:`~torchx.specs.Secret`.
        num_replicas: number of replicas.
        max_retries: how often ``retry_policy`` is applied before the job fails.
        retry_policy: which replicas are restarted after a failure.
        resource: resources of one replica; by default one CPU and 128 MiB, which no backend enforces.
        port_map: ports to expose, by name: ``{"tensorboard": 6006}``.
        metadata: scheduler-specific settings.
        mounts: paths, volumes and devices to mount into a replica.
        workspace: source code to add to the image.
        overrides: late-bound values of other fields: reading such a field returns the value given here; see
            :meth:`resolve_overrides`.
        after: names of roles that must be ready before this one starts.
        ready: when a replica is ready, for the roles that are after this one; None: when it has started.
        ends_job: the job ends when all replicas of this role have ended, with its state; the others are cancelled.
        restarts_after: a restart of this role also restarts those after it; else they go on, and only those that
            have not started wait again.

    >>> trainer = Role("trainer", image="pytorch:latest", entrypoint="python", args=["-m", "train"])
    >>> trainer.num_replicas, trainer.resource == Resource(cpu=1, memMB=128)
    (1, True)
    """

    _brief_repr = True

    name: str
    image: str
    min_replicas: int | None = None
    entrypoint: str = MISSING
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    num_replicas: int = 1
    max_retries: int = 0
    retry_policy: RetryPolicy = RetryPolicy.APPLICATION
    resource: Resource = field(default_factory=UnsetResource)
    port_map: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    mounts: list[BindMount | VolumeMount | DeviceMount] = field(default_factory=list)
    workspace: Workspace | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    after: list[str] = field(default_factory=list)
    ready: Ready | None = None
    ends_job: bool = False
    restarts_after: bool = False

    def pre_proc(self, scheduler: str, dryrun_info: AppDryRunInfo[Any]) -> AppDryRunInfo[Any]:  # noqa: ARG002 - a hook
        """Change the request before it is submitted: a hook for subclasses.

        Args:
            scheduler: name of the scheduler.
            dryrun_info: the request.

        Returns: the request to submit instead; by default ``dryrun_info`` unchanged.
        """
        return dryrun_info

    def has_overrides(self) -> bool:
        """Return whether there are overrides. Reading ``overrides`` itself makes each read of a field slower."""
        return bool(self.__dict__["overrides"])

    def resolve_overrides(self) -> None:
        """Move the values of ``overrides`` into the fields that they name.

        A value may be the value itself, a function without arguments that returns it, or an awaitable, for example of
        an image that is still being built. The Runner calls this on its own copy of the role before it submits.

        Raises:
            SpecError: a name is not a field of the role.

        >>> role = Role("trainer", image="base", overrides={"image": lambda: "patched:1"})
        >>> role.image
        'patched:1'
        >>> role.resolve_overrides()
        >>> role.image, role.overrides
        ('patched:1', {})
        """
        if self.__dict__["overrides"]:
            from torchx.specs.overrides import resolve_into

            resolve_into(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Role:
        # Overrides may hold coroutines, which cannot be copied and need not be.
        return copy_fields(self, shallow="overrides")


class _Overrides:
    """Descriptor of ``Role.overrides``: installs the slower :func:`_read_field` once any role uses overrides."""

    def __get__(self, role: Role, owner: type[Role] | None = None) -> dict[str, Any]:
        self._watch()
        overrides: dict[str, Any] = role.__dict__["overrides"]
        return overrides

    def __set__(self, role: Role, overrides: dict[str, Any]) -> None:
        if overrides:
            self._watch()
        role.__dict__["overrides"] = overrides

    def _watch(self) -> None:
        if "__getattribute__" not in Role.__dict__:
            setattr(Role, "__getattribute__", _read_field)  # noqa: B010  # mypy refuses an assignment


def _read_field(role: Role, name: str) -> Any:
    """``Role.__getattribute__``: reading an overridden field returns the override."""
    own = object.__getattribute__(role, "__dict__")
    overrides = own.get("overrides")
    if overrides and name in overrides and name in own:
        from torchx.specs.overrides import value_of

        overrides[name] = value_of(overrides[name])  # stored: a coroutine can be awaited only once
        return overrides[name]
    return object.__getattribute__(role, name)


setattr(Role, "overrides", _Overrides())  # noqa: B010  # as above


@dataclass
class AppDef:
    """A job: a name, and one or more roles.

    Args:
        name: name of the job; the scheduler derives a unique id from it.
        roles: the roles, each a set of replicas.
        metadata: scheduler-specific strings.

    >>> AppDef("echo", roles=[Role("echo", image="/tmp", entrypoint="/bin/echo", args=["hello"])]).roles[0].args
    ['hello']
    """

    _brief_repr = True

    name: str
    roles: list[Role] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=Metadata)

    def __deepcopy__(self, memo: dict[int, Any]) -> AppDef:
        return copy_fields(self)

    def _repr_html_(self) -> str:
        from torchx.render.html_pages import app_html

        return app_html(self)


@dataclass
class Submission:
    """What the Runner and the backend of a request know of its submission, beyond the request itself."""

    settings: Mapping[str, Setting] | None = field(default=None, repr=False)  # run options with their sources
    parent_run_id: str | None = None
    tags: dict[str, str] = field(default_factory=dict)  # for the run registry, see torchx.runs.records
    source: Any = None  # the GitState, if it is not that of the current directory
    record: dict[str, Any] | None = None  # the app as the run registry keeps it, for backends that store it, too
    app: AppDef | None = field(
        default=None, repr=False
    )  # what runs, if lines of set-up make it another than the record
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # reference -> resolved value
    notices: dict[str, Any] | None = field(default=None, repr=False)  # for backends with `SendsNotices`, with addresses
    at_end: bytes = field(default=b"", repr=False)  # script that some backends run at the end; see runner.notices
    sample_s: float | None = None  # interval of resource usage samples; 0 takes none, None uses the default
    image_digests: dict[str, str] = field(default_factory=dict)  # by role, if the backend reports them as it submits
    workspace_hashes: dict[str, str] = field(default_factory=dict)  # by role, the same; see torchx.specs.images


class AppDryRunInfo(Generic[T]):
    """The request that a scheduler would submit; ``print`` shows it.

    Args:
        request: the scheduler's own description of the job.
        fmt: renders the request as readable text.

    >>> AppDryRunInfo({"job": "echo"}, lambda request: f"submits {request['job']}")
    submits echo
    """

    def __init__(self, request: T, fmt: Callable[[T], str]) -> None:
        self.request = request
        self._fmt = fmt
        # Set by the scheduler and the Runner.
        self._app: AppDef | None = None
        self._cfg: Mapping[str, CfgVal] = {}
        self._scheduler: str | None = None
        self.submission = Submission()

    def __repr__(self) -> str:
        return self._fmt(self.request)


def TORCHX_HOME(*subdir_paths: str) -> pathlib.Path:
    """Return a path below the torchx home directory (``$TORCHX_HOME`` or ``~/.torchx``) and create the directory.

    >>> TORCHX_HOME("out").name
    'out'
    """
    import pathlib

    from torchx.settings import torchx_home

    path = pathlib.Path(torchx_home(*subdir_paths))
    path.mkdir(parents=True, exist_ok=True)
    return path
