"""`torchx doctor -s lsf`: from the output of LSF's commands to findings."""

from __future__ import annotations

from typing import Any

import pytest

from torchx.errors import CommandError, TransientError
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.findings import BAD, GOOD, UNKNOWN, Finding
from torchx.schedulers.lsf.doctor import _queue
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.testing import FakeCommandRunner

QUEUES = """\
QUEUE_NAME      PRIO STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN  SUSP
normal           30  Open:Active       -    -    -    -     0     0     0     0
gpu              40  Open:Inact        -    -    -    -     0     0     0     0
old              10  Closed:Active     -    -    -    -     0     0     0     0
"""


def ask(queue: str = "", *, jobs: str = "JOBID|STAT\n7|RUN\n", **broken: Any) -> dict[str, Finding]:
    fake = FakeCommandRunner()
    answers = {"lsid": "IBM Spectrum LSF 10.1\nMy cluster name is c1\n", "bqueues": QUEUES, "bhosts": "h1\nh2\n"}
    answers |= {"bsub": "IBM Spectrum LSF 10.1, bsub\n", "bjobs": jobs}
    for program, text in answers.items():
        fake.on(program, **({"raises": broken[program]} if program in broken else {"stdout": text}))
    found = [f for check in LsfScheduler("s", commands=fake).diagnose({"lsf_queue": queue}) for f in check.findings()]
    return {f.what: f for f in found}


def test_a_cluster_that_works() -> None:
    """Release and queue are good; whether hosts share the folder is in doubt."""
    found = ask("normal")
    good = dict.fromkeys(("LSF", "environment", "jobs", "bsub", "queue"), GOOD)
    assert {what: f.verdict for what, f in found.items()} == {**good, "shared folder": UNKNOWN}
    assert found["jobs"].said == "`bjobs` knows 1 of yours"
    assert found["LSF"].said == "IBM Spectrum LSF 10.1"


@pytest.mark.parametrize(
    ("queue", "verdict", "fix"),
    [("norml", BAD, "`-cfg lsf_queue=normal`"), ("old", BAD, "`bqueues`"), ("gpu", GOOD, ""), ("", GOOD, "")],
)
def test_queues(queue: str, verdict: str, fix: str) -> None:
    """A missing or closed queue is bad; an inactive one accepts jobs."""
    found = ask(queue)["queue"]
    assert (found.verdict, fix in found.fix) == (verdict, True)


def test_no_answer() -> None:
    """A timeout is a doubt; missing commands are bad."""
    silent: dict[str, Any] = dict.fromkeys(("lsid", "bjobs", "bsub", "bqueues", "bhosts"), TransientError("no answer"))
    assert {f.verdict for what, f in ask("x", **silent).items() if what != "environment"} == {UNKNOWN}
    missing: dict[str, Any] = {p: CommandError("no", argv=[p], returncode=127) for p in silent}
    found = ask("x", **missing)
    assert {f.verdict for what, f in found.items() if what != "environment"} == {BAD}
    assert "-cfg ssh=" in found["LSF"].fix


@pytest.mark.parametrize("said", ["", "JOBID STAT\n7 RUN\n", "bjobs: illegal option -- o\n"])
def test_an_lsf_of_other_columns(said: str) -> None:
    """It has queues and hosts, but no verb works: that is bad."""
    found = ask("normal", jobs=said)["jobs"]
    assert (found.verdict, "cannot read" in found.said) == (BAD, True)


def test_lsf_that_fails() -> None:
    """Its own words are passed on, if there is no queue; a queue that it shows counts anyway."""
    for out, failed in (("", True), ("QUEUE_NAME PRIO STATUS\nnormal 30 Open:Active\n", False)):

        def run(argv: list[str], out: str = out) -> Completed:
            return Completed(argv, 255, out, "Failed in an LSF library call: LIM is down")

        if failed:
            with pytest.raises(CommandError, match="LIM is down"):
                _queue(run, "")
        else:
            assert _queue(run, "") == "1 queues, one is the default"
