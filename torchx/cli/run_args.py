"""Options of ``torchx run``, read from the command line, from JSON on stdin, and from config files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from torchx.cli import resources
from torchx.cli.argparse_util import CFG, CFG_ROW, Row
from torchx.cli.failures import UsageError
from torchx.config import get_configs, get_section, load_files, warn_of_unknown
from torchx.errors import ConfigError, SpecError
from torchx.schedulers import get_default_scheduler_name
from torchx.specs import AppDef, CfgVal
from torchx.specs.options.cfg_literals import cast
from torchx.specs.secret import Secret
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.notices import NOTIFY, NOTIFY_ON
from torchx.util.records import dataclass, field, record_fields
from torchx.util.strings import did_you_mean

STDIN = "--stdin"
_APPEND = {"action": "append"}
FULL: Row = ("--full", "", "with --dryrun: also show what is the same for every job")
WAIT: Row = ("--wait", "", "wait until the job has ended; exit 1 if it failed; Ctrl-C cancels the job")
LOG: Row = ("--log", "", "show the logs of all replicas on stderr while waiting (implies --wait)")
DETACH: Row = ("-d --detach", "", "print the handle and return at once; the default in a pipe")
JSON: Row = ("--json", "", "print one JSON document instead of the handle")
YES: Row = (
    "-y --yes",
    "",
    "do not ask before a job that could use more than `max_gpu_hours` of [cli] in .torchxconfig",
)
WHERE: tuple[Row, ...] = (
    ("-s --scheduler", "NAME", "where to run (default: local_cwd)"),
    (
        "-cfg --scheduler_args --scheduler-args",
        CFG,
        "options of the scheduler, for example `-cfg queue=gpu,time=60`; repeatable",
        CFG_ROW,
    ),
    ("--profile", "NAME", "use the sections [...@NAME] of .torchxconfig"),
    ("-j", "NODESxWORKERS", "run the script under torchrun: `2x8` is 2 nodes with 8 workers each", {"dest": "size"}),
    *resources.ROWS,
    ("--manifest", "", "with --dryrun: print the request alone, for example for `kubectl apply -f -`"),
    ("--dryrun --dry-run", "", "show what would be submitted without submitting it; no image is built"),
    FULL,
)
WHAT_TO_DO: tuple[Row, ...] = (
    ("--export", "DIR", "write the job as files that need no torchx; see `export`"),
    WAIT,
    LOG,
    ("--tee_logs --tee-logs", "", "alias of --log"),
    ("--check", "", "check the job here and on the scheduler without submitting it; exit 1 if a check fails"),
    ("--check-timeout --check_timeout", "DURATION", "time limit of all these checks (default: 15s)"),
    ("--no-check --no_check", "", "submit the job even if a check fails, for example for a missing script"),
    DETACH,
    (STDIN, "", "read the arguments as JSON from stdin; the keys are the attributes of TorchXRunArgs"),
)
NOTICES: tuple[Row, ...] = (
    (
        "--notify",
        "WAY,...",
        "send the status page when the job ends: `desktop`, `slack`, `webhook`, `mail`, `exec:PATH`, `none`; "
        "addresses are in [notify] of .torchxconfig",
    ),
    ("--notify-on --notify_on", "EVENT,...", "when to notify: `start`, `end`, `fail`, `hang` (default: end)"),
)
WHAT_GOES_ALONG: tuple[Row, ...] = (
    (
        "--workspace --buck-target --buck_target",
        "PATH",
        "directory to patch into the image (default: the current one); an empty PATH patches nothing",
    ),
    (
        "--allow-private-workspace",
        "",
        "send the workspace even if it is a home directory or holds credentials such as .ssh or .aws",
    ),
    ("--parent_run_id --parent-run-id", "ID", "id of the parent run, for trackers"),
    (
        "--secret",
        "NAME[=REFERENCE]",
        "set an environment variable whose value is not recorded: to that of NAME here, or to the one that "
        "REFERENCE names: env:NAME, cmd:COMMAND, file:PATH, k8s:NAME/KEY, aws-sm:ARN; repeatable",
        _APPEND,
    ),
    (
        "--retry",
        "POLICY",
        "restart the job depending on why it failed: `standard`, or rules such as "
        "`preempted:free, node:5:avoid, error:0`; see docs/retries.md",
    ),
    (
        "--after",
        "JOB[:ok|any|fail]",
        "start once JOB has succeeded (`ok`, the default), ended, or failed; repeatable. Add `--after wait` to "
        "wait in this command where the scheduler cannot",
        _APPEND,
    ),
    (
        "--timeout",
        "DURATION",
        "end the job after this run time, with the failure class `timeout`: `90s`, `45m`, `2h`, `1d12h`; "
        "time in a queue does not count",
    ),
    (
        "--total",
        "DURATION[:N]",
        "run for this long in all, as a chain of pieces that continue from the checkpoint, each with the limit of "
        "`--piece`: `--total 5d --piece 24h`; stop after N pieces without progress (default: 2)",
    ),
    ("--piece", "DURATION", "the time limit of a piece; the same as `--timeout`"),
    (
        "--watchdog",
        "DURATION[:ACTION]",
        "when no replica has written output for this long, record what each rank is doing, for `torchx status`: "
        "`10m`; `10m:cancel` also ends the job, `10m:retry` the attempt",
    ),
    (
        "--idle",
        "DURATION[:ACTION]",
        "when a job has used neither GPUs nor processors for this long after its first step, notify: `30m`; "
        "`30m:cancel` also ends it, `30m:checkpoint` after a checkpoint",
    ),
    (
        "--setup",
        "LINE",
        "run this line of shell in each replica before its program, for example `module load cuda/12.4`, after those "
        "of `setup` in the scheduler's section of .torchxconfig; repeatable",
        _APPEND,
    ),
    ("--uv", "", "run in the environment of the project's `uv.lock`, which is made once on each node"),
    (
        "--check-nodes --check_nodes",
        "",
        "check each node before the programs start: GPUs, disk, clock, network, all_reduce; "
        "`--check-nodes=gpus,disk,clock,net,collective` checks some; a bad one fails with the class `node`",
    ),
    ("--spares", "N", "with `--check-nodes`: ask for N more nodes, and leave out those that fail; on Slurm"),
    ("--only-checks", "CHECK,...", "the same as `--check-nodes=CHECK,...`"),
    (
        "--stage",
        "SOURCE=PATH",
        "copy this file, folder or URL of fsspec (`s3://...`) once to each node, where it is at PATH; repeatable",
        _APPEND,
    ),
    (
        "--fetch",
        "PATH[=TARGET]",
        "copy this result here when `run --wait`, `wait` or `watch` sees the job's end, or by `torchx fetch`; "
        "repeatable",
        _APPEND,
    ),
    *NOTICES,
    YES,
    JSON,
)
TEXT_OPTIONS = (
    "scheduler",
    "cfg",
    "workspace",
    "parent_run_id",
    "secret",
    "retry",
    "timeout",
    "total",
    "piece",
    "watchdog",
    "idle",
)
_EXAMPLES = "write `--secret HF_TOKEN`, or a reference to the value: `--secret HF_TOKEN=file:PATH`, `=cmd:COMMAND`"


@dataclass
class TorchXRunArgs:
    """Arguments of ``torchx run``.

    Attributes:
        component_name: as on the command line: ``dist.ddp``, ``path/file.py:function``.
        scheduler: name of the scheduler.
        scheduler_args: the scheduler's options from JSON, not yet typed.
        scheduler_cfg: the scheduler's options, typed.
        dryrun: show what would be submitted.
        wait: wait until the job has ended.
        log: show its logs while waiting.
        workspace: directory to patch into the image; empty for none.
        parent_run_id: id of the parent run.
        tee_logs: alias of ``log``.
        component_args: the component's arguments by name, from JSON.
        component_args_str: the component's arguments from the command line.
        env: environment variables for all roles.
        secrets: values of ``--secret``: ``NAME``, ``NAME=cmd:...``.
        retry: the retry policy; see :mod:`torchx.specs.wishes.retries`.
        after: jobs to wait for; see :mod:`torchx.specs.wishes.after`.
        timeout: how long an attempt may run; see :mod:`torchx.specs.wishes.timeouts`.
        total, piece: of a chain; see :mod:`torchx.specs.wishes.retries`.
        watchdog: silence after which ranks are inspected; see :mod:`torchx.specs.wishes.watchdog`.
        idle: of a job that uses nothing; see :mod:`torchx.specs.wishes.idle`.
        notify: how to notify; see :mod:`torchx.specs.wishes.notices`.
        notify_on: events to notify of.
        setup: lines of shell before the program; see :mod:`torchx.specs.wishes.setup`.
        uv: run in the environment of the project's ``uv.lock``.
        stage: data to copy to the nodes; see :mod:`torchx.specs.wishes.stages`.
        check_nodes: whether to check the nodes; see :mod:`torchx.specs.wishes.checks`.
        only_checks: which of the checks.
        spares: how many more nodes to ask for.
        fetch: results to copy here; see :mod:`torchx.specs.wishes.fetch`.
    """

    component_name: str
    scheduler: str
    scheduler_args: dict[str, Any]
    scheduler_cfg: dict[str, CfgVal] = field(default_factory=dict)
    dryrun: bool = False
    wait: bool = False
    log: bool = False
    workspace: str = ""
    parent_run_id: str | None = None
    tee_logs: bool = False
    component_args: dict[str, Any] = field(default_factory=dict)
    component_args_str: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    retry: str = ""
    timeout: str = ""
    total: str = ""
    piece: str = ""
    watchdog: str = ""
    idle: str = ""
    notify: str = ""
    notify_on: str = ""
    after: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    uv: bool = False
    stage: list[str] = field(default_factory=list)
    check_nodes: bool = False
    only_checks: str = ""
    spares: str = ""
    fetch: list[str] = field(default_factory=list)


_JSON_NAMES = {
    str: "a string",
    dict: "an object",
    bool: "true or false",
    list: "a list",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def torchx_run_args_from_json(json_data: dict[str, Any]) -> TorchXRunArgs:
    """Build the arguments from a JSON object whose keys are attributes of :class:`TorchXRunArgs`.

    Raises:
        ConfigError: a key is missing or unknown, or a value has the wrong type.

    >>> torchx_run_args_from_json({"scheduler": "local_cwd", "component_name": "utils.echo",
    ...     "component_args": {"msg": "hi"}}).component_args
    {'msg': 'hi'}
    """
    known = {name: annotation for name, annotation, *_ in record_fields(TorchXRunArgs)}
    for key, value in json_data.items():
        if key not in known:
            hint = did_you_mean(key, known) or f"the keys are: {', '.join(known)}"
            raise ConfigError(f"`{STDIN}`: unknown key `{key}`", hint=hint)
        wanted = next(kind for kind in _JSON_NAMES if known[key].startswith(kind.__name__))  # `dict[...]` is dict
        if not isinstance(value, wanted) and not (value is None and known[key].endswith("| None")):
            got = _JSON_NAMES.get(type(value), type(value).__name__)
            raise ConfigError(f"`{STDIN}`: `{key}` must be {_JSON_NAMES[wanted]}, and is {got}")
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            raise ConfigError(f"`{STDIN}`: `{key}` must be a list of strings")
        if key == "env" and isinstance(value, dict) and not all(isinstance(item, str) for item in value.values()):
            raise ConfigError(f"`{STDIN}`: the values of `env` must be strings")
    for key in ("component_name", "scheduler"):
        if not json_data.get(key):
            raise ConfigError(
                f"`{STDIN}`: the key `{key}` is missing",
                hint='for example {"scheduler": "local_cwd", "component_name": "utils.echo", "component_args": {}}',
            )
    if json_data.get("component_args") and json_data.get("component_args_str"):
        raise ConfigError(f"`{STDIN}`: `component_args` and `component_args_str` exclude each other")
    return TorchXRunArgs(**{"scheduler_args": {}, **json_data})


def torchx_run_args_from_argparse(
    args: argparse.Namespace, component_name: str, component_args: list[str], scheduler_cfg: Mapping[str, CfgVal]
) -> TorchXRunArgs:
    """Build the arguments from a parsed command line; options that ``args`` lacks get their defaults."""
    fields = {name for name, *_ in record_fields(TorchXRunArgs)}
    given = {name: value for name, value in vars(args).items() if name in fields and value is not None}
    given.update(component_name=component_name, component_args_str=list(component_args), scheduler_args={})
    given.update(scheduler_cfg=scheduler_cfg, secrets=getattr(args, "secret", []))
    given["env"] = parse_env(getattr(args, "env", []))
    return TorchXRunArgs(**{**given, "scheduler": given.get("scheduler") or get_default_scheduler_name()})


def parse_env(given: list[str]) -> dict[str, str]:
    """Parse the values of ``--env``, of which the last one of a name counts; UsageError if one is malformed.

    >>> parse_env(["A=1", "B=a=b,c"])
    {'A': '1', 'B': 'a=b,c'}
    """
    for text in given:
        if not text.partition("=")[0].isidentifier() or "=" not in text:
            raise UsageError(f"`--env {text}` is not NAME=VALUE", hint="for example `--env NCCL_DEBUG=INFO`")
    return {name: value for name, _, value in (text.partition("=") for text in given)}


def parse_secrets(given: list[str]) -> dict[str, Secret]:
    """Parse the values of ``--secret`` into variable -> Secret; raise UsageError for one that is malformed.

    >>> parse_secrets(["HF_TOKEN", "KEY=file:~/key"])
    {'HF_TOKEN': Secret('HF_TOKEN'), 'KEY': Secret('file:~/key')}
    """
    found = {}
    for text in given:
        name, equals, reference = str(text).partition("=")
        if not (name.isidentifier() and name.isascii()):
            raise UsageError("`--secret`: the text before `=` is not a valid variable name", hint=_EXAMPLES)
        if equals and ":" not in reference:  # not shown: it may be the value itself
            raise UsageError(f"`--secret` takes no value of `{name}`: other users see command lines", hint=_EXAMPLES)
        try:
            found[name] = Secret(reference or name)
        except SpecError as e:
            raise UsageError(f"`--secret` of `{name}`: {e}", hint=e.hint) from None
    return found


# The keys of `[cli:run]` in a config file.
_CONFIG_TEXTS = ("component", *TEXT_OPTIONS, *resources.TEXTS)
_SAME = ("timeout", "piece")
_CONFIG_FLAGS = ("dryrun", "wait", "log", "tee_logs", "detach", "json", "no_check", "uv", "check_nodes")


def fill_from_config(args: argparse.Namespace) -> None:
    """Fill options that the command line lacks from ``[cli:run]``; warns of unknown keys."""
    given = vars(args)
    limited = not given.keys().isdisjoint(_SAME)
    known = (*_CONFIG_FLAGS, *_CONFIG_TEXTS)
    for key, text in get_configs(prefix="cli", name="run").items():
        if key in _CONFIG_FLAGS:
            try:
                given.setdefault(key, bool(text and cast(text, bool)))
            except ConfigError as e:
                raise ConfigError(f"`[cli:run]`: `{key}`: {e}", hint=e.hint) from None
        elif key == "cfg":
            given.setdefault(key, [text] if text else [])
        elif key in ("secret", "env"):
            given[key] = [*filter(None, map(str.strip, text.splitlines())), *given.get(key, [])]
        elif key in _CONFIG_TEXTS:
            if key not in _SAME or not limited:
                given.setdefault(key, text)
        else:
            warn_of_unknown("cli:run", key, "`[cli:run]` has no key", known)


def read_json(text: str) -> dict[str, Any]:
    """Parse the text of ``--stdin``; raise UsageError if it is not a JSON object."""
    import json

    example = 'for example: echo \'{"scheduler": "local_cwd", "component_name": "utils.echo"}\' | torchx run --stdin'
    if not text.strip():
        raise UsageError("`--stdin`: the input is empty", hint=example)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise UsageError(f"`--stdin`: the input is not valid JSON: {e}", hint=example) from None
    if not isinstance(data, dict):
        raise UsageError("`--stdin`: the input is not a JSON object", hint=example)
    return data


def notices_wanted(notify: str, notify_on: str) -> dict[str, str]:
    """Return the job metadata for notices: from the command line, or where that is empty, from ``[notify]``."""
    if not (notify or notify_on or "notify" in load_files().names()):
        return {}
    from torchx.runner.notices.channels import KEYS, SECTION

    section = get_section(SECTION)
    for key in section.keys() - set(KEYS):
        warn_of_unknown(SECTION, key, f"`[{SECTION}]` has no key", KEYS)
    metadata = {NOTIFY: notify or section.get("via", ""), NOTIFY_ON: notify_on or section.get("on", "")}
    if not metadata[NOTIFY] and notify_on:
        raise UsageError("`--notify-on` needs `--notify`", hint="for example `--notify mail`")
    metadata = {key: text for key, text in metadata.items() if text}
    return metadata if Wishes.of(AppDef("", metadata=metadata)).notify else {}


def wanted(run_args: TorchXRunArgs) -> dict[str, str]:
    """Return the wishes of a job as metadata; see :mod:`torchx.specs.wishes`."""
    texts = {name: getattr(run_args, name) for name in ("retry", "timeout", "watchdog", "idle", "spares")}
    if run_args.piece:
        if texts["timeout"]:
            raise UsageError("`--piece` and `--timeout` are the same", hint="omit one of them")
        texts["timeout"] = run_args.piece
    if run_args.total:
        texts["retry"] = f"{texts['retry'] or 'standard, lost:free'}, total:{run_args.total}"
    for name in ("setup", "stage", "fetch"):
        texts[name] = "\n".join(getattr(run_args, name))
        if name != "setup" and "" in map(str.strip, getattr(run_args, name)):
            raise UsageError(f"`--{name}` is given nothing", hint="omit it, or name a path")
    texts["uv"] = "1" if run_args.uv else ""
    texts["check-nodes"] = run_args.only_checks or ("all" if run_args.check_nodes else "")
    found = {f"torchx/{name}": text for name, text in texts.items() if text}
    return {**found, **notices_wanted(run_args.notify, run_args.notify_on)}
