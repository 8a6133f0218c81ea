"""Which values must never be shown, and how they are masked."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Match

MASK = "********"

# Words by which names of environment variables and options say that the value is a credential. Sets of words and
# not one expression: compiling it would take every `torchx run` 4 ms.
_WORDS = frozenset(
    [
        "token",
        "secret",
        "password",
        "passwd",
        "pass",
        "pwd",
        "passphrase",
        "credential",
        "credentials",
        "auth",
        "authorization",
        "bearer",
        "cookie",
        "signature",
        "apikey",
        "accesskey",
        "secretkey",
        "privatekey",
        "apitoken",
        "accesstoken",
        "authtoken",
    ]
)
_WORDS_BEFORE_KEY = frozenset({"api", "access", "secret", "private", "encryption", "signing", "account", "master"})

# One of these is in every name that is_secret_name knows.
_STEMS = ("token", "secret", "pass", "pwd", "credential", "auth", "bearer", "cookie", "signature", "key")
_NAME = rf"[\w.-]{{0,80}}(?:{'|'.join(_STEMS)})[\w.-]{{0,80}}"  # bounded: linear in the text
_QUOTED = r"""'[^'\n]*'|"[^"\n]*\""""
_BARE = r"""[^\s'",;&)}\]]"""
_ASSIGNED = (
    # `--token x` of a shell line, `TOKEN=x` of it or of a list, `"token": "x"` of JSON, `X-Api-Token: x` of HTTP
    rf"""(?<![\w.-])(?:(?P<name1>--?{_NAME})\s+(?P<value1>{_QUOTED}|[^\s'"-][^\s'"]*)"""
    rf"""|(?P<name2>{_NAME})=(?P<value2>{_QUOTED}|[^\s'"]*?(?=[,;&][\w.-]+=|[\s'"]|$))"""
    rf"""|["'](?P<name3>{_NAME})["']\s*:\s*(?P<value3>{_QUOTED}|{_BARE}+)"""
    rf"""|(?P<name4>authorization|cookie|\w{{1,80}}-{_NAME}):\s*(?P<value4>(?:(?:bearer|basic|token)\s+)?[^\s'"]+))"""
)
_LEAST_SECRET = 4


def is_secret_name(name: str) -> bool:
    """True for names such as ``WANDB_API_KEY``, ``HF_TOKEN``, ``db-password``, ``clientSecret``.

    >>> is_secret_name("HF_TOKEN"), is_secret_name("AWS_SECRET_ACCESS_KEY"), is_secret_name("clientSecret")
    (True, True, True)
    >>> is_secret_name("TOKENIZERS_PARALLELISM"), is_secret_name("KEY"), is_secret_name("DATASET")
    (False, False, False)
    """
    if not name.isupper() and not name.islower():
        name = "".join(f"_{c}" if c.isupper() and i and name[i - 1].islower() else c for i, c in enumerate(name))
    words = [word.rstrip("0123456789") for word in name.lower().replace("-", "_").replace(".", "_").split("_")]
    return any(word in _WORDS for word in words) or any(
        word in _WORDS_BEFORE_KEY and after == "key" for word, after in itertools.pairwise(words)
    )


def mask_text(text: str) -> str:
    """``text`` with the passwords of URLs masked, and what it gives to a secret name.

    >>> mask_text("postgres://me:pw@host/db")
    'postgres://me:********@host/db'
    >>> mask_text("train --hf-token abc --env A=1,API_KEY=abc,B=2")
    'train --hf-token ******** --env A=1,API_KEY=********,B=2'
    """
    if "://" in text and "@" in text:
        import re

        text = re.sub(r"(?i)(\b[a-z][a-z0-9+.\-]*://[^/\s:@]*:)([^/\s@]+)(@)", rf"\g<1>{MASK}\g<3>", text)
        text = re.sub(r"(?i)(\bhttps?://)([^/\s:@]+)(@)", rf"\g<1>{MASK}\g<3>", text)
    if " " not in text and "=" not in text and ":" not in text:
        return text
    lowered = text.lower()
    if any(stem in lowered for stem in _STEMS):
        import re

        return re.sub(_ASSIGNED, _mask_assigned, text, flags=re.IGNORECASE)
    return text


def mask_told(text: str, args: list[str]) -> str:
    """``text`` with the secrets masked that stand in ``args``, under whatever name it gives them.

    >>> mask_told("ValueError: abcd is no token", ["--token", "abcd"])
    'ValueError: ******** is no token'
    """
    text = mask_text(text)
    for arg, shown in zip(args, mask_args(args)):  # noqa: B905  # of the same length
        value = arg if shown == MASK else arg.partition("=")[2] if shown.endswith(f"={MASK}") else ""
        if len(value) >= _LEAST_SECRET:
            text = text.replace(value, MASK)
    return text


def mask_env(env: Mapping[str, str]) -> dict[str, str]:
    """A copy of ``env`` fit to be shown: values under secret names, and passwords in URLs, are masked.

    >>> mask_env({"HF_TOKEN": "abc", "EPOCHS": "3"})
    {'HF_TOKEN': '********', 'EPOCHS': '3'}
    """
    return {k: MASK if v and is_secret_name(k) else mask_text(v) for k, v in env.items()}


def mask_args(args: list[str]) -> list[str]:
    """A copy of command-line arguments fit to be shown: ``--token X``, ``--token=X``, ``TOKEN=X``, URL passwords.

    >>> mask_args(["--api-key", "abc", "--hf_token=abc", "x=1"])
    ['--api-key', '********', '--hf_token=********', 'x=1']
    """
    shown: list[str] = []
    hide_next = False
    for arg in args:
        if hide_next and not arg.startswith("-"):
            shown.append(MASK)
            hide_next = False
            continue
        name, eq, _ = arg.partition("=")
        secret = is_secret_name(name.lstrip("-"))
        hide_next = secret and not eq and arg.startswith("-")
        shown.append(f"{name}={MASK}" if secret and eq else mask_text(arg))
    return shown


def _mask_assigned(found: Match[str]) -> str:
    kind = found.lastgroup or ""
    name, value = found[f"name{kind[-1]}"], found[kind]
    if not value or not is_secret_name(name.lstrip("-")):
        return found[0]
    quote = value[0] if value[0] in "'\"" else ""
    return f"{found[0][: -len(value)]}{quote}{MASK}{quote}"
