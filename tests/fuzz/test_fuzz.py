"""Whatever is typed, or stands in a file: an answer or an error of ours, through the whole of the product.

What the single parsers make of garbage is tested beside them; here it goes in where a user puts it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from torchx.cli.log_targets import parse_ids, parse_target
from torchx.cli.main import main
from torchx.components import dist, utils
from torchx.errors import HandleError, NotFoundError, TorchXError
from torchx.runner import get_runner
from torchx.runs import NewRun, RunRegistry
from torchx.schedulers.local.request import PopenRequest
from torchx.specs import AppDef, Role, materialize_appdef
from torchx.specs.options.cfg_literals import join_options
from torchx.specs.serialize import appdef_from_dict, appdef_to_dict

_in_files = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
_words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_structure = st.text(alphabet="abz019@*/:=,;.-_[]{}()\"'\\$ %#\n\té☃", max_size=40)
_HUGE = "9" * 5000  # more digits than int() takes
_any_text = _words | _structure | st.just(_HUGE)
_EXIT_CODES = {0, 2, 3, 4, 5, 6}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """What is made out of garbage is not made in the project."""
    monkeypatch.chdir(tmp_path)


# -- handles ---------------------------------------------------------------------------------------


@given(_any_text)
@example(f"job/role/{_HUGE}")
@example(f"job/role/0-{_HUGE}")
@example(f"job/role/{_HUGE[:50]}")
@example("://a/b")
@example("a://")
def test_any_target_of_a_log_is_read_or_refused(text: str) -> None:
    """Parts that make up the target again, or a HandleError with a hint."""
    try:
        target = parse_target(text)
    except HandleError as e:
        assert e.hint
        return
    assert target.reference and target.reference in text
    parts = [target.reference, *filter(None, [target.role])]
    assert parse_target("/".join(parts)) == replace(target, ids=None)


@given(st.lists(st.integers(0, 999_900), min_size=1, max_size=20))
def test_any_replicas_are_read_back(ids: list[int]) -> None:
    """Numbers in any order, single or as ranges, mean themselves."""
    assert parse_ids(",".join(map(str, ids))) == sorted(set(ids))
    assert parse_ids(f"{min(ids)}-{min(ids) + len(ids)}") == list(range(min(ids), min(ids) + len(ids) + 1))


@given(_any_text)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_reference_is_found_or_refused(record: RunRegistry, text: str) -> None:
    """Whatever names a run: the run, or an error that says there is none or there are several."""
    try:
        found = record.find(text)
    except (NotFoundError, HandleError) as e:
        assert str(e)
        return
    by_name = text in ("@last", f"@{found.name}")
    assert by_name or found.handle.startswith(text) or found.app_id.startswith(text)


@pytest.fixture
def record(tmp_path):
    """A registry with some runs in it."""
    registry = RunRegistry(str(tmp_path / "runs.db"))
    for app_id in ("a", "ab", "abc", "é", "0-1"):
        handle = f"local_cwd://torchx/{app_id}"
        registry.submitted(
            registry.begin(NewRun(scheduler="local_cwd", session="torchx", name="a", handle=handle)), handle
        )
    yield registry
    registry.close()


# -- run options and config files ------------------------------------------------------------------


@given(_any_text)
@settings(max_examples=150, deadline=None)
@example(f"cancel_grace_s={_HUGE}")
@example("cancel_grace_s=1e999")
def test_any_cfg_literal_of_a_scheduler_is_read_or_refused(text: str) -> None:
    """`-cfg` of the scheduler that is there: options, which survive the round trip, or a ConfigError."""
    with get_runner() as runner:
        opts = runner.scheduler_run_opts("local_cwd")
        try:
            cfg = runner.cfg_from_str("local_cwd", text)
            known = {key: cfg[key] for key in cfg if key in opts}
            opts.resolve(cfg)
        except TorchXError as e:
            assert e.exit_code == 2
            return
        assert opts.cfg_from_str(join_options(known)) == known


_section = st.sampled_from(
    ["local_cwd", "local_cwd@p", "component:utils.echo", "cli:run", "named_resources", "torchx:tracker", "x"]
)
_key = st.sampled_from(
    ["log_dir", "prepend_cwd", "cancel_grace_s", "msg", "num_replicas", "component", "scheduler", "workspace"]
)
_line = st.one_of(
    _section.map("[{}]".format),
    st.builds("{} = {}".format, _key, _words.map(lambda w: w.replace("\n", " "))),
    _structure,
)


@given(st.lists(_line, max_size=8).map("\n".join))
@_in_files
@example(f"[local_cwd]\ncancel_grace_s = {_HUGE}")
@example(f"[cli:run]\nscheduler = {_HUGE}")
@example('[named_resources]\nbig = {"cpu": ' + _HUGE + "}")
def test_any_config_file_is_used_or_refused(text: str) -> None:
    """A dryrun with that file, as a command: done, or one line of error and its exit code."""
    with _file(".torchxconfig", text):
        code, out, err = _torchx("run", "--dryrun", "utils.echo")
    assert code in (0, 2, 3), err
    assert code == 0 or err.count("torchx: error:") == 1, err
    assert "Traceback" not in out + err


# -- components ------------------------------------------------------------------------------------

_COMPONENTS = [dist.ddp, dist.spmd, dist.torchrun, utils.sh, utils.python, utils.echo, utils.touch, utils.copy]
_OPTIONS = st.sampled_from(
    ["-j", "--j", "--env", "--mounts", "--gpu", "-h", "--name", "--num_replicas", "--m", "-m", "--script", "--"]
)
_VALUES = st.sampled_from(
    ["1x2", "2:4x8", "0", "-1", "1e9", "A=1,B=2", "A", "type=bind,src=/a,dst=/b", "a.py", "gpu.small", "x/y"]
)


@given(st.sampled_from(_COMPONENTS), st.lists(_OPTIONS | _VALUES | _any_text, max_size=6))
@settings(max_examples=300, deadline=None)
@example(dist.ddp, ["-j", f"{_HUGE}x2", "--script", "a.py"])
@example(dist.ddp, ["-j", f"1x{_HUGE}", "--script", "a.py"])
@example(utils.echo, ["--num_replicas", _HUGE])
def test_any_arguments_of_a_component_make_an_app_or_are_refused(component: Any, words: list[str]) -> None:
    """An app that survives JSON, or an error of ours; the help is printed by those who ask for it."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            app = materialize_appdef(component, words)
        except TorchXError as e:
            assert str(e)
            return
        except SystemExit as e:
            assert e.code == 0  # the help
            return
    assert appdef_from_dict(json.loads(json.dumps(appdef_to_dict(app)))) == app


