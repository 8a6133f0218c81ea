"""The wishes of a job: what its metadata asks for, parsed once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from torchx.errors import SpecError
from torchx.specs import AppDef
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.retries import RetryRules
from torchx.specs.wishes.watchdog import Watchdog
from torchx.util.records import record_fields

ALL = {
    "torchx/retry": "standard",
    "torchx/timeout": "1h30m",
    "torchx/watchdog": "10m:retry",
    "torchx/idle": "30m:cancel",
    "torchx/after": "ok:slurm://torchx/7 any:slurm://torchx/8",
    "torchx/notify": "slack, exec:./hook.sh",
    "torchx/notify-on": "start,fail",
    "torchx/setup": "module load cuda",
    "torchx/uv": "1",
    "torchx/stage": "/data=d",
    "torchx/check-nodes": "net,gpus",
    "torchx/spares": "2",
    "torchx/fetch": "runs/",
}


def test_each_field_has_its_text_and_its_parser() -> None:
    """Every field is read from the metadata; what is not a wish of this version is left alone."""
    wishes = Wishes.of(AppDef("a", metadata={**ALL, "torchx/of-tomorrow": "?", "team": "a"}))
    *fields, texts = [name for name, *_ in record_fields(Wishes)]
    assert texts == "texts"
    assert wishes == Wishes(
        retry=RetryRules.parse("standard"),
        timeout_s=5400,
        watchdog=Watchdog(600, "retry"),
        idle=Watchdog(1800, "cancel"),
        after=(("ok", "slurm://torchx/7"), ("any", "slurm://torchx/8")),
        notify=("slack", "exec:./hook.sh"),
        notify_on=("start", "fail"),
        setup="module load cuda",
        uv=True,
        stage=(("/data", "d"),),
        check_nodes=("gpus", "net"),
        spares=2,
        fetch=(("runs/", "runs/"),),
        texts=dict(zip(fields, ALL.values(), strict=True)),
    )


@pytest.mark.parametrize("app", [None, AppDef("a"), AppDef("a", metadata={"torchx/retry": "", "team": "a"})], ids=str)
def test_a_job_without_wishes(app: AppDef | None) -> None:
    """It has no retries, no limits and no notices; an empty text is no wish."""
    assert Wishes.of(app) == Wishes()
    assert Wishes().notify_on == ("end",)


@pytest.mark.parametrize("key", sorted({*ALL} - {"torchx/setup", "torchx/fetch"}))  # which may be any text
def test_an_invalid_wish_is_an_error(key: str) -> None:
    """Whichever wish it is, the message has its text."""
    with pytest.raises(SpecError, match="nonsense"):
        Wishes.of(AppDef("a", metadata={**ALL, key: "nonsense"}))


@pytest.mark.parametrize("value", [5, True, ["a"], {"a": "b"}, "a\0b"], ids=repr)
@pytest.mark.parametrize("key", sorted(ALL))
def test_a_wish_that_is_no_text_is_an_error(key: str, value: Any) -> None:
    """As a program may have it; before a job is submitted."""
    with pytest.raises(SpecError, match=key):
        Wishes.of(AppDef("a", metadata={**ALL, key: value}))


def test_a_change_of_the_metadata_is_seen() -> None:
    """The result is kept for the texts, not for the job."""
    app = AppDef("a", metadata={"torchx/timeout": "1h"})
    assert Wishes.of(app).timeout_s == 3600
    app.metadata["torchx/timeout"] = "2h"
    assert Wishes.of(app).timeout_s == 7200


def test_a_job_without_wishes_imports_no_parser() -> None:
    """A command pays for the wishes of its job only."""
    code = """
import sys
from torchx.specs import AppDef
from torchx.specs.wishes import Wishes
Wishes.of(AppDef("a", metadata={"team": "a"}))
print(*(name for name in sys.modules if name.startswith("torchx.specs.wishes.")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
