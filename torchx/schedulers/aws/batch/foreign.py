"""Jobs of AWS Batch that torchx did not submit, by their AWS ids."""

from __future__ import annotations

import re
from typing import Any

from torchx.schedulers.aws.batch import client as calls
from torchx.schedulers.aws.batch.answers import groups
from torchx.schedulers.kit.foreign import ForeignJobs, Named

_Object = dict[str, Any]

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?::\d+|#\d+)?")


class ForeignBatchJobs(ForeignJobs):
    """A view of :class:`torchx.schedulers.aws_batch_scheduler.AWSBatchScheduler` for jobs of others."""

    _client: Any  # the scheduler's

    def find(self, reference: str) -> Named | None:
        job = self._find([reference]).get(reference) if _ID.fullmatch(reference) else None
        if job is None:
            return None
        if calls.is_ours(job):
            return Named(f"{str(job['jobQueue']).rpartition('/')[2]}:{job['jobName']}", ours=True)
        return Named(reference)

    def about(self, app_id: str) -> dict[str, str]:
        job = self._find([app_id]).get(app_id) or {}
        first = groups(job)[0].container if job else {}
        facts = {"name": job.get("jobName"), "queue": str(job.get("jobQueue", "")).rpartition("/")[2]}
        facts |= {"image": first.get("image"), "command": " ".join(map(str, first.get("command") or ()))}
        return {key: str(value) for key, value in facts.items() if value}

    def _find(self, app_ids: list[str]) -> dict[str, _Object]:
        return calls.details(self._client, app_ids)

    def _forget(self, app_id: str, job: _Object) -> None:
        """Do nothing: the job definition is not ours, and Batch removes the job's record after about a week."""
