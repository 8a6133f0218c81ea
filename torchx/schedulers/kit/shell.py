"""Quotes words and variables for POSIX shell scripts, so that any content arrives unchanged."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from zipimport import zipimporter

from torchx.errors import SpecError

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def quote(text: str, late: Mapping[str, str] | None = None) -> str:
    r"""Quotes ``text`` as one shell word.

    Args:
        late: placeholders in ``text`` for values known only in the running job: placeholder -> name of the shell
            variable with the value.

    Raises:
        SpecError: ``text`` contains a NUL character, which cannot be passed to a program.

    >>> print(quote("plain"), quote("it's $5"))
    plain 'it'\''s $5'
    >>> print(quote("id=@JOB@/x y", {"@JOB@": "SLURM_JOB_ID"}))
    id="${SLURM_JOB_ID}"'/x y'
    """
    if "\0" in text:
        raise SpecError(f"`{text!r}` has a NUL character in it", hint="remove it: a program cannot be given one")
    for mark, name in (late or {}).items():
        if mark in text:
            rest = {m: n for m, n in (late or {}).items() if m != mark}
            pieces = [quote(piece, rest) if piece else "" for piece in text.split(mark)]
            return f'"${{{name}}}"'.join(pieces)
    if _PLAIN.issuperset(text) and text:
        return text
    return "'" + text.replace("'", "'\\''") + "'"


def is_name(text: str) -> bool:
    """Whether ``text`` is a valid name of a shell variable.

    >>> is_name("A_1"), is_name("1A"), is_name("A-B")
    (True, False, False)
    """
    return bool(text) and _NAME.issuperset(text) and not text[0].isdigit()


def exports(env: Mapping[str, str], late: Mapping[str, str] | None = None) -> list[str]:
    """Lines that export variables. Skips names that are invalid in the shell: :func:`env_words` handles these.

    >>> exports({"A": "b c", "X-Y": "1"})
    ["export A='b c'"]
    """
    return [f"export {name}={quote(value, late)}" for name, value in env.items() if is_name(name)]


def env_words(env: Mapping[str, str], late: Mapping[str, str] | None = None) -> list[str]:
    """Return the words ``env -- NAME=value ...`` for the names that :func:`exports` skips; empty if there are none.

    Raises:
        SpecError: a name is invalid in any environment.

    >>> env_words({"A": "b", "X-Y": "1"})
    ['env', '--', 'X-Y=1']
    """
    for name in env:
        if not name or "=" in name or "\0" in name:
            raise SpecError(f"`{name!r}` cannot be the name of an environment variable", hint="no `=` and no NUL in it")
    odd = [quote(f"{name}=", None) + quote(value, late) for name, value in env.items() if not is_name(name)]
    return ["env", "--", *odd] if odd else []  # `--`, since a name may look like an option of `env`


@functools.cache
def read_script(module: str, name: str) -> str:
    """Read a shell script next to a module, without its leading comment.

    Args:
        module: ``__file__`` of the module.
        name: file name of the script.
    """
    path = os.path.join(os.path.dirname(module), name)
    archive, in_archive, inside = path.partition(".pyz/")
    if in_archive:  # on the node of a batch job
        text = zipimporter(f"{archive}.pyz").get_data(inside).decode()
    else:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    while text.startswith("#"):
        text = text.partition("\n")[2]
    return text
