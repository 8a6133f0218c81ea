"""Names that look private, and are imported all the same."""

from __future__ import annotations

import io
import signal

from torchx.cli import colors as cli_colors
from torchx.cli.cmd_log import ENDC, GREEN, _prefix_line, find_role_replicas, validate
from torchx.components.dist import _TORCH_DEBUG_FLAGS, _args_join, _noquote, get_role_name, parse_nnodes
from torchx.runner.events import log_event
from torchx.schedulers import DEFAULT_SCHEDULER_MODULES, SchedulerFactory, get_scheduler_factories
from torchx.schedulers.docker_scheduler import _to_str
from torchx.schedulers.local_scheduler import (
    COMBINED_LOG,
    STDERR_LOG,
    STDOUT_LOG,
    AppId,
    CWDImageProvider,
    ImageProvider,
    LocalOpts,
    LocalScheduler,
    LogIterator,
    PopenRequest,
    ReplicaParam,
    SignalException,
    _LocalAppDef,
)
from torchx.schedulers.slurm_scheduler import SLURM_STATES
from torchx.specs import AppDef, Role
from torchx.util import colors
from torchx.util.types import none_throws


def check_log_command() -> None:
    assert _prefix_line("a/0 ", "x\n") == "a/0 x\n"
    app = AppDef("a", [Role("trainer", "", num_replicas=2), Role("reader", "")])
    assert sorted(find_role_replicas(app, None)) == [("reader", 0), ("trainer", 0), ("trainer", 1)]
    assert find_role_replicas(app, "trainer") == [("trainer", 0), ("trainer", 1)]
    validate("local_cwd://session/app/role")
    assert isinstance(GREEN + ENDC, str)


def check_colors() -> None:
    for name in ("BLUE", "ENDC", "GRAY", "GREEN", "ORANGE"):
        assert getattr(cli_colors, name) == getattr(colors, name)


def check_dist_parts() -> None:
    assert _args_join(["echo", "a b", _noquote("$HOME")]) == "echo 'a b' $HOME"
    assert isinstance(_noquote("x"), str)
    assert isinstance(_TORCH_DEBUG_FLAGS, dict)
    assert _TORCH_DEBUG_FLAGS
    assert parse_nnodes(j="2x8") == (2, 2, 8, "2")
    assert parse_nnodes("1:2x8")[:3] == (1, 2, 8)
    assert get_role_name(script="a/train.py", m=None) == "train"
    assert get_role_name(None, "pkg.train")


def check_scheduler_parts() -> None:
    assert _to_str(b"x") == _to_str("x") == "x"
    assert SLURM_STATES["RUNNING"].name == "RUNNING"
    assert set(DEFAULT_SCHEDULER_MODULES) <= set(
        get_scheduler_factories(group="torchx.schedulers", skip_defaults=False)
    )
    assert SchedulerFactory is not None
    assert (STDOUT_LOG, STDERR_LOG, COMBINED_LOG) == ("stdout.log", "stderr.log", "combined.log")
    assert AppId is str
    assert LocalOpts is not None
    assert issubclass(CWDImageProvider, ImageProvider)
    assert hasattr(LogIterator, "_check_finished")
    assert isinstance(_LocalAppDef, type)
    assert isinstance(LocalScheduler, type)
    error = SignalException(msg="stopped", sigval=signal.SIGTERM)
    assert error.sigval is signal.SIGTERM
    param = ReplicaParam(args=["a"], env={}, stdout=None, stderr=None, combined=None, cwd="/")
    request = PopenRequest(app_id="a", log_dir="/l", role_params={"r": [param]}, role_log_dirs={"r": ["/l/r/0"]})
    assert request.role_params["r"][0].args == ["a"]


def check_small_helpers() -> None:
    assert none_throws(1) == none_throws(optional=1, message="m") == 1
    try:
        none_throws(None, "there is none")
    except AssertionError as e:
        assert "there is none" in str(e)
    else:
        raise AssertionError("none_throws(None) returned")
    with log_event(api="acme", scheduler="local_cwd", app_id="a", app_image="i", app_metadata={}, runcfg="{}"):
        io.StringIO()


def check_a_module_that_is_gone() -> None:
    try:
        from torchx.components.base import torch_dist_role
    except ImportError as e:
        assert "torchx.components.base" in str(e) or "torch_dist_role" in str(e)
    else:
        assert callable(torch_dist_role)
