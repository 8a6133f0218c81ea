"""What a host of a training job runs.

SageMaker takes words of 256 characters at most, on one line, and gives a host its number in a file only. A command that
fits is given as it is. Any other is quoted as a line of shell, which is cut in pieces that the host puts together.
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_AlgorithmSpecification.html
https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from torchx.errors import SpecError
from torchx.schedulers.aws.tags import ENV_RANK0_HOST, ENV_REPLICA_ID, REPLICA
from torchx.schedulers.kit.shell import read_script
from torchx.specs.api import macros

MAX_WORD = 256
MAX_WORDS = 100
MAX_VALUE = 512

_JOIN = ["/bin/sh", "-c", 'eval "$(printf %s "$@")"', "torchx"]
_EXEC = "; exec "


def _head() -> str:
    return "; ".join(read_script(__file__, "host.sh").splitlines())


def render(words: list[str], env: Mapping[str, str], *, hosts: int) -> tuple[list[str], list[str], dict[str, str]]:
    """``ContainerEntrypoint``, ``ContainerArguments`` and ``Environment``.

    Args:
        words: entrypoint and arguments, with :data:`REPLICA` for the replica's number.
        hosts: how many there are.

    Raises:
        SpecError: it is longer than SageMaker takes.

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
            f"the command has {len(line)} characters; SageMaker takes at most {MAX_WORD * MAX_WORDS}",
            hint="put it into a script in the image, or in the workspace",
        )
    return list(_JOIN), pieces, {name: value for name, value in env.items() if name not in late}


def script(words: list[str], env: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """A shell script that runs the command, with its own arguments behind it; and ``Environment``."""
    late = _late(env)
    return f'#!/bin/sh\n{_line(words, late)} "$@"\n', {name: value for name, value in env.items() if name not in late}


def read(entrypoint: list[str], arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """The inverse of :func:`render`, with the macro for the host's number: the words of a command, and what of its
    environment stands in it. A command of others is as it is.

    >>> entrypoint, arguments, _ = render(["echo", f"a 'b' {REPLICA}"], {"K": REPLICA}, hosts=2)
    >>> read(entrypoint, arguments)
    (['echo', "a 'b' ${replica_id}"], {'K': '${replica_id}'})
    """
    if entrypoint != _JOIN:
        return [*entrypoint, *arguments], {}
    _, _, line = "".join(arguments).partition(_head())
    try:
        words = [w.replace("$_tx_k", macros.replica_id).replace("$_tx_n", "\n") for w in shlex.split(line)]
        start = words.index("exec")
    except ValueError:
        return [*entrypoint, *arguments], {}
    # `; export A=1; export B=2; exec ...`
    pairs = [words[i + 1].removesuffix(";").partition("=") for i in range(start) if words[i] == "export"]
    return words[start + 1 :], {name: value for name, _, value in pairs}


def _late(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that only the host can set: those with its number, and those that are too long for SageMaker."""
    return {name: value for name, value in env.items() if REPLICA in value or len(value) > MAX_VALUE}


def _line(words: list[str], late: Mapping[str, str]) -> str:
    for name in late:
        if not name.isidentifier():
            raise SpecError(f"a shell cannot set a variable named `{name}`")
    exports = "".join(f"; export {name}={_quote(value)}" for name, value in sorted(late.items()))
    return f"{_head()}{exports}{_EXEC}{' '.join(_quote(word) for word in words)}"


def _quote(word: str) -> str:
    quoted = "'" + word.replace("'", "'\"'\"'") + "'"
    return quoted.replace("\n", "'\"$_tx_n\"'").replace(REPLICA, "'\"$_tx_k\"'")
