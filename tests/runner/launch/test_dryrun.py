"""The Runner before anything is submitted: schedulers, dryrun, components."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runner.memory_backend import MemoryScheduler, backend, echo_app
from torchx import config
from torchx.errors import (
    BackendError,
    ConfigError,
    MissingDependencyError,
    NotSupportedError,
    SpecError,
)
from torchx.runner import Runner, get_runner
from torchx.runner.api import get_configured_trackers
from torchx.schedulers import get_scheduler_factories
from torchx.specs import (
    AppDef,
    BindMount,
    Resource,
    Role,
    UnknownSchedulerException,
    Workspace,
    macros,
)
from torchx.specs.wishes.watchdog import WATCHDOG
from torchx.workspace import WorkspaceMixin

# -- about a Runner --------------------------------------------------------------------------------


def test_a_runner_has_a_name_and_schedulers(runner):
    """The session name, and the schedulers that it was given."""
    assert runner.name() == "test"
    assert runner.scheduler_backends() == ["memory", "local_cwd"]
    assert "queue" in runner.scheduler_run_opts("memory")


def test_get_runner_has_all_schedulers():
    """The default session is `torchx`; all installed schedulers are there, the default one first."""
    with get_runner() as found:
        assert found.name() == "torchx"
        assert found.scheduler_backends()[0] == "local_cwd"
    with get_runner("mine", component_defaults={"utils.echo": {"msg": "x"}}) as found:
        assert found.name() == "mine"


def test_scheduler_params_reach_the_factory():
    """Further arguments of `get_runner` are passed to the schedulers."""
    seen = {}

    def factory(session_name, **params):
        seen.update(params, session=session_name)
        return MemoryScheduler(session_name)

    Runner("s", {"memory": factory}, scheduler_params={"cache_size": 5}).scheduler_run_opts("memory")
    assert seen == {"cache_size": 5, "session": "s"}


def test_closing_closes_the_schedulers_and_nothing_is_lost(runner):
    """`close` closes each scheduler once; the Runner can be used again."""
    first = backend(runner)
    runner.close()
    runner.close()
    assert first.closed
    assert backend(runner) is not first


@pytest.mark.parametrize("verb", ["dryrun", "run", "list", "scheduler_run_opts", "cfg_from_str"])
def test_an_unknown_scheduler(runner, verb):
    """The error suggests the nearest name, for every verb."""
    arguments = {"dryrun": (echo_app(), "memry"), "run": (echo_app(), "memry"), "cfg_from_str": ("memry", "a=1")}
    with pytest.raises(UnknownSchedulerException, match="`memry`") as e:
        getattr(runner, verb)(*arguments.get(verb, ("memry",)))
    assert "`memory`" in e.value.hint


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(ModuleNotFoundError("No module named 'boto3'"), MissingDependencyError, id="import"),
        pytest.param(ValueError("no cluster"), BackendError, id="raises"),
        pytest.param(BackendError("`broken`: no cluster"), BackendError, id="says-so"),
    ],
)
def test_a_scheduler_that_cannot_be_made_is_named(error, expected):
    """The error names the broken scheduler; other schedulers work."""

    def broken(session_name, **params):
        raise error

    runner = Runner("s", {"broken": broken, "memory": MemoryScheduler})
    with pytest.raises(expected, match="broken"):
        runner.dryrun(echo_app(), "broken")
    assert runner.dryrun(echo_app(), "memory")


# -- dryrun ----------------------------------------------------------------------------------------


def test_dryrun_tells_what_it_was_made_of(runner):
    """The request holds app, cfg, scheduler and settings, and prints as readable text."""
    info = runner.dryrun(echo_app(), "memory", {"queue": "gpu"}, parent_run_id="p")
    assert info._scheduler == "memory"
    assert info._cfg["queue"] == "gpu"
    assert info._app.name == "echo"
    assert info.submission.settings["queue"] == config.Setting("gpu", "code")
    assert info.submission.settings["priority"] == config.Setting(1, "default")
    assert str(info).startswith("echo {")
    assert info.request.cfg == info._cfg


def test_dryrun_submits_nothing_and_records_nothing(runner, jobs):
    """After a dry run there is no job and no run."""
    runner.dryrun(echo_app(), "memory")
    assert jobs == {}
    assert runner.runs() == []


def test_dryrun_validates_before_and_after_the_workspace(runner):
    """The documented order: before the build, after it, then the request."""
    runner.dryrun(echo_app(), "memory")
    assert backend(runner).calls == ["pre_build_validate", "validate", "submit_dryrun"]


def test_jobs_know_who_they_are(runner):
    """Every role gets the handle, with the macro for the id, and the parent run; earlier values are replaced."""
    app = AppDef(
        "a", [Role("x", "img", entrypoint="e", env={"TORCHX_JOB_ID": "old"}), Role("y", "img", entrypoint="e")]
    )
    info = runner.dryrun(app, "memory", parent_run_id="memory://test/parent")
    for role in info._app.roles:
        assert role.env["TORCHX_JOB_ID"] == f"memory://test/{macros.app_id}"
        assert role.env["TORCHX_PARENT_RUN_ID"] == "memory://test/parent"
    assert "TORCHX_PARENT_RUN_ID" not in runner.dryrun(app, "memory")._app.roles[0].env


def test_jobs_know_the_trackers(runner):
    """The configured trackers are in the environment, unless the role overrides them."""
    with open(".torchxconfig", "w") as file:
        file.write("[torchx:tracker]\nfsspec =\nother =\n[tracker:fsspec]\nconfig = s3://bucket/conf\n")
    assert get_configured_trackers() == {"fsspec": "s3://bucket/conf", "other": None}
    env = runner.dryrun(echo_app(), "memory")._app.roles[0].env
    assert env["TORCHX_TRACKERS"] == "fsspec,other"
    assert env["TORCHX_TRACKER_FSSPEC_CONFIG"] == "s3://bucket/conf"
    env = runner.dryrun(echo_app(env={"TORCHX_TRACKERS": "mine"}), "memory")._app.roles[0].env
    assert env["TORCHX_TRACKERS"] == "mine"


_texts = st.text(max_size=5)
_words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
_names = st.from_regex("[A-Za-z_][A-Za-z0-9_]{0,4}", fullmatch=True)
_roles = st.builds(
    Role,
    name=st.just("r"),
    image=_words,
    entrypoint=st.just("e"),
    args=st.lists(_words, max_size=3),
    env=st.dictionaries(_names, _words, max_size=3),
    num_replicas=st.integers(1, 3),
    resource=st.builds(Resource, st.integers(1, 4), st.integers(0, 2), st.integers(1, 99)),
    port_map=st.dictionaries(_texts, st.integers(1, 9), max_size=2),
    metadata=st.dictionaries(_texts, st.lists(st.dictionaries(_texts, _texts, max_size=2), max_size=2), max_size=2),
    mounts=st.lists(st.builds(BindMount, _texts, _texts), max_size=2),
    workspace=st.none() | st.builds(Workspace, st.dictionaries(_texts, st.just(""), max_size=2)),
)


class Meddler(WorkspaceMixin, MemoryScheduler):
    """A scheduler that modifies everything it is given."""

    def caching_build_workspace_and_update_role(self, role, cfg, build_cache):
        role.image = "patched"
        role.workspace.projects["/more"] = "more"

    def _submit_dryrun(self, app, cfg):
        app.metadata["x"] = "y"
        for role in app.roles:
            role.args.append("x")
            role.env["x"] = "y"
            role.port_map["x"] = 1
            role.metadata["x"] = "y"
            role.resource.cpu = 99
            role.resource.capabilities["x"] = "y"
            role.mounts.append("x")
            for lists in role.metadata.values():
                if isinstance(lists, list):
                    lists.append("x")
        return super()._submit_dryrun(app, cfg)


@given(role=_roles, workspace=st.none() | st.just("/src"))
@settings(max_examples=100, deadline=None)
def test_the_callers_app_is_never_changed(role, workspace):
    """Whatever a scheduler does to its AppDef, the caller's AppDef is unchanged, including nested lists."""
    app = AppDef("a", [role], metadata={"a": "b"})
    before = copy.deepcopy(app)
    runner = Runner("s", {"meddler": Meddler})
    info = runner.dryrun(app, "meddler", workspace=workspace, parent_run_id="p")
    assert app == before
    assert info._app != before
    assert runner.dryrun(app, "meddler", workspace=workspace, parent_run_id="p")._app == info._app


