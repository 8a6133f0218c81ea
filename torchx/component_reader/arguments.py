"""Parser for the command line of a component: options by name, then ``*args``.

======================================  ================================================================
``--cpu 2`` ``--cpu=2``                 an option; ``--num-replicas`` is the same as ``--num_replicas``
``-j 2x2`` ``-j2x2`` ``--j 2x2``        an option with a one-letter name
``--debug`` ``--debug true``            a bool
``--env A=1 --env B=2``                 repeated dicts and lists are merged; other options must not repeat
``-- --epochs 3``                       all words after ``--`` are ``*args``, unchanged
``ls -l``                               so are all words from the first one that is not an option
======================================  ================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchx.component_reader.signature import Parameter, Signature
from torchx.component_reader.types import decode
from torchx.errors import SpecError
from torchx.specs.api import Gpus
from torchx.specs.options.cfg_literals import FALSE, TRUE
from torchx.util.notices import logger
from torchx.util.strings import did_you_mean, nearest

_HELP = "--help"
_AMOUNTS = ("memMB", "gpu", "gpus")


class HelpRequested(Exception):
    """The command line contains ``--help``."""


def parse(
    signature: Signature,
    words: Iterable[str],
    defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the value of each argument by name; ``*args`` is a list under its own name.

    Missing ones come from ``config``, then from ``defaults``; both have text or typed values.

    Raises:
        SpecError: an argument is unknown, missing, repeated, or of the wrong type.
        HelpRequested: ``--help`` is among the options.
    """
    given, rest = _scan(signature, list(words))
    values: dict[str, Any] = {}
    for source, table in (("default", defaults), ("argument", config)):
        values.update(_from_table(signature, table or {}, source))
    for parameter, texts in given.items():
        values[parameter] = _combined(signature, parameter, texts)
    var = signature.var
    if var is not None and (rest or var.name not in values):
        values[var.name] = [_decoded(signature, var, word) for word in rest]
    missing = [p for p in signature.options if p.required and p.name not in values]
    if missing:
        names = ", ".join(f"`--{p.name}`" for p in missing)
        raise SpecError(
            f"component `{signature.name}` needs {names}",
            hint=f"`torchx run {signature.name} --help` explains {'it' if len(missing) == 1 else 'them'}",
        )
    return {p.name: values.get(p.name, p.default) for p in signature.parameters}


def option_width(signature: Signature, words: list[str]) -> int:
    """Return the number of words that the first option and its value take; 0 if the component has no such option.

    >>> from torchx.component_reader.signature import read
    >>> def echo(msg: str = "", loud: bool = False) -> None: ...
    >>> [option_width(read(echo), words) for words in (["--msg", "a"], ["--loud", "--msg"], ["--dryrun"])]
    [2, 1, 0]
    """
    flags = {flag: p for p in signature.options for flag in p.flags}
    parameter, text = _option(words[0], flags)
    if parameter is None:
        return 0
    following = words[1] if len(words) > 1 else None
    if text is not None or following is None:
        return 1
    is_bool = parameter.shape.required().kind == "bool"
    return 1 + (not is_bool or _value(signature, parameter, words[0], following, flags) is not None)


def given(signature: Signature, words: Iterable[str]) -> dict[str, list[str]]:
    """Return the texts of each argument that a command line gives; errors are those of :func:`parse`."""
    return _scan(signature, list(words))[0]