# -- apps ------------------------------------------------------------------------------------------


@given(
    st.text(max_size=20),
    st.text(max_size=20),
    st.lists(st.text(max_size=20), max_size=3),
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    st.integers(-1, 3),
)
@settings(max_examples=150, deadline=None)
def test_any_app_is_dried_or_refused(name: str, role: str, args: list[str], env: dict[str, str], replicas: int) -> None:
    """A request in which every argument is as it was, or an error of ours; the caller's app stays as it is."""
    app = AppDef(name, [Role(role, "", entrypoint="echo", args=args, env=dict(env), num_replicas=replicas)])
    before = appdef_to_dict(app)
    with get_runner() as runner:
        try:
            request = runner.dryrun(app, "local_cwd", {}).request
        except TorchXError as e:
            assert str(e)
            return
        finally:
            assert appdef_to_dict(app) == before
    assert isinstance(request, PopenRequest)
    (params,) = request.role_params.values()
    assert len(params) == replicas
    for param in params:
        assert "${" in "".join(args) or param.args == ["echo", *args]
        assert "${" in "".join(env.values()) or env.items() <= param.env.items()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_any_text, inner, max_size=3),
    max_leaves=6,
)
_run_request = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("scheduler", "scheduler_args", "component_name", "component_args", "workspace", "dryrun"), _json
    ),
)


@given((_run_request | _json).map(json.dumps) | _any_text)
@_in_files
@example(_HUGE)
@example("[" * 100_000)
@example(
    '{"scheduler": "local_cwd", "component_name": "utils.echo", "component_args": {"num_replicas": ' + _HUGE + "}}"
)
def test_any_request_on_stdin_is_run_or_refused(text: str) -> None:
    """`torchx run --stdin --dryrun`: done, or an error and its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO(text))
        code, out, err = _torchx("run", "--dryrun", "--stdin")
    assert code in _EXIT_CODES, err
    assert "Traceback" not in out + err


# -- the command line ------------------------------------------------------------------------------

_VERBS = ["status", "log", "list", "cancel", "delete", "describe", "runopts", "builtins", "plugins"]


@given(
    st.sampled_from(_VERBS),
    st.lists(_any_text | st.sampled_from(["--json", "-s", "@last", "--limit", "-5", "--state"]), max_size=3),
)
@_in_files
@example("log", ["@last", "--tail", _HUGE])
@example("log", ["@last", "--since", f"{_HUGE}m"])
@example("list", ["--limit", _HUGE])
@example("list", ["--since", f"{_HUGE}d"])
@example("list", ["--since", "99999999d"])
@example("runopts", [_HUGE])
def test_any_command_is_done_or_refused(verb: str, words: list[str]) -> None:
    """One of the documented exit codes, and never a traceback."""
    code, out, err = _torchx(verb, *words)
    assert code in _EXIT_CODES, err
    assert "Traceback" not in out + err
    assert code == 0 or err, (verb, words)


@contextlib.contextmanager
def _file(name: str, text: str):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)
        yield


def _torchx(*args: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(args))
        except SystemExit as e:
            code = e.code
    return int(code or 0), out.getvalue(), err.getvalue()
