"""What a backend can do, as a value that is read before calling."""

from __future__ import annotations

from torchx.util.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The abilities of one backend. Every default says "no", so that a backend claims only what it has.

    Attributes:
        logs: ``log_iter`` works.
        log_streams: names of the :class:`~torchx.schedulers.api.Stream` members that ``log_iter`` tells apart.
        log_since: ``since`` and ``until`` of ``log_iter`` are honoured.
        log_follow: ``should_tail`` of ``log_iter`` is honoured.
        log_keep: logs go with what the backend has of a job, and a copy of them can be kept on this machine.
        exec: a process can be started inside a replica: ``torchx exec`` and its kin work.
        log_timestamps: ``timestamps`` of a :class:`~torchx.schedulers.kit.logs.LogQuery` is honoured.
        log_previous: its ``previous`` is honoured.
        metrics: what replicas use: ``kept``, as samples in files of the job; ``live``, while they run; empty: unknown.
        cancel: a running job can be ended.
        delete: the job's record can be removed.
        list: ``list`` works.
        retries: names of the :class:`~torchx.specs.RetryPolicy` members that are honoured.
        retry_actions: a policy by cause (``--retry``) is kept: ``retry``, and those of ``avoid``, ``mem`` and
            ``checkpoint`` that it may ask for; none: no such policy is.
        timeout: how the time limit of a job (``--timeout``) is kept: the name of the run option that says the same, or
            ``yes`` where there is none; empty: it is not.
        watchdog: a job that is silent is looked into (``--watchdog``).
        after: the ends of another job after which a job may start (``--after``): ``ok``, ``any``, ``fail``.
        elastic: ``min_replicas`` of a role is honoured.
        multi_role: a job may have more than one role.
        mounts: the kinds of mount that work: ``bind``, ``volume``, ``device``.
        secrets: what is taken for a :class:`~torchx.specs.Secret`: ``value``, which is looked up where the job is
            submitted; ``k8s``, ``aws-sm``: a reference that the backend itself follows.
        workspaces: code is patched into the job's image or folder.
        priority: a job may be given a priority.
        gpus: GPUs are handed out to replicas.
        resources: cpu and memory that a role asks for are reserved or enforced.
        durable: the job goes on when the process that submitted it ends.
        describe_many: many jobs cost one query.

    >>> Capabilities(logs=True).logs, Capabilities().cancel
    (True, False)
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
    after: tuple[str, ...] = ()
    elastic: bool = False
    multi_role: bool = False
    mounts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    workspaces: bool = False
    priority: bool = False
    gpus: bool = False
    resources: bool = False
    durable: bool = False
    describe_many: bool = False
