"""Exit codes and JSON fields of a status, which commands and programs rely on."""

from __future__ import annotations

import pytest

from torchx.errors import EXIT_GONE, EXIT_JOB_FAILED, EXIT_NOT_ENDED, EXIT_OK
from torchx.runner.show.json_output import exit_code_of, status_fields
from torchx.specs import AppState, AppStatus, RoleStatus


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (AppStatus(AppState.SUCCEEDED), EXIT_OK),
        (AppStatus(AppState.FAILED), EXIT_JOB_FAILED),
        (AppStatus(AppState.CANCELLED), EXIT_JOB_FAILED),
        (AppStatus(AppState.RUNNING), EXIT_NOT_ENDED),
        (AppStatus(AppState.UNKNOWN), EXIT_NOT_ENDED),
        (AppStatus(AppState.UNKNOWN, gone=True), EXIT_GONE),
    ],
)
def test_exit_codes_of_a_state(status: AppStatus, code: int) -> None:
    """A job that its scheduler has lost differs from one that has not ended."""
    assert exit_code_of(status) == code


def test_fields_of_a_status() -> None:
    """Nothing known is null, and restarts are never negative; only the wanted roles are in it."""
    status = AppStatus(AppState.RUNNING, num_restarts=-1, roles=[RoleStatus("a", []), RoleStatus("b", [])])
    found = status_fields(status)
    assert (found["msg"], found["num_restarts"], found["hang"], found["tasks"]) == (None, 0, None, None)
    assert [role["role"] for role in found["roles"]] == ["a", "b"]
    assert [role["role"] for role in status_fields(status, roles=["b"])["roles"]] == ["b"]
    assert status_fields(status, roles=[])["roles"] == []
