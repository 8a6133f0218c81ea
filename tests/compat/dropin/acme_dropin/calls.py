"""Functions and classes called by every name that they are documented with, by position and by keyword."""

from __future__ import annotations

import argparse
import io
import os
import shutil
from datetime import datetime, timezone

import torchx.specs as specs
from torchx.cli.argparse_util import ArgOnceAction, torchxconfig_run
from torchx.cli.cmd_base import SubCommand
from torchx.cli.cmd_log import get_logs
from torchx.cli.cmd_run import TorchXRunArgs, torchx_run_args_from_json
from torchx.cli.main import create_parser, get_default_sub_cmds, get_sub_cmds
from torchx.components import dist, metrics, serve, utils
from torchx.components.structured_arg import StructuredJArgument, StructuredNameArgument
from torchx.runner import config as runner_config
from torchx.runner import get_runner
from torchx.runner.events.api import SourceType, TorchxEvent
from torchx.runtime.tracking import FsspecResultTracker
from torchx.schedulers import aws_batch_scheduler as batch
from torchx.schedulers import docker_scheduler, ids, lsf_scheduler
from torchx.schedulers.api import ListAppResponse, Stream, filter_regex, split_lines, split_lines_iterator
from torchx.schedulers.devices import get_device_mounts, to_devicemounts
from torchx.specs import builders, file_linter, finder, overlays
from torchx.tracker.api import AppRun, TrackerArtifact, TrackerSource, build_trackers, tracker_config_env_var_name
from torchx.tracker.backend.fsspec import FsspecTracker
from torchx.util import datetime as util_datetime
from torchx.util import io as util_io
from torchx.util import modules, session, shlex, strings, types
from torchx.workspace import WorkspaceMixin, walk_workspace
from torchx.workspace.dir_workspace import TmpDirWorkspaceMixin


def check_specs() -> None:
    resource = specs.Resource(cpu=1, gpu=0, memMB=2, capabilities={"a": 1}, devices={"d": 1}, tags={"t": 1})
    copied = specs.Resource.copy(original=resource, b=2)
    assert copied.capabilities == {"a": 1, "b": 2}
    role = specs.Role(
        name="r",
        image="i",
        min_replicas=1,
        entrypoint="e",
        args=["a"],
        env={"E": "1"},
        num_replicas=2,
        max_retries=1,
        retry_policy=specs.RetryPolicy.ROLE,
        resource=resource,
        port_map={"http": 80},
        metadata={"m": 1},
        mounts=specs.parse_mounts(["type=bind", "src=/a", "dst=/b", "readonly"]),
        workspace=specs.Workspace(projects={"/p": ""}),
        overrides={},
    )
    assert role.mounts == [specs.BindMount(src_path="/a", dst_path="/b", read_only=True)]
    app = specs.AppDef("a", [role], {"k": "v"})
    assert app == specs.AppDef(name="a", roles=[role], metadata={"k": "v"})
    info = specs.AppDryRunInfo(request=[1], fmt=repr)
    assert role.pre_proc(scheduler="local", dryrun_info=info) is info
    assert str(info) == "[1]"
    assert specs.make_app_handle(scheduler_backend="s", session_name="n", app_id="a") == "s://n/a"
    parsed = specs.parse_app_handle(app_handle="s://n/a")
    assert parsed == specs.ParsedAppHandle(scheduler_backend="s", session_name="n", app_id="a")
    assert tuple(parsed) == ("s", "n", "a")
    assert specs.resource(h="gpu.small").gpu == specs.get_named_resources(res="gpu.small").gpu == 1
    assert specs.resource(cpu=3, gpu=None, memMB=5).cpu == 3
    assert specs.Workspace.from_str(workspace="/p").is_unmapped_single_project()
    assert specs.cases.camel_to_snake("FooBar") == "foo_bar"
    assert specs.cases.snake_to_camel(name="foo_bar")
    assert str(specs.TORCHX_HOME("a", "b")).endswith("a/b")


def check_status() -> None:
    replica = specs.ReplicaStatus(id=0, state=specs.AppState.FAILED, role="r", hostname="h", structured_error_msg="x")
    roles = [specs.RoleStatus(role="r", replicas=[replica])]
    status = specs.AppStatus(state=specs.AppState.FAILED, num_restarts=1, msg="m", ui_url="u", roles=roles)
    assert status.is_terminal()
    assert "FAILED" in status.format(filter_roles=["r"])
    assert status.to_json(filter_roles=None)["state"] == "FAILED"
    assert roles[0].to_json()["role"] == "r"
    try:
        status.raise_for_status()
    except specs.api.AppStatusError as e:
        assert e.status is status
    else:
        raise AssertionError("a failed status did not raise")


