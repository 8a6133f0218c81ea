"""The options of ``torchx run`` for resources, image, environment and name: as arguments of the component that runs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.cli.argparse_util import ArgOnceAction, Row
from torchx.cli.failures import UsageError, note
from torchx.util.strings import size_text

if TYPE_CHECKING:
    from torchx.cli.run_args import TorchXRunArgs
    from torchx.component_reader.signature import Signature


class _Named(ArgOnceAction):
    """``-h NAME``; without a name, ``-h`` prints the help."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: Any = None) -> None:
        if values is None:
            parser.print_help()
            parser.exit()
        super().__call__(parser, namespace, values, option)


ROWS: tuple[Row, ...] = (
    ("-h", "NAME", "a named resource for each replica, such as gpu.small", {"action": _Named, "nargs": "?"}),
    ("--gpu", "[TYPE:]N", "GPUs of each replica: `8`, `h100:8`, or `h100` for one per worker"),
    ("--cpu", "N", "CPUs of each replica"),
    ("--mem", "SIZE", "memory of each replica: `64G`, `512M`"),
    ("--nodes", "N", "run the program on so many nodes, once on each; with torchrun: -j NODESxWORKERS"),
    ("--image", "IMAGE", "container image; for schedulers without containers, a directory"),
    ("--env", "K=V", "set an environment variable of the job; repeatable", {"action": "append"}),
    ("--name", "NAME", "name of the job"),
)
AMOUNTS = ("gpu", "cpu", "mem")
_PARAMETERS = {
    "h": ("h",),
    "gpu": ("gpu", "gpus"),
    "cpu": ("cpu", "cpus"),
    "mem": ("memMB", "mem"),
    "nodes": ("num_replicas", "nodes", "nnodes", "num_nodes"),
    "image": ("image",),
    "name": ("name",),
}
TEXTS = (*_PARAMETERS, "env")
"""Option -> the arguments of components that it may be."""

_SIZED = ("dist.ddp", "dist.torchrun", "utils.python", "utils.sh")
_EXAMPLES = {"gpu": "--gpu 8", "cpu": "--cpu 16", "memMB": "--mem 64G"}
_FORMS = {
    "gpu": (r"\d+|[A-Za-z][\w.-]*(:\d+)?", "`8`, `h100:8` or `h100`"),
    "cpu": (r"[1-9]\d*", "`16`"),
    "nodes": (r"[1-9]\d*", "`2`"),
    "mem": (r"[1-9]\d*", "`64G`, `512M`"),
}
_OF_WORKER = 1, 1024  # CPUs and MiB
_OF_GPU = 2, 3072  # as little as most programs need, so that small nodes have it


def given_by(args: argparse.Namespace) -> dict[str, str]:
    """Return the resource options of the command line; call it before those of the config files are added."""
    return {name: str(getattr(args, name)) for name in _PARAMETERS if hasattr(args, name)}


def arguments_for(
    component: str, words: Sequence[str], args: argparse.Namespace, given: Mapping[str, str]
) -> list[str]:
    """Return the component's command line with the resource options.

    Args:
        words: its command line without them.
        args: the options of torchx, including those of ``[cli:run]``.
        given: those of the command line, :func:`given_by`.

    Raises:
        UsageError: the component has no argument for an option of the command line, or two options contradict.
    """
    if not any(hasattr(args, name) for name in _PARAMETERS):
        return list(words)
    from torchx.component_reader.finder import get_component
    from torchx.component_reader.signature import read

    signature = read(get_component(component).fn, name=component)
    theirs = {**_configured(component), **_given(signature, words)}
    more: list[str] = []
    for name, text in _chosen(args, given).items():
        parameter = next((p for p in map(signature.get, _PARAMETERS[name]) if p and p.kind != "var"), None)
        if parameter is None:
            if name in given:
                raise _no_argument(signature, name, text)
            continue  # a default of [cli:run], which is for components that have the argument
        if name not in given and (parameter.name in theirs or ("h" in theirs and name in AMOUNTS)):
            continue
        counted = _counted(text, str(theirs.get("j", "")), component) if name == "gpu" else text
        more += [f"--{parameter.name}={counted}"]
    return [*more, *words]


