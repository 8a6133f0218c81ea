"""Which values must never be shown, and how they are masked."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

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
    """``text`` with the passwords of URLs masked.

    >>> mask_text("postgres://me:pw@host/db")
    'postgres://me:********@host/db'
    """
    if "://" not in text or "@" not in text:
        return text
    import re

    return re.sub(r"(?i)(\b[a-z][a-z0-9+.\-]*://[^/\s:@]*:)([^/\s@]+)(@)", rf"\g<1>{MASK}\g<3>", text)


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