def test_a_role_of_a_subclass_stays_one(runner):
    """The copy has the same class, so that the role's own `pre_proc` hook is called."""

    class MyRole(Role):
        def pre_proc(self, scheduler, dryrun_info):
            dryrun_info.request.cfg["seen"] = self.name
            return dryrun_info

    app = AppDef("a", [MyRole("mine", "img", entrypoint="e")])
    assert runner.dryrun(app, "memory").request.cfg["seen"] == "mine"


def test_overrides_are_resolved_on_the_copy(runner):
    """Late values are resolved before the scheduler gets the role."""
    app = echo_app(overrides={"image": lambda: "late:1"})
    assert runner.dryrun(app, "memory")._app.roles[0].image == "late:1"
    app.roles[0].overrides.clear()
    assert app.roles[0].image == "/tmp"


@pytest.mark.parametrize("given_workspace", ["/src", Workspace({"/src": ""})], ids=["text", "Workspace"])
def test_a_workspace_is_for_every_role_without_one(given_workspace):
    """A role's own workspace overrides the given one."""
    built = []

    class Builder(WorkspaceMixin, MemoryScheduler):
        def caching_build_workspace_and_update_role(self, role, cfg, build_cache):
            built.append((role.name, str(role.workspace), cfg["queue"]))

    roles = [
        Role("a", "img", entrypoint="e"),
        Role("b", "img", entrypoint="e", workspace=Workspace({"/mine": ""})),
        Role("c", "img", entrypoint="e"),
    ]
    Runner("s", {"builder": Builder}).dryrun(AppDef("a", roles), "builder", {"queue": "q"}, workspace=given_workspace)
    assert built == [("a", "/src", "q"), ("b", "/mine", "q"), ("c", "/src", "q")]
    assert roles[0].workspace is None