def _chosen(args: argparse.Namespace, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options with those of the config file that do not contradict those of the command line."""
    from torchx.component_reader.arguments import in_mib

    amounts = [name for name in AMOUNTS if name in given]
    if "h" in given and amounts:
        raise UsageError(
            f"`-h {given['h']}` names all of the resource, and `--{amounts[0]} {given[amounts[0]]}` a part of it",
            hint="leave one of them out, or define a resource of your own in [named_resources] of .torchxconfig",
        )
    left_out: tuple[str, ...] = AMOUNTS if "h" in given else ("h",) if amounts else ()
    found = {n: str(getattr(args, n)) for n in _PARAMETERS if hasattr(args, n) and n not in left_out}
    found = {name: text for name, text in found.items() if name not in AMOUNTS or "h" not in found}
    for name, text in found.items():
        form, examples = _FORMS.get(name, ("(?s).+", "a name"))
        if not re.fullmatch(form, in_mib(text) if name == "mem" else text, re.ASCII):
            option = "-h" if name == "h" else f"--{name}"
            raise UsageError(f"`{option} {text}` is not understood", hint=f"for example {examples}")
    return found


def _counted(text: str, size: str, component: str) -> str:
    """Return a type of GPU without a number: one GPU per worker.

    >>> _counted("h100", "2x8", "dist.ddp"), _counted("h100", "", "utils.python"), _counted("4", "", "dist.ddp")
    ('h100:8', 'h100:1', '4')
    """
    if text[:1].isalpha() and ":" not in text:
        return f"{text}:{_workers(component, size)}"
    return text


def _workers(component: str, size: str) -> int:
    if not component.startswith("dist."):
        return 1
    from torchx.components.dist import parse_nnodes
    from torchx.components.structured_arg import JobSize

    size = size or "1x2"
    return parse_nnodes(size)[2] if component == "dist.ddp" else JobSize.parse(size).nproc_per_node


def _given(signature: Signature, words: Sequence[str]) -> dict[str, str]:
    from torchx.component_reader.arguments import HelpRequested, given
    from torchx.errors import SpecError

    try:
        return {name: texts[-1] for name, texts in given(signature, words).items()}
    except (HelpRequested, SpecError):  # the call of the component reports it
        return {}


def _configured(component: str) -> Mapping[str, str]:
    from torchx.config import get_configs

    return get_configs("component", component)


def _no_argument(signature: Signature, name: str, text: str) -> UsageError:
    option = "-h" if name == "h" else f"--{name}"
    size = signature.get("j") is not None
    return UsageError(
        f"component `{signature.name}` has no argument for `{option} {text}`",
        hint=f"its nodes are set by `-j {text}x1`"
        if name == "nodes" and size
        else f"its arguments: {', '.join(f'`--{p.name}`' for p in signature.options)}",
    )


def assume(run_args: TorchXRunArgs, *, always: bool) -> None:
    """Add CPUs and memory for the workers, or GPUs, of a job that asks for none, and say so.

    Call it for a scheduler that reserves or limits CPUs and memory.

    Args:
        always: say what the job gets even if that is what its component asks for anyway.
    """
    component, words = run_args.component_name, run_args.component_args_str
    if component not in _SIZED or run_args.component_args:
        return
    from torchx.component_reader.finder import get_component
    from torchx.component_reader.signature import read

    signature = read(get_component(component).fn, name=component)
    asked = {**_configured(component), **_given(signature, words)}
    missing = [name for name in ("cpu", "memMB") if name not in asked]
    if "h" in asked or not missing:
        return
    gpus = asked.get("gpu", "0").rpartition(":")[2]
    workers = _workers(component, asked.get("j", ""))
    count = int(gpus) if gpus.isdigit() else 0
    each, times = (_OF_GPU, count) if count else (_OF_WORKER, workers)
    defaults = {p.name: p.default for p in signature.options}
    amounts = {name: max(defaults[name], part * times) for name, part in zip(("cpu", "memMB"), each, strict=True)}
    amounts = {name: amounts[name] for name in missing}
    grown = [f"--{name}={amount}" for name, amount in amounts.items() if amount != defaults[name]]
    run_args.component_args_str = [*grown, *words]
    if grown or always:
        what = [_said(name, amount) for name, amount in amounts.items()] + ([] if "gpu" in asked else ["no GPU"])
        whose = f" for {count or workers} {'GPUs' if count else 'workers'}" if max(count, workers) > 1 else ""
        ask = [text for name, text in _EXAMPLES.items() if name not in asked]
        note(f"Assumed per node{whose}: {', '.join(what)}; to set them: {' '.join(ask)}, or -h NAME")


def _said(name: str, amount: int) -> str:
    return f"{amount} CPU{'s' * (amount > 1)}" if name == "cpu" else f"{size_text(amount << 20)} of memory"
