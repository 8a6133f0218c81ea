"""Describes what a backend can do, so that callers can check before they call it."""

from __future__ import annotations

from torchx.util.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The capabilities of one backend. Every default means "not supported".

    Attributes:
        logs: ``log_iter`` works.
        log_streams: names of the :class:`~torchx.schedulers.api.Stream` members that ``log_iter`` can select.
        log_since: ``log_iter`` honours ``since`` and ``until``.
        log_follow: ``log_iter`` honours ``should_tail``.
        log_keep: the backend deletes logs together with its record of the job, and can keep a copy on this machine.
        exec: ``torchx exec`` and related commands can start a process inside a replica.
        log_timestamps: ``timestamps`` of a :class:`~torchx.schedulers.kit.logs.LogQuery` is honoured.
        log_previous: ``previous`` of a ``LogQuery`` is honoured.
        metrics: how resource usage is available: ``kept`` (samples in files of the job), ``sums``
            (peaks and averages, while the scheduler knows the job), ``live`` (while the job runs)
            or empty (not at all).
        cancel: a running job can be cancelled.
        delete: the record of a job can be removed.
        list: ``list`` works.
        retries: names of the supported :class:`~torchx.specs.RetryPolicy` members.
        retry_actions: supported actions of a retry policy by cause (``--retry``): ``retry``, ``avoid``, ``mem``,
            ``checkpoint``; empty: such policies are not supported.
        timeout: how the time limit of a job (``--timeout``) is set: the name of the equivalent run option, ``yes`` if
            there is none, or empty if time limits are not supported.
        watchdog: silent jobs are inspected (``--watchdog``).
        idle: jobs that use neither GPUs nor processors are detected (``--idle``).
        setup: the shell for lines before the program (``--setup``, ``--uv``, the run option ``setup``): ``bash``, or
            ``sh`` for bash if the image has it; empty: not supported.
        after: supported conditions of ``--after``: ``ok``, ``any``, ``fail``.
        order: probes by which a role can be ready for others (``Role.after``, ``ready``, ``ends_job``): ``tcp``,
            ``http``, ``log``, ``file``; empty: roles have no order.
        image_program: an empty entrypoint of a role stands for the program that its image starts.
        elastic: ``min_replicas`` of a role is honoured.
        multi_role: a job may have more than one role.
        mounts: supported kinds of mounts: ``bind``, ``volume``, ``device``.
        overlays: the key of ``metadata``, of an app or role, with changes to the request; empty: there is none.
        secrets: supported kinds of :class:`~torchx.specs.Secret`: ``value``, resolved where the job is submitted, and
            references that the backend itself resolves: ``k8s``, ``aws-sm``.
        workspaces: code can be patched into the job's image or folder.
        priority: a job can be given a priority.
        gpus: GPUs are assigned to replicas.
        resources: CPUs and memory that a role requests are reserved or enforced.
        durable: the job survives the process that submitted it.
        describe_many: one query answers for many jobs.
    """

    logs: bool = False
    log_streams: tuple[str, ...] = ()
    log_since: bool = False
    log_follow: bool = False
    log_keep: bool = False
    exec: bool = False
    log_timestamps: bool = False
    log_previous: bool = False
    metrics: str = ""
    cancel: bool = False
    delete: bool = False
    list: bool = False
    retries: tuple[str, ...] = ()
    retry_actions: tuple[str, ...] = ()
    timeout: str = ""
    watchdog: bool = False
    idle: bool = False
    setup: str = ""
    after: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    image_program: bool = False
    elastic: bool = False
    multi_role: bool = False
    mounts: tuple[str, ...] = ()
    overlays: str = ""
    secrets: tuple[str, ...] = ()
    workspaces: bool = False
    priority: bool = False
    gpus: bool = False
    resources: bool = False
    durable: bool = False
    describe_many: bool = False


COMMON = Capabilities(
    logs=True,
    log_since=True,
    log_follow=True,
    log_timestamps=True,
    cancel=True,
    delete=True,
    list=True,
    retries=("REPLICA", "ROLE", "APPLICATION"),
    elastic=True,
    multi_role=True,
    secrets=("value",),
    setup="sh",
    gpus=True,
    durable=True,
)
"""Of a backend that keeps its jobs, their records and their logs. Backends state what they have beyond it."""
