"""The run options and ``Capabilities`` of each scheduler."""

from __future__ import annotations

from _site.markdown import definition, sentence, wide_table

PAGES = {
    "local_cwd": "local.md",
    "local_docker": "docker.md",
    "slurm": "slurm.md",
    "lsf": "lsf.md",
    "kubernetes": "kubernetes.md",
    "kubernetes_mcad": "kubernetes.md",
    "aws_batch": "aws.md",
    "aws_sagemaker": "aws.md",
}

ROWS = {
    "durable": "the job outlives the process that submitted it",
    "logs": "`torchx log`",
    "log_follow": "`torchx log --follow`",
    "log_since": "`torchx log --since`, `--until`",
    "log_keep": "`torchx log --archive`; elsewhere logs stay until `torchx delete`",
    "log_timestamps": "`torchx log --timestamps`",
    "log_previous": "`torchx log --previous`",
    "log_streams": "separate streams for `torchx log --streams`",
    "metrics": "`torchx metrics`: with samples, with peaks and averages, or only the current use",
    "exec": "[inside](../inside.md): `torchx exec`, `torchx shell`",
    "cancel": "`torchx cancel`",
    "delete": "`torchx delete`",
    "list": "`torchx list -s SCHEDULER`",
    "describe_many": "one query for many jobs",
    "multi_role": "jobs of several roles",
    "retries": "retry policies",
    "retry_actions": "[retries by cause](../retries.md) (`--retry`), and their actions",
    "timeout": "a [time limit](../retries.md#time-limits) (`--timeout`), and the equivalent run option",
    "setup": "[lines of set-up](../around.md) before the program (`--setup`, `--uv`), run by",
    "idle": "detection of [idle jobs](../hangs.md#idle-jobs) (`--idle`)",
    "watchdog": "a [watchdog](../hangs.md#the-watchdog) for silent jobs (`--watchdog`)",
    "after": "[one job after another](../runs.md#one-job-after-another) (`--after`)",
    "elastic": "elastic roles (`min_replicas`)",
    "gpus": "GPUs are assigned to replicas",
    "resources": "CPUs and memory are reserved or enforced",
    "mounts": "mounts",
    "overlays": "[overlays](../kubernetes.md#any-field-of-the-pod) in the metadata of a role",
    "order": "roles that wait for others (`after`), and the probes by which one can be ready (`ready`)",
    "image_program": "an empty `entrypoint` of a role: the program that its image starts",
    "secrets": "[secrets](../secrets.md): values, or supported references",
    "workspaces": "workspaces",
    "priority": "priorities",
}


def run_options() -> str:
    """The options of each scheduler."""
    from torchx.runner import get_runner
    from torchx.specs import get_type_name

    parts = []
    with get_runner() as runner:
        for name in _names():
            parts.append(f"## {name}\n\nHow to: [](../{PAGES[name]}).\n")
            for option, opt in runner.scheduler_run_opts(name):
                note = (
                    "required" if opt.is_required else "" if opt.default is None else f"default `{_shown(opt.default)}`"
                )
                term = f"`{option}` ({', '.join(filter(None, (f'`{get_type_name(opt.opt_type)}`', note)))})"
                parts.append(definition(term, sentence(opt.help)))
    return "\n".join(parts)


def capabilities() -> str:
    """A table with one column per scheduler."""
    from torchx.schedulers import get_scheduler_factories

    factories = get_scheduler_factories()
    able = {name: factories[name]("docs").capabilities for name in _names()}
    fields = set(type(next(iter(able.values()))).__annotations__)
    if fields != set(ROWS):
        raise ValueError(f"describe in {__file__}: {sorted(fields ^ set(ROWS))}")
    head = ["", *(f"[{name}](../{PAGES[name]})" for name in able)]
    rows = [[said, *(_cell(getattr(value, field)) for value in able.values())] for field, said in ROWS.items()]
    return wide_table(head, rows)


def _names() -> list[str]:
    from torchx.schedulers import get_scheduler_factories

    return [name for name in get_scheduler_factories(skip_defaults=False) if name in PAGES]


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(word.lower() for word in value) if value else "–"
    return "✓" if value else "–"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(value) or "(none)"
    if isinstance(value, dict):
        return ",".join(f"{k}={v}" for k, v in value.items()) or "(none)"
    return str(value)