LOOP: dict[str, Any] = {}
LOOP["itself"] = LOOP


@pytest.mark.parametrize(
    ("app", "problem"),
    [
        pytest.param(AppDef("a"), "has no roles", id="no-roles"),
        pytest.param(AppDef("", [Role("r", "i", entrypoint="e")]), "the app has no name", id="no-name"),
        pytest.param(AppDef("a", [Role("r", "i")]), "role `r` has no entrypoint", id="no-entrypoint"),
        pytest.param(AppDef("a", [Role("r", "i", entrypoint="")]), "role `r` has no entrypoint", id="empty-entrypoint"),
        pytest.param(AppDef("a", [Role("", "i", entrypoint="e")]), "a role has no name", id="no-role-name"),
        pytest.param(echo_app(num_replicas=0), "`num_replicas=0`", id="no-replicas"),
        pytest.param(echo_app(min_replicas=2), "`min_replicas=2`", id="min-above"),
        pytest.param(echo_app(min_replicas=0), "`min_replicas=0`", id="min-zero"),
        pytest.param(echo_app(args=["a", 1]), "an argument, `1`, is of type int", id="arg-type"),
        pytest.param(echo_app(env={"A": 1}), "variable `A`, `1`, is of type int", id="env-type"),
        pytest.param(AppDef("a", echo_app().roles * 2), "two roles `echo`", id="same-name"),
        pytest.param("utils.echo", "is not an AppDef", id="no-app"),
        pytest.param(AppDef("a", ["x"]), "role `'x'`, which is not a Role", id="no-role"),  # type: ignore[list-item]
        pytest.param(echo_app(num_replicas=1.5), "`num_replicas=1.5`", id="half-a-replica"),
        pytest.param(echo_app(num_replicas=True), "`num_replicas=True`", id="bool-replicas"),
        pytest.param(echo_app(num_replicas=1_000_001), "`num_replicas=1000001`", id="too-many"),
        pytest.param(echo_app(num_replicas=10**30), "`num_replicas=10**20 or more`", id="far-too-many"),
        pytest.param(echo_app(max_retries=-1), "`max_retries=-1`", id="retries-below"),
        pytest.param(echo_app(args="-c foo"), "one string", id="args-as-text"),
        pytest.param(echo_app(args=["a\0b"]), "a NUL character", id="arg-nul"),
        pytest.param(echo_app(env={"A": "\ud800"}), "half of a surrogate pair", id="env-surrogate"),
        pytest.param(echo_app(env={1: "x"}), "`1` is not a valid name", id="env-name-type"),
        pytest.param(echo_app(env={"-Stouch x ": "x"}), "`'-Stouch x '` is not a valid name", id="env-name-option"),
        pytest.param(echo_app(env={"2B": "x"}), "`'2B'` is not a valid name", id="env-name-digit"),
        pytest.param(echo_app(metadata=LOOP), "levels deep", id="metadata-loop"),
        pytest.param(AppDef("a", echo_app().roles, metadata=LOOP), "levels deep", id="app-metadata-loop"),
        pytest.param(AppDef("\ud800", echo_app().roles), "which is not text", id="name-surrogate"),
        pytest.param(echo_app(image="\ud800"), "half of a surrogate pair", id="image-surrogate"),
        pytest.param(echo_app(resource=Resource("a", 0, 1)), "`'a'` as `cpu`", id="cpu-type"),  # type: ignore[arg-type]
        pytest.param(echo_app(resource=Resource(1, None, 1)), "`None` as `gpu`", id="gpu-type"),
        pytest.param(echo_app(resource=Resource(1, float("nan"), 1)), "`nan` as `gpu`", id="gpu-nan"),  # type: ignore[arg-type]
        pytest.param(echo_app(resource="big"), "as `cpu` of its resource", id="resource-type"),
        pytest.param(echo_app(mounts=[1]), "a mount `1`", id="mount-type"),
    ],
)
def test_an_app_that_cannot_run_is_refused(runner, app, problem):
    """An invalid app is rejected before anything is built, with the problem and a hint."""
    with pytest.raises(SpecError) as e:
        runner.dryrun(app, "memory")
    assert problem in e.value.message
    assert e.value.hint
    assert backend(runner).calls == []