def check_runopts() -> None:
    opts = specs.runopts()
    opts.add(cfg_key="k", type_=int, help="h", default=1, required=False)
    opts.add("l", list[str], "h", None)
    assert opts.resolve(cfg={"l": ["a"]}) == {"k": 1, "l": ["a"]}
    assert opts.cfg_from_str(cfg_str="k=2,l=a,b") == {"k": 2, "l": ["a", "b"]}
    assert opts.cfg_from_json_repr(json_repr='{"k": 2}') == {"k": 2}
    assert opts.get(name="k").cast_to_type(value="3") == 3
    assert specs.runopts.is_type(obj=1, tp=int)
    assert opts.get("l").is_type_list_of_str
    assert not opts.get("l").is_type_dict_of_str
    other = specs.runopts()
    other.update(other=opts)
    assert specs.get_type_name(tp=list[str])
    for error in (
        specs.InvalidRunConfigException(invalid_reason="r", cfg_key="k", cfg={}),
        specs.MalformedAppHandleException(app_handle="x"),
        specs.UnknownAppException(app_handle="x"),
        specs.UnknownSchedulerException(scheduler_backend="x"),
    ):
        assert isinstance(error, Exception)
        assert str(error)


def check_components() -> None:
    app = dist.ddp(
        "--lr", "1", script="train.py", m=None, image="i", name="e/r", h=None, cpu=1, gpu=0, memMB=1, j="1x2",
        env={"A": "1"}, metadata={"a": "b"}, max_retries=1, rdzv_port=1, rdzv_backend="c10d", rdzv_conf="timeout=1",
        mounts=["type=bind", "src=/a", "dst=/a"], debug=True, tee=1,
    )  # fmt: skip
    assert (app.roles[0].num_replicas, app.roles[0].max_retries) == (1, 1)
    assert dist.spmd("a", script="t.py", m=None, image="i", name="/", h="gpu.small", j="1x1", env=None, metadata=None)
    assert utils.echo(msg="m", image="i", num_replicas=2).roles[0].num_replicas == 2
    assert utils.touch(file="f").roles
    assert utils.sh("a", image="i", num_replicas=1, cpu=1, gpu=0, memMB=1, h=None, env={}, max_retries=0, mounts=[])
    assert utils.python("a", m="mod", c=None, script=None, image="i", name="n", cpu=1, gpu=0, memMB=1, h=None)
    assert utils.binary("a", entrypoint="e", name="n", num_replicas=1, cpu=1, gpu=0, memMB=1, h=None)
    assert utils.booth(x1=1.0, x2=2.0, trial_idx=0, tracker_base="/t", image="i")
    assert utils.copy(src="s", dst="d", image="i")
    assert serve.torchserve(
        model_path="m", management_api="http://a", image="i", params={"initial_workers": 1}, dryrun=True
    )
    assert metrics.tensorboard(logdir="l", image="i", timeout=1, port=1, start_on_file="", exit_on_file="")
    j = StructuredJArgument.parse_from(h="gpu.small", j="2x8")
    assert (j.nnodes, j.nproc_per_node) == (2, 8)
    name = StructuredNameArgument.parse_from(name="e/r", m=None, script=None, default_experiment_name="d")
    assert (name.experiment_name, name.run_name) == ("e", "r")


def check_builders_and_finder() -> None:
    app = builders.materialize_appdef(
        cmpnt_fn=utils.echo, cmpnt_args=["--msg", "a"], cmpnt_defaults={"num_replicas": "2"}, config={}
    )
    assert (app.roles[0].args, app.roles[0].num_replicas) == (["a"], 2)
    namespace = builders.parse_args(cmpnt_fn=utils.echo, cmpnt_args=["--msg", "a"], cmpnt_defaults=None, config=None)
    assert namespace.msg == "a"
    args = builders.component_args_from_str(utils.echo, ["--msg", "a"], cmpnt_args_defaults=None, config=None)
    assert "a" in (*args.positional_args.values(), *args.kwargs.values())
    with open("component.py", "w", encoding="utf-8") as f:
        f.write(
            "import torchx.specs as specs\n\n\ndef job(a: str) -> specs.AppDef:\n    '''j'''\n    return specs.AppDef(a)\n"
        )
    assert file_linter.validate(path=os.path.abspath("component.py"), component_function="job", validators=None) == []
    assert finder.get_component(name=f"{os.path.abspath('component.py')}:job", validators=None).fn("x").name == "x"
    assert "utils.echo" in finder.get_components(validators=None)
    assert "def echo" in finder.get_builtin_source(name="utils.echo", validators=None)
    assert file_linter.get_fn_docstring(fn=utils.echo)[1].keys() >= {"msg", "image"}
    base = {"a": {"b": 1}}
    overlays.apply_overlay(base=base, overlay={"a": {"c": 2}})
    assert base == {"a": {"b": 1, "c": 2}}


