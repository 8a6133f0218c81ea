"""What an earlier answer blamed does not replace why the job as a whole has failed."""

from __future__ import annotations

from torchx.runner.watching.answers import with_cause
from torchx.schedulers.api import DescribeAppResponse
from torchx.specs.api import AppState, AppStatus, ReplicaStatus, RoleStatus
from torchx.specs.failures import Failure


def test_a_timeout_is_not_replaced_by_a_replica_of_before() -> None:
    late = Failure("no output for 10 s", kind="timeout").to_structured_msg()
    blamed = Failure("exit code 1", 1, kind="error", role="w", replica=0).to_structured_msg()
    before = AppStatus(AppState.RUNNING, roles=[RoleStatus("w", [ReplicaStatus(0, AppState.FAILED, "w", "", blamed)])])
    found = DescribeAppResponse(app_id="a", state=AppState.FAILED, structured_error_msg=late)
    assert with_cause(found, lambda: before) is found
