"""The contract of workspace mixins, as documented."""

from collections.abc import Mapping
from typing import Any

import pytest

from torchx.errors import NotSupportedError
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler
from torchx.specs import AppDef, AppDryRunInfo, CfgVal, Resource, Role, Workspace, runopts
from torchx.workspace import PkgInfo, WorkspaceBuilder, WorkspaceMixin, walk_workspace
from torchx.workspace.files import LocalFiles


class StoreMixin(WorkspaceMixin[None]):
    """As in the quick reference."""

    def workspace_opts(self) -> runopts:
        opts = runopts()
        opts.add("artifact_store", type_=str, required=True, help="Remote artifact store URL")
        return opts

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        if not role.workspace:
            return
        role.env["WORKSPACE_URL"] = f"{cfg.get('artifact_store')}/{role.name}"


class OldStyleMixin(WorkspaceMixin[None]):
    """Overrides the deprecated hook."""

    def __init__(self, *args: object, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.built: list[str] = []

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, CfgVal]) -> None:
        self.built.append(workspace)
        role.image = f"built-{len(self.built)}"


class Base(Scheduler[Mapping[str, CfgVal]]):
    def __init__(self, session_name: str, **kwargs: Any) -> None:
        super().__init__("my_backend", session_name)

    def _run_opts(self) -> runopts:
        opts = runopts()
        opts.add("cluster", type_=str, default="default", help="Cluster")
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[AppDef]:
        return AppDryRunInfo(app, repr)

    def schedule(self, dryrun_info: AppDryRunInfo[AppDef]) -> str:
        return dryrun_info.request.roles[0].env.get("WORKSPACE_URL", dryrun_info.request.roles[0].image)

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        return None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        return []

    def _cancel_existing(self, app_id: str) -> None: ...


class StoreScheduler(StoreMixin, Base):
    pass


class OldStyleScheduler(OldStyleMixin, Base):
    pass


def role(name: str, workspace: dict[str, str] | None, image: str = "base") -> Role:
    return Role(
        name=name,
        image=image,
        entrypoint="x",
        resource=Resource(cpu=1, gpu=0, memMB=1),
        workspace=Workspace(workspace) if workspace is not None else None,
    )


def test_cooperative_init_and_merged_options() -> None:
    """The mixin passes on the scheduler's arguments, and run_opts has both sets of options."""
    scheduler = StoreScheduler("session")
    assert (scheduler.backend, scheduler.session_name) == ("my_backend", "session")
    assert {name for name, _ in scheduler.run_opts()} == {"artifact_store", "cluster"}


def test_submit_builds_the_workspace() -> None:
    """`submit` with a workspace builds it first; the caller's app is not changed."""
    app = AppDef("a", roles=[role("trainer", None)])
    assert StoreScheduler("s").submit(app, {"artifact_store": "s3://b"}, workspace="/src") == "s3://b/trainer"
    assert app.roles[0].env == {}


def test_each_different_workspace_is_built_once(tmp_path: Any) -> None:
    """Roles with the same workspace and image share one build; another image or workspace is built for itself."""
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    scheduler = OldStyleScheduler("s")
    roles = [
        role("r0", {a: ""}),
        role("r1", {a: ""}),
        role("r2", {a: ""}, image="other"),
        role("r3", {b: ""}),
        role("r4", None),
        role("r5", {}),
    ]
    scheduler.build_workspaces(roles, {})
    assert [r.image for r in roles] == ["built-1", "built-1", "built-2", "built-3", "base", "base"]
    assert scheduler.built == [a, a, b]


def test_projects_are_merged_for_the_old_hook(tmp_path: Any) -> None:
    """The deprecated hook gets several projects as one folder that exists during the build."""
    (tmp_path / "one.py").write_text("1")
    seen: list[bytes] = []

    class Mixin(WorkspaceMixin[None]):
        def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, CfgVal]) -> None:
            with open(f"{workspace}/lib/one.py", "rb") as f:
                seen.append(f.read())

    Mixin().build_workspaces([role("r", {str(tmp_path): "lib"})], {})
    assert seen == [b"1"]


def test_a_rule_of_one_project_is_none_of_the_others(tmp_path: Any) -> None:
    """A file that the first project ignores may come from the second, even if the hook applies ignore files itself."""
    for name, rules in (("one", "**/*.csv\n"), ("two", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_text("")
        (tmp_path / name / ".torchxignore").write_text(rules)
    seen: list[str] = []

    class Mixin(WorkspaceMixin[None]):
        def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, CfgVal]) -> None:
            for folder, _, files in walk_workspace(LocalFiles(), workspace):
                seen.extend(f"{folder}/{name}".removeprefix(f"{workspace}/") for name in files)

    Mixin().build_workspaces([role("r", {str(tmp_path / "one"): "", str(tmp_path / "two"): "two"})], {})
    assert seen == ["two/.torchxignore", "two/a.csv"]


def test_a_mixin_that_builds_nothing_says_so() -> None:
    """A bare WorkspaceMixin rejects a workspace with a one-line error."""
    with pytest.raises(NotSupportedError, match="`WorkspaceMixin` cannot build workspaces"):
        WorkspaceMixin().build_workspaces([role("r", {"/x": ""})], {})


def test_nothing_to_push_by_default() -> None:
    """A mixin without images pushes nothing."""
    mixin: WorkspaceMixin[Any] = WorkspaceMixin()
    images = mixin.dryrun_push_images(AppDef("a", roles=[role("r", None)]), {})
    assert not images
    mixin.push_images(images)
    with pytest.raises(NotSupportedError):
        mixin.push_images({"img": ("repo", "tag")})


def test_nothing_to_discard_by_default() -> None:
    """A mixin that creates nothing for a single job has nothing to remove."""
    r = role("r", {"/x": ""})
    WorkspaceMixin().discard_workspaces([r])
    assert r.image == "base"


def test_builder_and_package() -> None:
    """A builder is generic over its package and configuration, and has one abstract method."""

    class Builder(WorkspaceBuilder[str, dict[str, str]]):
        def build_workspace(self, sync: bool = True) -> PkgInfo[str]:
            return PkgInfo(img=self.cfg["img"], lazy_overrides={}, metadata="m")

    assert Builder(cfg={"img": "i"}).build_workspace() == PkgInfo(img="i", lazy_overrides={}, metadata="m")
    with pytest.raises(TypeError, match="abstract"):
        WorkspaceBuilder(cfg={})  # type: ignore[abstract]  # that it is, is what is tested
