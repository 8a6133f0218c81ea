"""The help of a component (``torchx run COMPONENT --help``), from its signature and docstring."""

from __future__ import annotations

import argparse  # only commands that print help import this module
import textwrap
from collections.abc import Callable
from inspect import cleandoc
from typing import Any

from torchx.component_reader.signature import REQUIRED, Parameter, Signature, read
from torchx.util.term import printable


def get_fn_docstring(fn: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """Return the description of a function and the help of its arguments, from its docstring.

    Google, reST and numpy styles are supported. Without a docstring, the description says that there is none.

    >>> def f(x: int) -> None:
    ...     '''Does it.
    ...
    ...     Args:
    ...         x: how often
    ...     '''
    >>> get_fn_docstring(f)
    ('Does it.', {'x': 'how often'})
    """
    doc = getattr(fn, "__doc__", None)
    if not doc:
        return f"`{getattr(fn, '__name__', fn)}` has no description: its function has no docstring.", {}
    from docstring_parser import parse

    found = parse(doc)
    parts = [p.strip() for p in (found.short_description, found.long_description) if p and p.strip()]
    parts[1:] = [_with_indent(p, doc) for p in parts[1:]]
    return "\n\n".join(parts), {p.arg_name.lstrip("*"): (p.description or "").strip() for p in found.params}


def _with_indent(text: str, doc: str) -> str:
    """Restore the indent of the first line of a docstring section, which may be an example; the parser strips it."""
    before = cleandoc(doc).partition(text)[0].rpartition("\n")[2]
    return f"{before}{text}" if before.isspace() else text


class TorchXArgumentHelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help formatter that keeps the lines of the description, and shows the default of each argument."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)  # paths and images have hyphens

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if action.default is argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            return text
        if action.default is None and not action.required:
            return text
        note = "required" if action.required else f"default: {action.default}".replace("%", "%%")
        return f"{text} ({note})" if text else f"({note})"


def format_help(fn: Callable[..., Any], *, name: str = "") -> str:
    """Return the help page of a component, under ``name``.

    >>> from torchx.components.utils import touch
    >>> print(format_help(touch).splitlines()[0])
    usage: torchx run <run options> utils.touch --file FILE [--image IMAGE]
    """
    signature = read(fn, name=name)
    description, helps = get_fn_docstring(fn)
    parser = argparse.ArgumentParser(
        prog=f"torchx run <run options> {signature.name}",
        usage=_usage(signature),
        description=_plain(description),
        formatter_class=TorchXArgumentHelpFormatter,
        add_help=False,
    )
    group = parser.add_argument_group("arguments")
    for p in sorted(signature.options, key=lambda p: not p.required):
        group.add_argument(
            *sorted(p.flags, key=len),
            dest=p.name,
            metavar=_metavar(p),
            required=p.required,
            default=None if p.default is REQUIRED else p.default,
            help=_help(p, helps),
        )
    if signature.var is not None:
        text = _plain(helps.get(signature.var.name, ""))
        group.add_argument(f"-- {signature.var.name}", metavar="", dest="_", default=argparse.SUPPRESS, help=text)
    if signature.get("help") is None:
        group.add_argument("--help", action="help", default=argparse.SUPPRESS, help="print this page")
    return parser.format_help()


def _help(p: Parameter, helps: dict[str, str]) -> str:
    text = _plain(" ".join(helps.get(p.name, "").split()))
    shape = p.shape.required()  # an optional argument does not show `None`
    return f"{shape}. {text}" if text else str(shape)


def _metavar(p: Parameter) -> str:
    return "[true|false]" if p.shape.required().kind == "bool" else p.name.upper()


def _plain(text: str) -> str:
    """Prepare docstring text for argparse and a terminal: single backticks, no control characters."""
    return printable(text, lines=True).replace("``", "`").replace("%", "%%")


def _usage(signature: Signature) -> str:
    words = []
    for p in sorted(signature.options, key=lambda p: not p.required):
        word = f"{min(p.flags, key=len)} {_metavar(p)}"
        words.append(word if p.required else f"[{word}]")
    if signature.var is not None:
        words.append(f"[-- {signature.var.name} ...]")
    lines = [f"torchx run <run options> {signature.name}"]
    for word in words:
        if len(lines[-1]) + len(word) > 100:
            lines.append("           ")
        lines[-1] += f" {word}"
    return "\n".join(lines).replace("%", "%%")
