"""Roles in order, in containers: which start, which end, what restarts with them, and what a label is worth."""

from __future__ import annotations

import json

import pytest

from tests.schedulers.docker.test_gangs import BAD, NEW, OK, R, job
from torchx.errors import NotSupportedError
from torchx.schedulers.docker import gangs
from torchx.schedulers.docker.attempts import wishes
from torchx.schedulers.docker.containers import Mark, join_name, split_name
from torchx.schedulers.docker.export import export
from torchx.schedulers.docker.gangs import Rules, next_step, rules_for, waiting, waves
from torchx.schedulers.docker.options import Opts
from torchx.schedulers.docker.order import check_reach
from torchx.schedulers.docker.request import render_job
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.specs import AppDef, Ready, RetryPolicy, Role

ORDER = json.dumps(
    {
        "s": {"after": [], "probe": "log", "what": "up", "ports": [], "at_least": 1, "restarts_after": True},
        "t": {"after": ["s"], "at_least": 1, "ends_job": True},
    }
)
RETRY = {"s": (1, "ROLE")}


def _step(*containers: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Containers to end, and to start, with their names then."""
    found = next_step(job(*containers, retries=RETRY, order=ORDER))
    return [c.id for c in [*found.stop, *found.end]], [join_name(c.id, found.mark(c, due=False)) for c in found.again]


@pytest.mark.parametrize(
    ("containers", "end", "start"),
    [
        pytest.param([("s-0", R), ("t-0.due", NEW)], [], [], id="it waits"),
        pytest.param([("s-0.ready5", R), ("t-0.due", NEW)], [], ["t-0"], id="it starts"),
        pytest.param([("s-0.ready5.due", R), ("t-0.due", NEW)], [], ["s-0"], id="it waits for a restart"),
        pytest.param([("s-0.ready5", R), ("t-0", R)], [], [], id="all is well"),
        pytest.param([("s-0.ready5", R), ("t-0", OK)], ["s-0"], [], id="it ends the job"),
        pytest.param([("s-0.ready5.ended", BAD), ("t-0", OK)], [], [], id="all have ended"),
        pytest.param([("s-0.ready5", R), ("t-0", BAD)], ["s-0"], [], id="it fails the job"),
        pytest.param([("s-0", BAD), ("t-0.due", NEW)], [], ["s-0.role1"], id="a restart before it is ready"),
        pytest.param([("s-0.ready5", BAD), ("t-0", R)], [], ["s-0.role1", "t-0.along1"], id="a restart of both"),
        pytest.param([("s-0.role1.ready5", R), ("t-0.due", NEW)], [], ["t-0.along1"], id="the first start after it"),
        pytest.param([("s-0.role1.ready5", R), ("t-0.along1", R)], [], [], id="both were restarted"),
        pytest.param([("s-0.role1.ready5", R), ("t-0", R)], [], ["t-0.along1"], id="a restart done by half"),
        pytest.param([("s-0.role1.ready5", BAD), ("t-0.along1", R)], ["t-0"], [], id="the last time"),
        pytest.param([("s-0.cancelled", R), ("t-0.due", NEW)], ["s-0", "t-0"], [], id="it is being cancelled"),
    ],
)
def test_steps(containers: list[tuple[str, str]], end: list[str], start: list[str]) -> None:
    assert _step(*containers) == (end, start)


def test_a_restart_of_both_counts_once() -> None:
    assert waves(job(("s-0.role1", R), ("t-0.along1", R), order=ORDER)) == 1
    mark = Mark(app=1, role=2, along=3, ready=1763731200, due=True)
    assert split_name(join_name("a-1-s-0", mark)) == ("a-1-s-0", mark)


@pytest.mark.parametrize("label", ["[]", "{", '{"s": 1}', '{"s": {"after": ["x"]}, "t": {"after": []}}', "{}"])
def test_a_label_that_says_nothing(label: str) -> None:
    """Then the containers have no order."""
    found = job(("s-0", R), ("t-0", R), order=label)
    assert (gangs.orders_of(found), waiting(found), bool(next_step(found))) == ({}, set(), False)


def test_the_request() -> None:
    """The containers of a role that waits are created with a mark, under the address that others know."""
    server = Role("s", "i", num_replicas=2, port_map={"http": 8000}, ready=Ready(tcp="http"), max_retries=1)
    server.retry_policy = RetryPolicy.ROLE
    app = AppDef(
        "a", [server, Role("t", "i", entrypoint="run", args=["${role.s.port.http}"], after=["s"], max_retries=1)]
    )
    asked = wishes(app, DockerScheduler.capabilities, "here")
    made = render_job(app, "a-1", Opts(), session="x", environ={}, place="here", **asked)
    assert [(c.kwargs["name"], c.waits) for c in made.containers] == [
        *(("a-1-s-0", False), ("a-1-s-1", False), ("a-1-t-0.due", True))
    ]
    trainer = made.containers[2]
    hosts = trainer.kwargs["environment"]["TORCHX_HOSTS_S"]  # type: ignore[index]
    assert (trainer.command, hosts) == (["run", "8000"], "s-0:8000,s-1:8000")
    assert "a-1-t-0" in str(trainer.kwargs["networking_config"]) and ".due" not in str(
        trainer.kwargs["networking_config"]
    )
    assert made.rules.retries == {"s": (1, "ROLE"), "t": (1, "APPLICATION")}
    assert Rules(order=made.rules.order).to_json() == Rules(order=asked["order"]).to_json()
    alone = rules_for(
        AppDef("a", [Role("t", "i", max_retries=1, retry_policy=RetryPolicy.REPLICA)]), 9, "here", **asked
    )
    assert alone.retries == {"t": (1, "ROLE")}
    with pytest.raises(NotSupportedError, match="roles of the job wait for each other, and `docker compose` starts"):
        export(made, {})
    check_reach(app, {"DOCKER_HOST": "tcp://localhost:2375"})
    with pytest.raises(NotSupportedError, match="containers of `ssh://far` have no address here"):
        check_reach(app, {"DOCKER_HOST": "ssh://far"})
    with pytest.raises(NotSupportedError, match="no watcher could start its roles in order"):
        wishes(app, DockerScheduler.capabilities, "")
