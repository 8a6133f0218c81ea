"""Renders the command of a training job's hosts.

SageMaker limits words to 256 characters without line ends, and passes a host its number only in a file. A command that
fits is used unchanged. Any other becomes a line of shell, split into words that the host joins again.
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_AlgorithmSpecification.html
https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from torchx.errors import SpecError
from torchx.schedulers.aws.tags import ENV_RANK0_HOST, REPLICA
from torchx.schedulers.kit.shell import exports, quote, read_script
from torchx.settings import ENV_REPLICA_ID
from torchx.specs.api import macros

MAX_WORD = 256
MAX_WORDS = 100
MAX_VALUE = 512

_JOIN = ["/bin/sh", "-c", 'eval "$(printf %s "$@")"', "torchx"]
_VARIABLES = {"\n": "_tx_n", REPLICA: "_tx_k"}
"""Parts of words that the host has in variables of ``host.sh``."""


def _head() -> str:
    return "; ".join(read_script(__file__, "host.sh").splitlines())


def render(words: list[str], env: Mapping[str, str], *, hosts: int) -> tuple[list[str], list[str], dict[str, str]]:
    """``ContainerEntrypoint``, ``ContainerArguments`` and ``Environment``; SpecError if the command is too long.

    ``words`` are entrypoint and arguments, with :data:`REPLICA` for the replica's number.

    >>> render(["python", "a.py"], {"A": "1"}, hosts=1)[:2]
    (['python'], ['a.py'])
    """
    late = _late(env)
    plain = all(len(word) <= MAX_WORD and "\n" not in word for word in words)
    if hosts == 1 and plain and not late and len(words) <= MAX_WORDS:
        alone = {ENV_REPLICA_ID: "0", ENV_RANK0_HOST: "localhost"}
        return words[:1], words[1:], {**alone, **env}
    line = _line(words, late)
    pieces = [line[i : i + MAX_WORD] for i in range(0, len(line), MAX_WORD)]
    if len(pieces) > MAX_WORDS:
        raise SpecError(
            f"the command has {len(line)} characters; SageMaker allows at most {MAX_WORD * MAX_WORDS}",
            hint="put it into a script in the image or in the workspace",
        )
    return list(_JOIN), pieces, {name: value for name, value in env.items() if name not in late}


def script(words: list[str], env: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Render a shell script that runs the command with the script's arguments appended, and ``Environment``."""
    late = _late(env)
    return f'#!/bin/sh\n{_line(words, late)} "$@"\n', {name: value for name, value in env.items() if name not in late}


def read(entrypoint: list[str], arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the inverse of :func:`render`, with the macro for the host's number: the words of a command, and the
    variables that it sets. Other commands are returned unchanged.

    >>> entrypoint, arguments, _ = render(["echo", f"a 'b' {REPLICA}"], {"K": REPLICA}, hosts=2)
    >>> read(entrypoint, arguments)
    (['echo', "a 'b' ${replica_id}"], {'K': '${replica_id}'})
    """
    if entrypoint != _JOIN:
        return [*entrypoint, *arguments], {}
    _, _, line = "".join(arguments).partition(_head())
    try:
        words = [_shown(word) for word in shlex.split(line)]
        start = words.index("exec")
    except ValueError:
        return [*entrypoint, *arguments], {}
    # `; export A=1; export B=2; exec ...`
    pairs = [words[i + 1].removesuffix(";").partition("=") for i in range(start) if words[i] == "export"]
    return words[start + 1 :], {name: value for name, _, value in pairs}


def _shown(word: str) -> str:
    """Return a word without variables of ``host.sh``; jobs of earlier versions have them without braces."""
    for name, text in (("_tx_n", "\n"), ("_tx_k", macros.replica_id)):
        word = word.replace(f"${{{name}}}", text).replace(f"${name}", text)
    return word


def _late(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that the host has to set: they contain its number, or are too long for SageMaker."""
    return {name: value for name, value in env.items() if REPLICA in value or len(value) > MAX_VALUE}


def _line(words: list[str], late: Mapping[str, str]) -> str:
    command = " ".join(quote(word, _VARIABLES) for word in words)
    return "; ".join([_head(), *exports(dict(sorted(late.items())), _VARIABLES), f"exec {command}"])
