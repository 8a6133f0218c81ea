"""A sweep that retries another: its tasks, its job, and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchx.errors import BackendError, NotFoundError
from torchx.runner.sweeps.sweeps import again
from torchx.runs import Run
from torchx.specs import AppDef, AppState, AppStatus, Role, Workspace
from torchx.specs.serialize import appdef_to_dict
from torchx.specs.tasks import TaskList, TaskTable

STATES = ["SUCCEEDED", "FAILED", "CANCELLED", "UNKNOWN", "RUNNING", "PENDING"]
TASKS = TaskList(names=["k"], points=[(str(k),) for k in range(6)], max_parallel=3)
OURS = ("TORCHX_JOB_ID", "TORCHX_WORKSPACE_HASH", "TORCHX_IMAGE_DIGEST", "TORCHX_PARENT_RUN_ID")


def run(**fields: Any) -> Run:
    """A recorded sweep, with the variables that each dry run sets."""
    roles = [
        Role(name, image, env={"LR": "{k}", **dict.fromkeys(OURS, "x")}, workspace=Workspace.from_str("file:///code"))
        for name, image in (("built", "base+code"), ("unbuilt", "base"))
    ]
    cfg = {"queue": {"value": "q", "source": "-cfg"}, "time": {"value": "1", "source": "default"}}
    values: dict[str, Any] = {
        "app": appdef_to_dict(AppDef("a", roles)),
        "tags": {"image.built": "base", "image.unbuilt": "base"},
        **fields,
    }
    about = {"scheduler": "x", "session": "s", "app_id": "1", "name": "a", "handle": "x://s/1"}
    return Run(id=1, state=AppState.FAILED, cfg=cfg, **{**about, **values})


def status(*states: str) -> AppStatus:
    table = TaskTable(states=[AppState[s] for s in states], exit_codes=[None] * len(states), ended=[0.0] * len(states))
    return AppStatus(AppState.FAILED, tasks=table)


@pytest.mark.parametrize(("given", "parallel"), [(None, 3), (0, 0), (7, 7)])
def test_what_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int | None, parallel: int) -> None:
    """Tasks that failed, were cancelled or lost; as many at a time as before, unless another number is given."""
    monkeypatch.chdir(tmp_path)
    app, cfg, tasks = again(run(), TASKS, status(*STATES), given)
    assert tasks == TaskList(names=["k"], points=[("1",), ("2",), ("3",)], max_parallel=parallel)
    assert cfg == {"queue": "q"}, "defaults are those of now"
    assert [role.env for role in app.roles] == [{"LR": "{k}"}] * 2
    assert [role.workspace is None for role in app.roles] == [True, False], "code that is in the image stays there"


@pytest.mark.parametrize(
    ("found", "fields", "said"),
    [
        (None, {}, "`x` does not know it"),
        (AppStatus(AppState.UNKNOWN, msg="down", error=BackendError("down")), {}, "are not known: down"),
        (status("SUCCEEDED", "RUNNING"), {}, "no task of `x://s/1` has failed"),
        (status("FAILED"), {"app": {}}, "the AppDef of `x://s/1` is not on record"),
    ],
)
def test_what_cannot_be_tried_again(found: AppStatus | None, fields: dict[str, Any], said: str) -> None:
    """Each has an error that says why."""
    with pytest.raises(NotFoundError) as e:
        again(run(**fields), TASKS, found, None)
    assert said in str(e.value)