def check_runner_and_config() -> None:
    with open(".torchxconfig", "w", encoding="utf-8") as f:
        f.write("[local_cwd]\nlog_dir = /from/the/file\n[component:utils.echo]\nmsg = configured\n")
    here = [os.getcwd()]
    assert runner_config.get_config(prefix="component", name="utils.echo", key="msg", dirs=here) == "configured"
    assert runner_config.get_configs(prefix="component", name="utils.echo", dirs=here) == {"msg": "configured"}
    assert runner_config.load_sections(prefix="component", dirs=here) == {"utils.echo": {"msg": "configured"}}
    cfg: dict = {}
    runner_config.apply(scheduler="local_cwd", cfg=cfg, dirs=here)
    assert cfg["log_dir"] == "/from/the/file"
    with io.StringIO("[local_cwd]\nlog_dir = /x\n") as f:
        runner_config.load(scheduler="local_cwd", f=f, cfg=(loaded := {}))
    assert loaded == {"log_dir": "/x"}
    out = io.StringIO()
    runner_config.dump(f=out, schedulers=["local_cwd"], required_only=False)
    assert "[local_cwd]" in out.getvalue()
    assert runner_config.find_configs(dirs=here) == [os.path.abspath(".torchxconfig")]
    with get_runner(name="acme", component_defaults={"utils.echo": {"msg": "default"}}) as runner:
        assert runner.name() == "acme"
        assert runner.cfg_from_str("local_cwd", "log_dir=/a", "prepend_cwd=True") == {
            "log_dir": "/a",
            "prepend_cwd": True,
        }
        info = runner.dryrun_component(
            component="utils.echo", component_args=[], scheduler="local_cwd", cfg={}, workspace=None, parent_run_id="p"
        )
        assert info._app.roles[0].args == ["default"]
        assert info._app.roles[0].env["TORCHX_PARENT_RUN_ID"] == "p"
        info = runner.dryrun_component("utils.echo", {"msg": "dict"}, "local_cwd")
        assert info._app.roles[0].args == ["dict"]
        assert runner.scheduler_run_opts(scheduler="local_cwd").get("log_dir")
        handle = runner.run_component("utils.echo", ["--msg", "x"], "local_cwd", {"log_dir": os.path.abspath("l")})
        assert runner.wait(app_handle=handle, wait_interval=0.05).state is specs.AppState.SUCCEEDED
        out = io.StringIO()
        get_logs(
            file=out, identifier=f"{handle}/echo", regex="x", should_tail=False, runner=runner, streams=Stream.STDOUT
        )
        assert "x" in out.getvalue()
        now = datetime.now(timezone.utc)
        lines = runner.log_lines(
            app_handle=handle, role_name="echo", k=0, regex=None, since=None, until=now, should_tail=False, streams=None
        )
        assert list(lines) == ["x\n"]


def check_command_line() -> None:
    assert set(get_default_sub_cmds()) <= set(get_sub_cmds())
    parser = create_parser(subcmds=get_default_sub_cmds())
    args = parser.parse_args(["status", "local_cwd://s/a"])
    assert args.app_handle == "local_cwd://s/a"
    own = argparse.ArgumentParser()
    own.add_argument("--once", action=ArgOnceAction)
    own.add_argument("-s", "--scheduler", action=torchxconfig_run, default="x")
    assert own.parse_args(["--once", "a"]).once == "a"

    class Mine(SubCommand):
        def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
            subparser.add_argument("x")

        def run(self, args: argparse.Namespace) -> None:
            assert args.x == "1"

    parser = create_parser({"mine": Mine()})
    parsed = parser.parse_args(["mine", "1"])
    parsed.func(parsed)
    found = torchx_run_args_from_json(
        json_data={"component_name": "utils.echo", "scheduler": "local_cwd", "scheduler_args": {}, "dryrun": True}
    )
    assert isinstance(found, TorchXRunArgs)
    assert (found.component_name, found.dryrun, found.component_args) == ("utils.echo", True, {})


def check_events() -> None:
    event = TorchxEvent("s", "sch", "api", app_id="a", source=SourceType.EXTERNAL)
    assert TorchxEvent.deserialize(data=event.serialize()) == event
    assert TorchxEvent.deserialize(event) is event


