"""The order of roles: what is checked before a job is submitted, and the addresses that roles know of each other."""

from __future__ import annotations

import re
from typing import Any

import pytest

from torchx.cli.spec_page import app_page
from torchx.errors import NotSupportedError, SpecError
from torchx.runner.capsule.changes import changed
from torchx.runner.launch.pipeline import _check_order
from torchx.runner.show.json_output import status_fields
from torchx.runner.show.tables import timeline
from torchx.runs.statuses import from_text, to_text
from torchx.schedulers import get_scheduler_factories
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.replicas import replicas
from torchx.schedulers.kit.verdict import describe
from torchx.specs import AppDef, AppState, AppStatus, Ready, ReplicaStatus, Role, RoleStatus
from torchx.specs.order import Addresses, RoleOrder, order_of
from torchx.specs.serialize import appdef_from_dict, appdef_to_dict
from torchx.util.records import replace


def _server(**changes: Any) -> Role:
    given = {"num_replicas": 2, "port_map": {"http": 8000, "metrics": 9000}, **changes}
    return Role("server", "img", entrypoint="serve", **given)


def _any(value: Any) -> Any:
    return value


def _trainer(**changes: Any) -> Role:
    return Role("trainer", "img", entrypoint="train", **{"after": ["server"], **changes})


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        (Ready(tcp="metrics"), ("tcp", "metrics", "", 300, 2)),
        (Ready(tcp="22", within="30s"), ("tcp", "22", "", 30, 2)),
        (Ready(http="/health", at_least=1), ("http", "http", "/health", 300, 1)),
        (Ready(http="metrics:/up"), ("http", "metrics", "/up", 300, 2)),
        (Ready(http="9/up"), ("http", "9", "/up", 300, 2)),
        (Ready(log=r"step \d+ of \\d \w"), ("log", "", r"step [0-9]+ of \\d [[:alnum:]_]", 300, 2)),
        (Ready(file="out/ready"), ("file", "", "out/ready", 300, 2)),
    ],
)
def test_probes(ready: Ready, expected: tuple[object, ...]) -> None:
    found = order_of(AppDef("a", [_server(ready=ready), _trainer()]))["server"]
    assert (found.probe, found.port, found.what, found.within_s, found.at_least) == expected


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ([_trainer()], "role `trainer` waits for role `server`, which the job does not have"),
        ([_trainer(after=["trainer"])], "`trainer`, which is itself"),
        ([_server(after=["trainer"]), _trainer()], "in a circle: server, trainer"),
        ([_server(ready=Ready())], "has 0 probes"),
        ([_server(ready=Ready(tcp="http", log="x"))], "has 2 probes"),
        ([_server(ready=Ready(tcp="grpc"))], "at the port `grpc`"),
        ([_server(ready=Ready(tcp="99999"))], "at the port `99999`"),
        ([_server(ready=Ready(http="/h h"))], "omit spaces"),
        ([_server(port_map={}, ready=Ready(http="/h"))], "at a port, and has none"),
        ([_server(ready=Ready(log="(?i)x"))], "`(?` is not understood"),
        ([_server(ready=Ready(log=r"a\b"))], r"`\b` is not understood"),
        ([_server(ready=Ready(log="("))], "not a valid regular"),
        ([_server(ready=Ready(log="[[:space:]-x]"))], "not a valid regular"),
        ([_server(ready=Ready(tcp="http", within="5"))], "role `server`: within `5` is not a length of time"),
        ([_server(ready=Ready(tcp="http", at_least=3))], "`at_least=3` of its 2 replicas"),
        ([_server(), _trainer(args=["${role.serv.host}"])], "`${role.serv.host}`, which is not an address"),
        ([_server(), _trainer(env={"A": "${role.server.port.grpc}"})], "`${role.server.port.grpc}`"),
        ([_server(), Role("SERVER", "img", ends_job=True)], "share the variable `TORCHX_HOSTS_SERVER`"),
        (
            [_server(after=["b"]), _trainer(), Role("b", "img", after=["c"]), Role("c", "img", after=["b"])],
            "circle: b, c",
        ),
        ([_server(), _trainer(after="server")], "`trainer` has `after='server'`"),
        ([_server(ready={"http": "/up"})], "`server` has `ready={'http': '/up'}`"),
        ([_server(), _trainer(ends_job="no")], "`trainer` has `ends_job='no'`"),
        ([_server(ready=Ready(tcp="http", within=_any(300)))], "`server` has `within=300` in its `ready`"),
        ([_server(ready=Ready(log=_any(["up"])))], "`server` has `log=['up']` in its `ready`"),
        ([_server(ready=Ready(tcp="http", at_least=True))], "`at_least=True` of its 2 replicas"),
        ([_server(ready=Ready(tcp="\uff18\uff10"))], "at the port `\uff18\uff10`"),
        ([_server(ready=Ready(http="http://localhost:8000/up"))], "by a GET of `http://localhost:8000/up`"),
        ([_server(ready=Ready(http="up"))], "by a GET of `up`"),
        ([_server(port_map={"http": "8000"}, ready=Ready(tcp="http"))], "has the port `http='8000'`"),
    ],
)
def test_what_cannot_be(roles: list[Role], said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        order_of(AppDef("a", roles))


@pytest.mark.parametrize(
    ("role", "hint"),
    [
        (_trainer(after=["sever"]), "did you mean `server`?"),
        (_trainer(args=["${role.server.port.htp}"]), "did you mean `${role.server.port.http}`?"),
        (_trainer(args=["${role.q.y}"]), "it has ${role.server.host}, ${role.server.hosts}, ${role.server.port.http}"),
    ],
)
def test_what_was_meant(role: Role, hint: str) -> None:
    with pytest.raises(SpecError) as e:
        order_of(AppDef("a", [_server(), role]))
    assert e.value.hint.startswith(hint)


def test_jobs_without_order_are_as_before() -> None:
    app = AppDef("a", [_server(args=["${role}", "${role.x", "${HOME}", "$${role.server.host}"])])
    assert order_of(app) == {}
    assert not {"after", "ready", "ends_job", "restarts_after"} & appdef_to_dict(app)["roles"][0].keys()


def test_a_record_keeps_the_order() -> None:
    ready = Ready(http="/health", within="1m", at_least=1)
    app = AppDef("a", [_server(ready=ready, restarts_after=True), _trainer(ends_job=True)])
    assert appdef_from_dict(appdef_to_dict(app)) == app
    app = AppDef("a", [_server(ready=Ready(tcp=8000)), _trainer(after=("server", "server"), args=("a",))])
    again = appdef_from_dict(appdef_to_dict(app, fallback=repr))
    assert order_of(again) == order_of(app)
    assert (order_of(app)["trainer"].after, again.roles[1].args) == (("server",), ["a"])


def test_addresses() -> None:
    app = AppDef(
        "a", [_server(args=["${role.server.port.http}"]), _trainer(args=["${role.server.hosts}", "$${role.x.host}"])]
    )
    addresses = Addresses(app, lambda role, k: f"{role.name}-{k}", lambda role, k, name: role.port_map[name] + k)
    found = [(r.role.args, r.role.env["TORCHX_HOSTS_SERVER"]) for r in replicas(app, "id", addresses=addresses)]
    hosts = "server-0:8000,server-1:8001"
    assert found == [(["8000"], hosts), (["8001"], hosts), ([hosts, "${role.x.host}"], hosts)]


def test_backends_that_cannot() -> None:
    app = AppDef("a", [_server(ready=Ready(log="up")), _trainer()])
    _check_order(app, "some", Capabilities(order=("log", "tcp")))
    with pytest.raises(NotSupportedError, match="`some` cannot start them in order"):
        _check_order(app, "some", Capabilities())
    with pytest.raises(NotSupportedError, match="`some` cannot see whether a role is ready by `log`"):
        _check_order(app, "some", Capabilities(order=("tcp",)))


@pytest.mark.parametrize("scheduler", ["aws_sagemaker", "kubernetes_mcad"])
def test_backends_without_order(scheduler: str) -> None:
    """Before anything is submitted."""
    caps = get_scheduler_factories()[scheduler]("tests").capabilities
    with pytest.raises(NotSupportedError, match=f"`{scheduler}` cannot start them in order"):
        _check_order(AppDef("a", [_server(), _trainer()]), scheduler, caps)


def _facts(server: list[dict[str, Any]], trainer: AppState, **of_trainer: Any) -> JobFacts:
    app = [_server(ready=Ready(tcp="http")), _trainer(ends_job=True)]
    ups = [ReplicaFacts(role="server", replica=k, **values) for k, values in enumerate(server)]
    mine = [ReplicaFacts(role="trainer", replica=0, state=trainer, **of_trainer)]
    roles = [RoleFacts(name="server", replicas=ups), RoleFacts(name="trainer", replicas=mine, ends_job=True)]
    return JobFacts(app_id="a", roles=roles, definition=app)


def test_status_of_waiting_and_ending_roles() -> None:
    up = {"state": AppState.RUNNING, "ready": 5.0}
    waiting = describe(_facts([up, {"state": AppState.RUNNING}], AppState.PENDING))
    assert (waiting.state, waiting.msg) == (AppState.RUNNING, "trainer/0: waits for server to be ready (1 of 2)")
    stopped = {"state": AppState.FAILED, "signal": "SIGTERM", "stopped": True}
    ended = describe(_facts([stopped, stopped], AppState.SUCCEEDED))
    assert ended.state is AppState.SUCCEEDED
    assert [r.state for role in ended.roles_statuses for r in role.replicas] == [AppState.CANCELLED] * 2 + [
        AppState.SUCCEEDED
    ]
    ending = describe(_facts([up, up], AppState.SUCCEEDED))
    assert (ending.state, ending.msg) == (AppState.RUNNING, "trainer ended; the others are being ended")
    unstarted = describe(_facts([{"state": AppState.PENDING}], AppState.SUCCEEDED))  # it was to be restarted
    assert unstarted.roles_statuses[0].replicas[0].state is AppState.CANCELLED
    lags = _facts([{"state": AppState.PENDING}], AppState.PENDING)
    roles = [lags.roles[0], replace(lags.roles[1], state=AppState.SUCCEEDED)]
    found = describe(replace(lags, state=AppState.SUCCEEDED, roles=roles))
    assert [r.replicas[0].state for r in found.roles_statuses] == [AppState.CANCELLED, AppState.SUCCEEDED]
    failed = describe(_facts([stopped, stopped], AppState.FAILED, exit_code=3))
    assert (failed.state, failed.msg[:22]) == (AppState.FAILED, "trainer/0: exit code 3")


def test_a_job_whose_role_was_not_ready_is_not_being_cancelled() -> None:
    facts = replace(_facts([{"state": AppState.RUNNING}] * 2, AppState.CANCELLED), state=AppState.RUNNING)
    facts = replace(facts, kind="timeout", reason="role server was not ready within 1s")
    assert describe(facts).msg == "role server was not ready within 1s; the others are being ended"


def test_many_roles_that_one_waits_for() -> None:
    many = [Role(f"s{k}", "img", ready=Ready(tcp="80")) for k in range(5)]
    app = [*many, _trainer(after=[role.name for role in many])]
    roles = [
        RoleFacts(name=r.name, replicas=[ReplicaFacts(role=r.name, replica=0, state=AppState.RUNNING)]) for r in many
    ]
    waits = RoleFacts(name="trainer", replicas=[ReplicaFacts(role="trainer", replica=0, state=AppState.PENDING)])
    found = describe(JobFacts(app_id="a", roles=[*roles, waits], definition=app))
    assert found.msg.endswith("; waits for s2 to be ready (0 of 1); and 2 more")


def test_an_order_without_probe() -> None:
    assert (str(RoleOrder()), str(RoleOrder(probe="log", what="up"))) == ("", "log `up`")


@pytest.mark.parametrize(
    ("began", "ready_at", "ended_at", "said"),
    [
        (5.0, 17.0, None, "ready (1 of 1) after 12 s"),
        (5.0, 30.0, 30.0, "ready (1 of 1)"),
        (None, 17.0, 30.0, "ready (1 of 1)"),
        (5.0, None, None, "not ready (0 of 1)"),
    ],
)
def test_since_when_a_role_is_ready(
    began: float | None, ready_at: float | None, ended_at: float | None, said: str
) -> None:
    """A time that is not known is not shown."""
    one = ReplicaStatus(0, AppState.CANCELLED, "server", "", started_at=began, ended_at=ended_at, ready_at=ready_at)
    assert RoleStatus("server", [one], needs=1).order() == said


def test_what_people_and_programs_see() -> None:
    """In `status`, `--json`, what pollers record, a dry run, `rerun --set`, and on the timeline."""
    up = {"state": AppState.RUNNING, "started": 5.0, "ready": 17.0}
    found = describe(_facts([up, {**up, "ready": 20.0}], AppState.RUNNING, started=21.0))
    status = AppStatus(found.state, roles=found.roles_statuses)
    lines = [line.strip() for line in status.format().splitlines()]
    assert "server: 2 RUNNING; ready (2 of 2) after 15 s" in lines
    assert "trainer: 1 RUNNING; after server, ends the job" in lines
    server, trainer = status_fields(status)["roles"]
    assert (server["after"], server["ready"], server["ends_job"]) == ([], {"count": 2, "needed": 2}, False)
    assert (trainer["after"], trainer["ready"], trainer["ends_job"]) == (["server"], None, True)
    assert server["replicas"][0]["ready_at"] == "1970-01-01T00:00:17.000Z"
    recorded = from_text(to_text(status) or "")
    assert recorded is not None and recorded.roles == status.roles
    status.roles[0].replicas.pop()
    assert [bar["text"] for bar in timeline(status, 0.0)["bars"]] == ["ready after 12 s", ""]
    app = AppDef("a", [_server(ready=Ready(tcp="http")), _trainer()])
    assert "order:  server    ready by tcp http within 5m (2 replicas)" in app_page(app)
    again = changed(app, ["roles.server.ready.within=1m", "roles.trainer.ends_job=true"])
    assert (again.roles[0].ready, again.roles[1].ends_job) == (Ready(tcp="http", within="1m"), True)
    assert changed(app, []) == app
