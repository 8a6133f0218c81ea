"""`torchx doctor -s lsf` and `run --check` on the look-alike: what is bad there is what `bsub` refuses."""

from __future__ import annotations

import json

import pytest

from tests.backends.lsf.conftest import command, eventually
from tests.backends.shell import Shell
from torchx.errors import BackendError
from torchx.schedulers.kit.findings import BAD, GOOD, UNKNOWN, Finding
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs import AppDef, Resource, Role


def ask(lsf: LsfScheduler, queue: str = "") -> dict[str, Finding]:
    return {f.what: f for check in lsf.diagnose({"lsf_queue": queue}) for f in check.findings()}


def refused(lsf: LsfScheduler, queue: str) -> str:
    """What `bsub` says of a job in that queue; empty when it takes it."""
    app = AppDef("job", [Role("r", "", entrypoint="true", resource=Resource(1, 0, 100))])
    try:
        lsf.submit(app, {"lsf_queue": queue})
    except BackendError as e:
        return str(e)
    return ""


@pytest.mark.parametrize("queue", ["normal", "urgent", ""])
def test_good_queues(scheduler: LsfScheduler, queue: str) -> None:
    """Nothing is bad; `bsub` takes the job."""
    found = ask(scheduler, queue)
    assert {what: f.verdict for what, f in found.items()} == {
        **dict.fromkeys(("LSF", "environment", "jobs", "bsub", "queue"), GOOD),
        "shared folder": UNKNOWN,
    }
    assert "LSF" in found["LSF"].said
    assert refused(scheduler, queue) == ""


def test_a_queue_that_does_not_exist(scheduler: LsfScheduler) -> None:
    """The fix is what was meant, and is taken."""
    found = ask(scheduler, "urgnet")["queue"]
    assert (found.verdict, found.fix) == (BAD, "`-cfg lsf_queue=urgent`")
    assert "No such queue" in refused(scheduler, "urgnet")


def test_a_queue_that_is_closed(scheduler: LsfScheduler) -> None:
    """Until it is opened again."""
    command("badmin", "qclose", "narrow")
    try:
        found = ask(scheduler, "narrow")["queue"]
        assert (found.verdict, "takes no jobs" in found.said) == (BAD, True)
        assert "closed" in refused(scheduler, "narrow")
    finally:
        command("badmin", "qopen", "narrow")
    assert ask(scheduler, "narrow")["queue"].verdict == GOOD


def test_from_a_shell(lsf_shell: Shell) -> None:
    """`--deep` runs a job, reads its log, and deletes it; a job is checked and not submitted."""
    machine = json.loads(lsf_shell.torchx("doctor", "-s", "lsf", "--deep", "--image", "", "--json"))
    found = {row["what"]: row for row in machine["findings"]}
    assert machine["bad"] == 0, found
    assert found["probe job"]["verdict"] == GOOD, found
    eventually(lambda: "torchx-doctor" not in command("bjobs", "-w", "-noheader"))
    words = ["--check", "--json", "-s", "lsf", "utils.echo", "--msg", "hi"]
    assert json.loads(lsf_shell.torchx("run", *words))["bad"] == 0
    bad = json.loads(lsf_shell.torchx("run", "-cfg", "lsf_queue=nromal", *words, check=False))
    (row,) = [row for row in bad["findings"] if row["verdict"] == BAD]
    assert (row["what"], row["fix"]) == ("queue", "`-cfg lsf_queue=normal`")
    assert command("bjobs", "-noheader") == ""