def check_trackers() -> None:
    import fsspec

    root = os.path.abspath("tracked")
    tracker = FsspecTracker(fs=fsspec.filesystem("file"), root_dir=root)
    tracker.add_metadata(run_id="r", lr=0.1)
    tracker.add_artifact(run_id="r", name="model", path="/m", metadata={"k": 1})
    tracker.add_source(run_id="r", source_id="s", artifact_name="model")
    assert tracker.metadata(run_id="r") == {"lr": 0.1}
    assert tracker.artifacts("r")["model"] == TrackerArtifact(name="model", path="/m", metadata={"k": 1})
    assert list(tracker.sources("r", artifact_name="model")) == [
        TrackerSource(source_run_id="s", artifact_name="model")
    ]
    assert list(tracker.run_ids(parent_run_id=None)) == ["r"]
    run = AppRun(id="r2", backends=[tracker])
    run.add_metadata(a=1)
    run.add_source(source_id="r", artifact_name=None)
    assert run.job_id() == "r2"
    assert [source.parent.id for source in run.sources()] == ["r"]
    assert list(build_trackers(factory_and_config={})) == []
    assert tracker_config_env_var_name(entrypoint_key="mine")
    results = FsspecResultTracker(tracker_base=root)
    results.put(key=1, loss=0.5)
    assert results.get(key=1) == {"loss": 0.5}


def check_schedulers() -> None:
    assert list(filter_regex(regex="a", data=["a", "b"])) == ["a"]
    assert split_lines(text="a\nb") == ["a\n", "b"]
    assert list(split_lines_iterator(chunks=["a", "\nb"])) == ["a", "\n", "b"]
    assert ListAppResponse(app_id="a", state=specs.AppState.RUNNING, app_handle="h", name="n").name == "n"
    assert ids.make_unique(name="a", string_length=4).startswith("a-")
    assert len(ids.random_id(max_length=5)) <= 5
    assert isinstance(ids.random_uint64(), int)
    assert isinstance(get_device_mounts(devices={}), list)
    assert to_devicemounts(num_devices=1, device_type="vpc.amazonaws.com/efa")
    assert docker_scheduler.Opts(copy_env=["A"], env={"B": "1"}, privileged=False).get("privileged") is False
    assert lsf_scheduler.get_job_state(state_str="RUN", exit_code="0") is specs.AppState.RUNNING
    assert lsf_scheduler.cleanup_str(data="A b")
    assert batch.resource_from_resource_requirements(
        resource_requirements=batch.resource_requirements_from_resource(specs.Resource(cpu=2, gpu=1, memMB=4))
    ) == specs.Resource(cpu=2, gpu=1, memMB=4)
    assert batch.to_millis_since_epoch(ts=batch.to_datetime(ms_since_epoch=5000)) == 5000
    assert batch.parse_ulimits(ulimits_list=["nofile,1,2"])
    assert batch.ResourceType.from_str(resource_type="GPU") is batch.ResourceType.GPU


def check_util() -> None:
    assert types.to_dict(arg="a=b,c=d") == {"a": "b", "c": "d"}
    assert types.to_list(arg="a,b") == ["a", "b"]
    assert types.is_bool(param_type=bool)
    assert types.is_primitive(int)
    assert types.decode(encoded_value="1", annotation=int)
    assert types.decode_from_string(encoded_value="a,b", annotation=list[str]) == ["a", "b"]
    assert strings.normalize_str(data="A b!")
    assert shlex.join(args=["a b"]) == "'a b'"
    assert session.get_session_id_or_create_new() == session.get_torchx_session_id()
    assert isinstance(util_datetime.get_past_epoch_time(days_past=1), int)
    assert util_io.get_abspath
    assert modules.load_module(path="os.path:join") is os.path.join
    assert modules.import_attr(name="no_such_module", attr="x", default=1) == 1


def check_workspace() -> None:
    import fsspec

    os.makedirs("ws/sub", exist_ok=True)
    for path, text in {"ws/.torchxignore": "*.log\n", "ws/a.py": "", "ws/b.log": "", "ws/sub/c.py": ""}.items():
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    fs = fsspec.filesystem("file")
    walked = walk_workspace(fs=fs, path=os.path.abspath("ws"), ignore_name=".torchxignore")
    assert {name for _, _, files in walked for name in files} >= {"a.py", "c.py"}

    class Uploading(WorkspaceMixin[None]):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)

        def workspace_opts(self) -> specs.runopts:
            opts = specs.runopts()
            opts.add("store", type_=str, help="where", default="s3://b")
            return opts

        def build_workspace_and_update_role(self, role: specs.Role, workspace: str, cfg: dict) -> None:
            role.image = f"{cfg['store']}/{workspace}"

    role = specs.Role("r", "i", workspace=specs.Workspace.from_str("file:///x"))
    Uploading().build_workspaces(roles=[role], cfg={"store": "s3://b"})
    assert role.image.startswith("s3://b/")
    mixin = TmpDirWorkspaceMixin()
    role = specs.Role("r", "i", workspace=specs.Workspace.from_str(os.path.abspath("ws")))
    mixin.caching_build_workspace_and_update_role(role=role, cfg={}, build_cache={})
    assert os.path.exists(os.path.join(role.image, "a.py"))
    shutil.rmtree(role.image)
