"""Values exactly at a limit, and just beyond it: numbers and texts of an AppDef, tasks of a sweep, sampling intervals."""

from __future__ import annotations

from typing import Any

import pytest

from torchx.config.ini import Entry
from torchx.errors import ConfigError, SpecError
from torchx.runner.launch.checks import MAX_REPLICAS, check
from torchx.runner.launch.sampling import sample_s
from torchx.runner.sweeps import sweeps
from torchx.settings import SAMPLE_S
from torchx.specs import AppDef, Resource, Role
from torchx.specs.tasks import TaskList


def role(**fields: Any) -> Role:
    return Role(**{"name": "r", "image": "", "entrypoint": "p", **fields})


def using(**amounts: Any) -> Role:
    """A role with these amounts in its resource, whatever they are."""
    made = role(resource=Resource(1, 0, 1))
    vars(made.resource).update(amounts)
    return made


def nested(depth: int) -> dict[str, Any]:
    """Mappings and lists within each other."""
    value: Any = "x"
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return {"k": value}


GOOD = {
    "the most replicas": role(num_replicas=MAX_REPLICAS),
    "one replica": role(num_replicas=1),
    "no retries": role(max_retries=0),
    "the most retries": role(max_retries=MAX_REPLICAS),
    "all of them needed": role(num_replicas=3, min_replicas=3),
    "one of them needed": role(num_replicas=3, min_replicas=1),
    "no limit of memory": using(memMB=None),
    "half a processor": using(cpu=0.5),
    "any": using(cpu=-1, gpu=-1, memMB=-1),
    "bytes that are not UTF-8": role(args=["caf\udce9"]),
    "deep metadata": role(metadata=nested(90)),
}
BAD = {
    "one more replica": (role(num_replicas=MAX_REPLICAS + 1), "`num_replicas=1000001`"),
    "no replica": (role(num_replicas=0), "`num_replicas=0`"),
    "a negative number of retries": (role(max_retries=-1), "`max_retries=-1`"),
    "one more retry": (role(max_retries=MAX_REPLICAS + 1), "`max_retries=1000001`"),
    "retries that are true": (role(max_retries=True), "`max_retries=True`"),
    "more needed than there are": (role(num_replicas=3, min_replicas=4), "`min_replicas=4`"),
    "none needed": (role(num_replicas=3, min_replicas=0), "`min_replicas=0`"),
    "a truth of processors": (using(cpu=True), "`True` as `cpu`"),
    "no number of processors": (using(cpu=None), "`None` as `cpu`"),
    "endless memory": (using(memMB=10**18), f"`{10**18}` as `memMB`"),
    "not a number": (using(gpu=float("nan")), "`nan` as `gpu`"),
    "half of a pair": (role(args=["\ud800"]), "half of a surrogate pair"),
    "deeper metadata": (role(metadata=nested(110)), "more than 100 levels deep"),
    "a name that is a number": (role(name=7), "a role has the name `7`, which is not text"),
    "a name with half of a pair": (role(name="\ud800"), "which is not text"),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_a_scheduler_could_run(case: str) -> None:
    """The limit itself is allowed."""
    check(AppDef("a", [GOOD[case]]))


@pytest.mark.parametrize("case", BAD)
def test_what_none_could_run(case: str) -> None:
    """What is just beyond a limit is rejected, and named."""
    made, said = BAD[case]
    with pytest.raises(SpecError) as e:
        check(AppDef("a", [made]))
    assert said in str(e.value)


@pytest.mark.parametrize(("made", "kind"), [(AppDef("", [role()]), "AppDef"), (AppDef("a", [role(name="")]), "Role")])
def test_who_has_no_name(made: AppDef, kind: str) -> None:
    """The hint shows how to give it to an app or to a role."""
    with pytest.raises(SpecError, match="has no name") as e:
        check(made)
    assert e.value.hint == f"give it one: `{kind}(name=...)`"


@pytest.mark.parametrize("value", ["", "a b", "ü", "caf\udce9", "'", "\n"])
def test_values_of_a_sweep(value: str) -> None:
    """Any text that a program can get; no limit of tasks at a time is 0."""
    sweeps.check(TaskList(names=["v"], points=[("a",), (value,)], max_parallel=0))
    with pytest.raises(SpecError, match="-1 tasks at a time"):
        sweeps.check(TaskList(names=["v"], points=[(value,)], max_parallel=-1))


@pytest.mark.parametrize("value", ["a\0", "\ud800", 7])
def test_values_that_no_program_can_get(value: Any) -> None:
    """The error names the value and its task."""
    with pytest.raises(SpecError, match=r"of `v`, of task 1, cannot be passed"):
        sweeps.check(TaskList(names=["v"], points=[("a",), (value,)], max_parallel=1))


def section(text: str) -> dict[str, Entry]:
    return {"every": Entry(text, "/x/.torchxconfig", 2)}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15s", 15.0), ("2m", 120.0), ("1h", 3600.0), (" 3600 ", 3600.0), ("0", 0.0), ("7", 7.0)],
)
def test_sampling_intervals(text: str, seconds: float) -> None:
    """A duration, or a number of seconds, up to an hour; none is the default."""
    assert sample_s(section(text)) == seconds
    assert sample_s({}) == SAMPLE_S


@pytest.mark.parametrize("text", ["3601", "61m", "-1", "", "often", "٣", "9" * 10])
def test_intervals_that_make_no_sense(text: str) -> None:
    """The error names the line of the file."""
    with pytest.raises(ConfigError, match=r"\.torchxconfig:2: `every` is"):
        sample_s(section(text))
