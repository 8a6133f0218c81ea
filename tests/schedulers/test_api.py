"""The contract's base class and its small helpers."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.errors import ConfigError, NotSupportedError, SpecError
from torchx.schedulers.api import (
    DescribeAppResponse,
    ListAppResponse,
    Scheduler,
    Stream,
    StructuredOpts,
    filter_regex,
    split_lines,
    split_lines_iterator,
)
from torchx.specs.api import NULL_RESOURCE, AppDef, AppDryRunInfo, AppState, CfgVal, Resource, Role, runopts


@dataclass
class Opts(StructuredOpts):
    queue: str = "default"
    """Where to."""


class Fake(Scheduler[Mapping[str, CfgVal]]):
    def __init__(self) -> None:
        super().__init__("fake", "session")
        self.jobs: dict[str, AppState] = {}
        self.calls: list[str] = []

    def _run_opts(self) -> runopts:
        return Opts.as_runopts()

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[list[str]]:
        return AppDryRunInfo([app.name, str(cfg["queue"])], repr)

    def schedule(self, dryrun_info: AppDryRunInfo[list[str]]) -> str:
        self.calls.append(f"schedule {dryrun_info.request}")
        self.jobs["job-1"] = AppState.RUNNING
        return "job-1"

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        return DescribeAppResponse(app_id, self.jobs[app_id]) if app_id in self.jobs else None

    def list(self, cfg: Mapping[str, CfgVal] | None = None):
        return [ListAppResponse(i, s) for i, s in self.jobs.items()]

    def _cancel_existing(self, app_id: str) -> None:
        self.calls.append(f"cancel {app_id}")


def _app(**role: Any) -> AppDef:
    return AppDef("app", [Role("r", "img", entrypoint="true", resource=Resource(1, 0, 64), **role)])


def test_submit_resolves_options_validates_and_schedules() -> None:
    """Defaults are filled in, the request is made and submitted, and the caller's app stays as it is."""
    fake = Fake()
    app = _app()
    assert fake.submit(app, {}) == "job-1"
    assert fake.calls == ["schedule ['app', 'default']"]
    assert app == _app()


def test_a_dryrun_knows_what_it_was_made_of() -> None:
    """The info carries the app, the resolved options and the backend's name."""
    info = Fake().submit_dryrun(_app(), {"queue": "fast"})
    assert (info._app, info._cfg, info._scheduler) == (_app(), {"queue": "fast"}, "fake")
    assert str(info) == "['app', 'fast']"


def test_pre_proc_hooks_run_in_the_order_of_roles() -> None:
    """Each role may change the request, seeing what those before it did."""

    class Hooked(Role):
        def pre_proc(self, scheduler: str, dryrun_info: AppDryRunInfo) -> AppDryRunInfo:
            dryrun_info.request.append(f"{scheduler}:{self.name}")
            return dryrun_info

    app = AppDef("app", [Hooked("a", "img"), Hooked("b", "img")])
    assert Fake().submit_dryrun(app, {}).request[2:] == ["fake:a", "fake:b"]


def test_a_role_with_the_null_resource_is_refused_by_default() -> None:
    """The null resource is an error that names the role and says what to do; a role that says nothing is accepted."""
    Fake().submit(AppDef("app", [Role("trainer", "img")]), {})
    app = AppDef("app", [Role("trainer", "img", resource=NULL_RESOURCE)])
    with pytest.raises(SpecError, match="`trainer`") as e:
        Fake().submit(app, {})
    assert "resource=" in e.value.hint
    with pytest.raises(ValueError):
        Fake()._validate(app, "fake", {})


def test_options_of_a_workspace_mixin_are_merged() -> None:
    """A mixin with workspace_opts adds its options to the backend's own."""

    class Mixin:
        def workspace_opts(self) -> runopts:
            opts = runopts()
            opts.add("repo", type_=str, help="a repo")
            return opts

    class Both(Mixin, Fake):
        pass

    assert {name for name, _ in Both().run_opts()} == {"queue", "repo"}


def test_cancel_and_delete_only_what_exists() -> None:
    """An unknown id is quiet; delete is cancel unless a backend knows better."""
    fake = Fake()
    fake.cancel("nope")
    fake.delete("nope")
    assert fake.calls == []
    fake.submit(_app(), {})
    fake.cancel("job-1")
    fake.delete("job-1")
    assert fake.calls[1:] == ["cancel job-1", "cancel job-1"]
    assert fake.exists("job-1") and not fake.exists("nope")
    assert set(fake.describe_many(["job-1", "nope"])) == {"job-1", "nope"}


BACKENDS = ("aws_batch.AWSBatch", "aws_sagemaker.AWSSageMaker", "docker.Docker", "kubernetes.Kubernetes", "local.Local")


@pytest.mark.parametrize("name", [*BACKENDS, "lsf.Lsf", "slurm.Slurm"])
def test_a_describe_of_its_own_counts_everywhere(name: str) -> None:
    """A subclass of a backend that overrides ``describe`` gets the other questions answered by it."""
    module, _, kind = name.partition(".")
    backend: Any = getattr(importlib.import_module(f"torchx.schedulers.{module}_scheduler"), f"{kind}Scheduler")

    class Own(backend):  # type: ignore[misc]  # any of them
        def __init__(self) -> None:
            pass

        def describe(self, app_id: str) -> DescribeAppResponse | None:
            return DescribeAppResponse(app_id=app_id, roles=[Role("r", "", num_replicas=2)]) if app_id == "a" else None

    own: Any = Own()
    assert [own.exists("a"), own.exists("b")] == [True, False]
    assert [i for i, found in own.describe_many(["a", "b"]).items() if found] == ["a"]
    assert own.log_replicas("a") == [("r", 0), ("r", 1)]
    assert own.still_there("a") is None


def test_logs_are_not_supported_by_default() -> None:
    """A backend without logs says so, in the type that callers catch."""
    with pytest.raises(NotSupportedError):
        Fake().log_iter("job-1", "r")
    with pytest.raises(NotImplementedError):
        Fake().log_iter("job-1", "r")


def test_abstract_methods_are_required() -> None:
    """A backend without one of the five cannot be made."""
    with pytest.raises(TypeError, match="_submit_dryrun"):
        Scheduler("b", "s")  # type: ignore[abstract]


def test_streams_are_strings() -> None:
    """A stream can be had by its name."""
    assert [Stream(s.value) for s in Stream] == list(Stream)
    assert Stream("combined") is Stream.COMBINED


@pytest.mark.parametrize("regex", ["[", "(", "*"])
def test_a_bad_regex_is_one_clear_error(regex: str) -> None:
    """Said before the first line is read."""
    with pytest.raises(ConfigError, match="regular expression"):
        filter_regex(regex, [])


@given(st.text())
def test_split_lines_loses_nothing(text: str) -> None:
    """The lines make up the text, and only the last may lack its end."""
    lines = split_lines(text)
    assert "".join(lines) == text
    assert all(line.count("\n") == 1 and line.endswith("\n") for line in lines[:-1])
    assert "" not in lines


@given(st.lists(st.text(alphabet="ab\r\n")))
def test_lines_of_pieces(pieces: list[str]) -> None:
    """Each piece has its own lines: programs hand lines without their ends over one by one."""
    assert list(split_lines_iterator(pieces)) == [line for piece in pieces for line in split_lines(piece)]