def test_a_wrong_run_option_is_refused(runner):
    """A value of the wrong type is an error that names the option."""
    with pytest.raises(ConfigError, match="`priority`"):
        runner.dryrun(echo_app(), "memory", {"priority": "high"})


def test_a_profile_that_does_not_exist_is_refused(runner, monkeypatch):
    """A job must not be launched without the values of its profile."""
    monkeypatch.setenv("TORCHX_PROFILE", "prod")
    with pytest.raises(ConfigError, match="`prod`"):
        runner.dryrun(echo_app(), "memory")


def test_cfg_from_str_is_the_command_lines(runner):
    """Options are cast, and have the source `-cfg`; a typo is an error with the nearest name."""
    cfg = runner.cfg_from_str("memory", "queue=gpu,tags=a;b", "priority=3")
    assert cfg == {"queue": "gpu", "tags": ["a", "b"], "priority": 3}
    assert runner.dryrun(echo_app(), "memory", cfg).submission.settings["queue"].source == "-cfg"
    assert runner.cfg_from_str("memory") == {}
    with pytest.raises(ConfigError, match="`queu`") as e:
        runner.cfg_from_str("memory", "queu=gpu")
    assert "`queue`" in e.value.hint


# -- components ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args", [["--msg", "hi", "--num_replicas", "2"], {"msg": "hi", "num_replicas": 2}], ids=["words", "dict"]
)
def test_a_component_by_its_name(runner, jobs, args):
    """A component takes a command line, or arguments by name."""
    info = runner.dryrun_component("utils.echo", args, "memory", {"queue": "gpu"})
    assert info._app.roles[0].args == ["hi"]
    assert info._app.roles[0].num_replicas == 2
    assert info._cfg["queue"] == "gpu"
    handle = runner.run_component("utils.echo", args, "memory", parent_run_id="p")
    assert handle.startswith("memory://test/")
    assert len(jobs) == 1


def test_defaults_of_a_component_come_from_the_config(runner, caplog):
    """From `[component:NAME]`; an unknown argument is warned about with file, line and nearest name."""
    with open(".torchxconfig", "w") as file:
        file.write("[component:utils.echo]\nmsg = from config\nnum_replica = 3\n")
    info = runner.dryrun_component("utils.echo", [], "memory")
    assert info._app.roles[0].args == ["from config"]
    assert runner.dryrun_component("utils.echo", ["--msg", "mine"], "memory")._app.roles[0].args == ["mine"]
    [text] = [r.getMessage() for r in caplog.records]
    assert text.startswith(".torchxconfig:3: ")
    assert "`num_replica`, did you mean `num_replicas`?" in text