def _scan(signature: Signature, words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Split a command line into the texts of each option, and the words of ``*args``."""
    flags = {flag: p for p in signature.options for flag in p.flags}
    given: dict[str, list[str]] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            return given, _positional(signature, words[at:])
        if not word.startswith("-") or word == "-":
            return given, _positional(signature, words[at - 1 :])
        parameter, text = _option(word, flags)
        if parameter is None:
            if word == _HELP or (word == "-h" and "-h" not in flags):
                raise HelpRequested
            raise _unknown(signature, word, flags)
        if text is None:
            following = words[at] if at < len(words) else None
            text = _value(signature, parameter, word, following, flags)
            at += text is following
        given.setdefault(parameter.name, []).append("true" if text is None else text)
    return given, []


def _option(word: str, flags: Mapping[str, Parameter]) -> tuple[Parameter | None, str | None]:
    """Split a word such as ``--cpu=2`` into parameter and text."""
    if not word.startswith("-"):
        return None, None
    name, equals, text = word.partition("=")
    found = flags.get(name) or (flags.get(name.replace("-", "_").replace("__", "--", 1)) if name[:2] == "--" else None)
    if found is not None:
        return found, text if equals else None
    if len(word) > 2 and word[:2] in flags:  # -j2x2
        return flags[word[:2]], word[2:]
    return None, None


def _value(
    signature: Signature, parameter: Parameter, word: str, following: str | None, flags: Mapping[str, Parameter]
) -> str | None:
    """Return the text of an option from the following word; None for a bool without a value."""
    if parameter.shape.required().kind == "bool":
        is_word = following is not None and following.strip().lower() in (*TRUE, *FALSE)
        return following if is_word or (following == "None" and parameter.shape.optional) else None
    if following is None or following == "--" or _option(following, flags)[0] is not None:
        raise SpecError(
            f"`{word}` of component `{signature.name}` has no value",
            hint=f"write `{word} VALUE`, or `{word}=VALUE` when the value looks like an option",
        )
    return following


def _positional(signature: Signature, words: list[str]) -> list[str]:
    if not words or signature.var is not None:
        return words
    first = next((p for p in signature.options if p.required), None) or next(iter(signature.options), None)
    hint = f"did you mean `--{first.name} {words[0]}`?" if first else "it takes no arguments"
    raise SpecError(f"component `{signature.name}` does not take the positional argument `{words[0]}`", hint=hint)


def _unknown(signature: Signature, word: str, flags: Mapping[str, Parameter]) -> SpecError:
    name = word.partition("=")[0]
    close = nearest(name, [f for f in flags if f.startswith("--")])
    hints = [f"did you mean `{close}`?"] if close else []
    if signature.var is not None:
        what = {"script_args": "the script"}.get(signature.var.name, f"`*{signature.var.name}`")
        hints.append(f"arguments for {what} go after `--`: `torchx run {signature.name} ... -- {word} ...`")
    elif not close:
        hints.append(f"`torchx run {signature.name} --help` lists them")
    return SpecError(f"component `{signature.name}` has no argument `{name}`", hint="; ".join(hints))


def _from_table(signature: Signature, table: Mapping[str, Any], source: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in table.items():
        parameter = signature.get(key)
        if parameter is None:
            names = [p.name for p in signature.parameters]
            hint = did_you_mean(key, names) or f"it has: {', '.join(names)}"
            if source == "argument":
                raise SpecError(f"component `{signature.name}` has no argument `{key}`", hint=hint)
            # Not an error: the config file also serves other versions of the component.
            logger("torchx").warning(
                "component `%s` has no argument `%s`, its configured default is ignored; %s", signature.name, key, hint
            )
            continue
        if parameter.kind != "var":
            values[parameter.name] = _decoded(signature, parameter, value)
            continue
        values[parameter.name] = [_decoded(signature, parameter, v) for v in _words(signature, parameter, value)]
    return values


def _words(signature: Signature, parameter: Parameter, value: Any) -> list[Any]:
    """Return configured ``*args`` as a list; a text is split as by a shell."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if not isinstance(value, str):
        raise _wrong(signature, parameter, f"`{value!r}` is not a list")
    import shlex

    try:
        return list(shlex.split(value))
    except ValueError as e:
        raise _wrong(signature, parameter, f"`{value}` cannot be split into words: {e}") from None


def _combined(signature: Signature, name: str, texts: list[str]) -> Any:
    parameter = next(p for p in signature.options if p.name == name)
    found = [_decoded(signature, parameter, text) for text in texts]
    if len(found) == 1:
        return found[0]
    if all(isinstance(v, list) for v in found):
        return [item for v in found for item in v]
    if all(isinstance(v, dict) for v in found):
        return {k: item for v in found for k, item in v.items()}
    shown = " and ".join(f"`{t}`" for t in texts)
    raise SpecError(f"`--{name}` of component `{signature.name}` is given more than once: {shown}", hint="keep one")


def _decoded(signature: Signature, parameter: Parameter, value: Any) -> Any:
    if value is None and not parameter.shape.optional:
        if parameter.default is None:  # `x: str = None`, which is common although the type excludes it
            return None
        raise _wrong(signature, parameter, "`None` is not a value of it")
    kind = ""
    if isinstance(value, str) and parameter.name in _AMOUNTS:
        if parameter.name == "memMB":
            value = in_mib(value)
        else:
            kind, _, value = value.rpartition(":")
    try:
        found = decode(value, parameter.shape)
        return Gpus(found, kind.strip()) if kind and isinstance(found, int) else found
    except ValueError as e:
        raise _wrong(signature, parameter, str(e)) from None


def in_mib(text: str) -> str:
    """Convert ``4G`` or ``512Mi`` to MiB; return other text unchanged.

    >>> in_mib("4G"), in_mib("1.5TiB"), in_mib("512"), in_mib("4X")
    ('4096', '1572864', '512', '4X')
    """
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = {"m": 1, "g": 1024, "t": 1024**2}.get(number[-1:])
    try:
        return text if unit is None else str(int(float(number[:-1]) * unit))
    except (ValueError, OverflowError):
        return text


def _wrong(signature: Signature, parameter: Parameter, why: str) -> SpecError:
    flag = f"*{parameter.name}" if parameter.kind == "var" else f"--{parameter.name}"
    return SpecError(
        f"argument `{flag}` of component `{signature.name}`: {why}",
        hint=f"its type is `{parameter.shape}`; `torchx run {signature.name} --help` explains it",
    )
