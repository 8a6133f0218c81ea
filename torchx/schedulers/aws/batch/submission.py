"""Renders and submits jobs of Batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchx.errors import NotFoundError, Unsent
from torchx.schedulers.aws.batch import client as calls
from torchx.schedulers.aws.batch import export, queues
from torchx.schedulers.aws.batch.attempts import SYSTEM
from torchx.schedulers.aws.batch.jobs import BatchJobs
from torchx.schedulers.aws.batch.options import AWSBatchOpts
from torchx.schedulers.aws.batch.pieces import BACKSTOP_S, Chain
from torchx.schedulers.aws.batch.request import NAME_RULE, BatchJob, for_queue, render_job
from torchx.schedulers.ids import random_id
from torchx.schedulers.kit.attempts import refuse_parts
from torchx.schedulers.kit.export import bases_of
from torchx.specs.api import AppDef, AppDryRunInfo, CfgVal, parse_app_handle, runopts
from torchx.specs.wishes import Wishes

if TYPE_CHECKING:
    from torchx.schedulers.kit.export import Export


class SubmitsJobs(BatchJobs):
    """The part of the backend that submits. Arguments: see :class:`BatchJobs`."""

    def _run_opts(self) -> runopts:
        return AWSBatchOpts.as_runopts()

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[BatchJob]:
        opts = AWSBatchOpts.from_cfg(cfg)
        opts.queue = opts.queue.rpartition("/")[2]  # of an ARN, whose slash an app id cannot have
        opts.timeout_s = Wishes.of(app).timeout_s or opts.timeout_s
        images = self.dryrun_push_images(app, cfg)
        name = f"{NAME_RULE.make(app.name, room=15)}-{random_id(14)}"
        chain = Chain.of(app)
        retries = SYSTEM.policy(app, self.capabilities) if chain is None else None
        if chain is not None:
            opts.timeout_s = chain.piece_s + BACKSTOP_S
        if retries is not None or chain is not None:
            refuse_parts(app, "Batch")
        job = render_job(app, name, opts, session=self.session_name, user=self._who(), retries=retries, chain=chain)
        job.images_to_push = images
        job.after = [parse_app_handle(handle).app_id for _, handle in Wishes.of(app).after]
        return AppDryRunInfo(job, str)

    def export(self, dryrun_info: AppDryRunInfo[BatchJob]) -> Export:
        """See :class:`torchx.schedulers.kit.abilities.Exports`."""
        return export.export(dryrun_info.request, bases_of(dryrun_info))

    def schedule(self, dryrun_info: AppDryRunInfo[BatchJob]) -> str:
        """Pushes images, registers the job definition unless it exists, and submits the job.

        Raises:
            NotFoundError: the queue does not exist.
            BackendError: AWS refused, failed, or did not answer.
        """
        job, app = dryrun_info.request, dryrun_info._app
        opts = job.opts or AWSBatchOpts(queue=job.queue)
        with Unsent():
            earlier = self._earlier(job.after)
            queue = queues.look_at(self._client, job.queue)
            definition = job.job_def
            if queue is not None:
                queues.refuse_closed(queue)
                definition = for_queue(definition, queue, opts, app.name if app else job.name)
            self._push(job.images_to_push, dryrun_info, create=opts.ecr_create_repo)
        once = self._clients.client("batch", retries=False)
        job_id = calls.submit(self._client, once, definition, job.request(earlier), sleep=self._sleep)
        app_id = self.submission_token(dryrun_info)
        self._ids[app_id] = job_id
        return app_id

    def _earlier(self, app_ids: list[str]) -> list[str]:
        """Batch's ids of earlier jobs, on which a job depends. Raises NotFoundError if one does not exist."""
        found = self._find(app_ids) if app_ids else {}
        for app_id in app_ids:
            if app_id not in found:
                raise NotFoundError(
                    f"Batch has no job `{app_id}`, on which this job depends",
                    hint="Batch removes jobs a week after their end",
                )
        return [str(found[app_id]["jobId"]) for app_id in app_ids]

    def submission_token(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Return the app id, which is unique."""
        return f"{dryrun_info.request.queue}:{dryrun_info.request.name}"