def test_defaults_that_a_runner_was_given_go_before_the_config(jobs, monkeypatch, tmp_path):
    """`component_defaults` replaces the defaults of the config files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".torchxconfig").write_text("[component:utils.echo]\nmsg = from config\n")
    runner = Runner("s", {"memory": MemoryScheduler}, component_defaults={"utils.echo": {"msg": "given"}})
    assert runner.dryrun_component("utils.echo", [], "memory")._app.roles[0].args == ["given"]


def test_named_resources_of_the_config(runner, tmp_path):
    """`-h` accepts the names in `[named_resources]`."""
    (tmp_path / ".torchxconfig").write_text("[named_resources]\nmy.gpu = cpu=4,gpu=2,memMB=100\n")
    info = runner.dryrun_component("utils.sh", ["-h", "my.gpu", "ls"], "memory")
    assert info._app.roles[0].resource == Resource(4, 2, 100)


def test_a_program_that_imports_the_runner_knows_the_configured_resources(tmp_path, monkeypatch):
    """`resource(h=...)` accepts them after `import torchx.runner`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".torchxconfig").write_text("[named_resources]\nmy_res = cpu=4,gpu=2,memMB=100\n")
    program = "import torchx.specs as specs, torchx.runner; print(specs.resource(h='my_res'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("Resource(cpu=4, gpu=2, memMB=100"), done.stderr


@pytest.mark.parametrize(("name", "args"), [("utils.ecko", []), ("utils.echo", ["--msgs", "x"])])
def test_a_component_or_argument_that_does_not_exist(runner, name, args):
    """Both are torchx errors with a hint."""
    with pytest.raises(SpecError) as e:
        runner.run_component(name, args, "memory")
    assert e.value.hint
    assert runner.runs() == []


def test_a_scheduler_that_cannot_watch_refuses_to(runner):
    """A job with a watchdog is rejected; a job without one is not."""
    app = echo_app()
    assert runner.dryrun(app, "memory")
    app.metadata[WATCHDOG] = "10m"
    with pytest.raises(NotSupportedError, match="`memory` cannot watch whether a job is silent"):
        runner.dryrun(app, "memory")


@pytest.mark.parametrize("scheduler", sorted(get_scheduler_factories()))
@pytest.mark.parametrize("of_app", [False, True])
def test_no_backend_ignores_what_its_metadata_says(scheduler: str, of_app: bool) -> None:
    """`metadata` under the name of the scheduler is applied, or an error that names it: never dropped."""
    wrong: Any = {scheduler: {"gres": "gpu:2"}}
    role = Role("w", image="img", entrypoint="echo", resource=Resource(1, 0, 64), metadata={} if of_app else wrong)
    with get_runner() as runner, pytest.raises(SpecError, match=f"metadata `{scheduler}`"):
        needed = {"queue": "q", "role": "arn:aws:iam::123456789012:role/r", "instance_type": "ml.m5.large"}
        opts = runner.scheduler_run_opts(scheduler)
        cfg = {name: value for name, value in needed.items() if opts.get(name) and opts.get(name).is_required}
        runner.dryrun(AppDef("a", [role], metadata=wrong if of_app else {}), scheduler, cfg)


@pytest.mark.parametrize("scheduler", ["kubernetes", "kubernetes_mcad"])
@pytest.mark.parametrize("of_app", [False, True])
def test_overlays_reach_the_pods(scheduler: str, of_app: bool) -> None:
    """Also those with tuples, which are on record in a form that a rerun understands."""
    laid: Any = {"kubernetes": {"spec": {"serviceAccountName": "trainer", "volumes": ({"name": "mine"},)}}}
    role = Role("w", image="img", entrypoint="echo", resource=Resource(1, 0, 64), metadata={} if of_app else laid)
    with get_runner() as runner:
        info = runner.dryrun(AppDef("a", [role], metadata=laid if of_app else {}), scheduler)
    assert "serviceAccountName: trainer" in str(info) and "dshm" not in str(info).partition("volumes:")[2]
    assert info._app is not None and "(" not in str(info._app.roles[0].metadata)
