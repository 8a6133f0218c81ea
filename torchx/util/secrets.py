"""Detection and masking of secrets in names, texts, environments and arguments."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping

from torchx.util.redaction import MASK, learn, redact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Match
    from typing import Any

__all__ = ["CERTAIN", "MASK", "grade", "mask_args", "mask_env", "mask_text", "mask_told", "mask_value"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLAIN, AMBIGUOUS, CERTAIN = 0, 1, 2
"""Grades: shown; masked in what is printed, but on record, so that a job can run again; in no file and no output."""

# The table of grades. Words in names of environment variables and options, the first row that applies counts. Sets of
# words instead of a regular expression, which would take every `torchx run` 4 ms to compile.
# Last words of names that concern a credential but do not hold one: `--token-length 512`, `SECRET_NAME`: plain.
_ABOUT = _words(
    """
    budget count dim dims dir embedding embeddings enabled endpoint expiry file folder id ids len length level
    limit lr max method min mode n name num number path port position provider rate ratio size step steps
    timeout ttl type uri url usage version vocab
    """
)
# Words anywhere, and ends of words (`PGPASSWORD`, `MYSECRET`, `apitoken`): certain.
_CERTAIN = _words("pwd pw pat jwt sas passphrase credential credentials authorization bearer cookie signature")
_CERTAIN_ENDINGS = (
    *("password", "passwd", "secret", "apikey", "accesskey", "secretkey", "privatekey", "authkey"),
    *("apitoken", "accesstoken", "authtoken"),
)
# Ends of words, or whole words, that may mean something else; then it depends on the word before and on the value.
_MAYBE_ENDINGS, _MAYBE = ("token",), _words("pass auth")
# The word before those, or before `key`: of tokenizers, counts, switches and data: plain.
_PLAIN_BEFORE = _words(
    """
    begin bos cache cls decoder end eod eom eos eot fim foreign forward group image img infix join mask max middle n
    newline num one pad partition per prefix primary sep single sort special start stop suffix think two unk use video
    warmup audio
    """
)
# The word before `token` or `key`: certain.
_CERTAIN_BEFORE = _words(
    """
    access account anthropic api app auth aws azure cohere comet databricks datadog dd deploy encryption gcp gemini gh
    github gitlab gpg groq hf hmac huggingface langsmith license master mistral neptune npm openai pgp pinecone private
    pypi refresh replicate rsa secret sendgrid service session shared signing slack ssh storage stripe subscription
    together vault wandb webhook
    """
)
_PLAIN_VALUES = _words("true false yes no on off none null")  # and numbers, `<...>`, `[...]`

# Tokens that are recognizable by their form alone, whatever their name. Group 1 is not masked.
_SHAPES = (
    r"\b(hf_|gh[pousr]_|github_pat_|glpat-|npm_|dckr_pat_|pypi-AgE|[rs]k_live_|sk-|xox[abprs]-)[\w-]{16,}",
    r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
    r"\b(AIza)[\w-]{35}",
    r"\b(SG\.)[\w-]{16,}\.[\w-]{16,}",
    r"(?<![\w-])(?=[\w-]+\.eyJ[\w-]{8,}\.)([\w-]*?\beyJ)[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*",  # looks ahead once a word
    r"(hooks\.slack\.com/(?:services|workflows|triggers)/)[\w/-]+",
    r"(discord(?:app)?\.com/api/webhooks/\d+/)[\w-]+",
    r"([?&](?:sig|X-Amz-Signature|X-Goog-Signature)=)[^\s&'\"]+",
    r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)[\s\S]*?(?=-----END|\Z)",
    # passwords without a name: `curl -u me:pw`, `mysql -ppw`, `sshpass -p pw`
    r"((?:^|\s)(?:-u|--user)[ =]'?\"?(?!\d+:\d+\b)[^\s:'\"=]+:)[^\s'\"]+",
    r"(\b(?:mysql\w*|mariadb[\w-]{0,40})\s(?:[^|;&\n]{0,200}?\s)?-p)[^\s'\"]+",
    r"(\bsshpass\s+-p\s*)[^\s'\"]+",
)
_MARKS = (
    *("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "_pat_", "glpat-", "npm_", "pypi-AgE", "k_live_", "sk-", "xox"),
    *("AKIA", "ASIA", "AIza", "SG.", "eyJ", "hooks.slack", "webhooks/", "sig=", "ignature=", "PRIVATE KEY"),
    *("-u ", "--user", "mysql", "mariadb", "sshpass"),
)
"""Every text that matches a shape contains one of these, so most texts need no regular expression."""

# Every name for which is_secret_name() is true contains one of these.
_STEMS = ("token", "secret", "pass", "pw", "jwt", "credential", "auth", "bearer", "cookie", "signature", "key")
_JOINED = ("_pat", "pat=", "-pat", "_sas", "sas=", "-sas")
_ANY_STEM = "|".join(stem.strip("=") for stem in (*_STEMS, *_JOINED))
_NAME = rf"[\w.-]{{0,80}}(?:{_ANY_STEM})[\w.-]{{0,80}}"  # bounded: linear in the text
_QUOTED = r"""'[^'\n]*'|"[^"\n]*\""""
_BARE = r"""[^\s'",;&)}\]]"""
_ASSIGNED = (
    # `--token x` and `TOKEN=x` on a command line, `"token": "x"` in JSON, `X-Api-Token: x` in HTTP
    rf"""(?<![\w.-])(?:(?P<name1>--?{_NAME})\s+(?P<value1>{_QUOTED}|[^\s'"-][^\s'"]*)"""
    rf"""|(?P<name2>{_NAME})=(?P<value2>{_QUOTED}|[^\s'"]*?(?=[,;&][\w.-]+=|[\s'"]|$))"""
    rf"""|["'](?P<name3>{_NAME})["']\s*:\s*(?P<value3>{_QUOTED}|{_BARE}+)"""
    rf"""|(?P<name4>authorization|cookie|\w{{1,80}}-{_NAME}):\s*(?P<value4>(?:(?:bearer|basic|token)\s+)?[^\s'"]+))"""
)
_REFERENCES = ("env:", "cmd:", "file:", "k8s:", "aws-sm:")  # kinds of torchx.specs.Secret
_MIN_SECRET_CHARS = 4


def grade(name: str, value: object) -> int:
    """How confidential the value of a variable or option is: ``PLAIN``, ``AMBIGUOUS`` or ``CERTAIN``.

    >>> grade("HF_TOKEN", "abc"), grade("clientSecret", "abc"), grade("PGPASSWORD", "1"), grade("WANDB_KEY", "abc")
    (2, 2, 2, 2)
    >>> grade("MY_TOKEN", "abc"), grade("DB_PASS", "abc"), grade("MY_TOKEN", "q8Zr1Xw0pLt7mBv3")
    (1, 1, 2)
    >>> grade("--eos_token", "<|im_end|>"), grade("MASK_TOKEN", "[MASK]"), grade("pad_token_id", "0"), grade("KEY", "a")
    (0, 0, 0, 0)
    """
    if not value:
        return PLAIN
    name = name.lstrip("-")
    loud = name.isupper()  # `MY_KEY` is rather a credential than `--my-key`
    if not loud and not name.islower():
        name = "".join(f"_{c}" if c.isupper() and i and name[i - 1].islower() else c for i, c in enumerate(name))
    words = [word.rstrip("0123456789") for word in name.lower().replace("-", "_").replace(".", "_").split("_")]
    while words and not words[-1]:
        words.pop()
    if len(words) > 1 and words[-1] in _ABOUT and words[-2:] != ["key", "id"]:  # AWS_ACCESS_KEY_ID
        return PLAIN
    if any(word in _CERTAIN or word.endswith(_CERTAIN_ENDINGS) for word in words):
        return CERTAIN
    found = max((_grade_word(before, word, loud) for before, word in itertools.pairwise(["", *words])), default=PLAIN)
    maybe = found or any(word in _MAYBE or word.endswith(_MAYBE_ENDINGS) for word in words)
    if maybe and _has_shape_of_key(str(value)):
        return CERTAIN
    if words[:1] == ["use"]:  # `use_auth_token`
        return PLAIN
    return PLAIN if found == AMBIGUOUS and _is_plain(str(value)) else found


def _grade_word(before: str, word: str, loud: bool) -> int:
    key = word == "key"
    if before in _CERTAIN_BEFORE and (key or word.endswith(_MAYBE_ENDINGS)):
        return CERTAIN
    maybe = (before and loud) if key else (word in _MAYBE or word.endswith(_MAYBE_ENDINGS))
    return AMBIGUOUS if maybe and before not in _PLAIN_BEFORE else PLAIN


def _is_plain(value: str) -> bool:
    if value.startswith(("<", "[")) or value.lower() in _PLAIN_VALUES:
        return True
    try:
        float(value)
    except ValueError:
        return False
    return True


def _has_shape_of_key(value: str) -> bool:
    """Whether a value looks random: sixteen or more letters and digits that alternate.

    >>> _has_shape_of_key("q8Zr1Xw0pLt7mBv3"), _has_shape_of_key("reserved_special_token_250")
    (True, False)
    """
    chars = [c for c in value if c not in "+/=_.~-"]
    if len(value) < 16 or value[0] in "/.~" or not (value.isascii() and "".join(chars).isalnum()):
        return False
    kinds = ["0" if c.isdigit() else "A" if c.isupper() else "a" for c in chars]
    return "0" in kinds and sum(a != b for a, b in itertools.pairwise(kinds)) >= 4


def learn_environment(*, words: bool = True) -> None:
    """Masks the values of this process's own credentials in its output: jobs may have been given them.

    Args:
        words: also values that are short words, such as ``postgres``, which a name or a key may contain.
    """
    for name, value in os.environ.items():
        is_word = value.isalpha() and len(value) < 12 and not words
        if grade(name, value) and not value.startswith("/") and not is_word:  # but no paths, such as SSH_AUTH_SOCK
            learn(value)


def mask_text(text: str, least: int = AMBIGUOUS) -> str:
    """Mask passwords in URLs, values of secret names, tokens of known forms, and known secret values.

    Here and below, ``least`` is the lowest grade that is masked: for a record that can run again, ``CERTAIN``.

    >>> mask_text("postgres://me:pw@host/db")
    'postgres://me:********@host/db'
    >>> mask_text("train --hf-token abc --env A=1,API_KEY=abc,B=2")
    'train --hf-token ******** --env A=1,API_KEY=********,B=2'
    """
    text = redact(text)
    if "://" in text and "@" in text:
        import re

        text = re.sub(r"(?i)(\b[a-z][a-z0-9+.\-]{0,40}://[^/\s:@]*:)([^/\s@]+)(@)", rf"\g<1>{MASK}\g<3>", text)
        text = re.sub(r"(?i)(\bhttps?://)([^/\s:@]+)(@)", rf"\g<1>{MASK}\g<3>", text)
    if any(mark in text for mark in _MARKS):
        import re

        for shape in _SHAPES:
            text = re.sub(shape, rf"\g<1>{MASK}", text)
    if " " not in text and "=" not in text and ":" not in text:
        return text
    lowered = text.lower()
    if any(stem in lowered for stem in (*_STEMS, *_JOINED)):
        import re

        return re.sub(_ASSIGNED, lambda found: _mask_assigned(found, least), text, flags=re.IGNORECASE)
    return text


def mask_told(text: str, args: list[str]) -> str:
    """Mask in ``text`` all secrets that occur in ``args``, in addition to :func:`mask_text`.

    >>> mask_told("ValueError: abcd is not a token", ["--token", "abcd"])
    'ValueError: ******** is not a token'
    """
    text = mask_text(text)
    for arg, masked in zip(args, mask_args(args), strict=True):
        value = arg if masked == MASK else arg.partition("=")[2] if masked.endswith(f"={MASK}") else ""
        if len(value) >= _MIN_SECRET_CHARS:
            text = text.replace(value, MASK)
    return text


def mask_env(env: Mapping[str, str], least: int = AMBIGUOUS) -> dict[str, str]:
    """Return a copy of ``env`` for display, with secrets masked.

    >>> mask_env({"HF_TOKEN": "abc", "EPOCHS": "3"})
    {'HF_TOKEN': '********', 'EPOCHS': '3'}
    """
    return {
        k: v if getattr(v, "is_reference", False) else MASK if grade(k, v) >= least else mask_text(v, least)
        for k, v in env.items()
    }


def mask_value(key: str, value: Any, least: int = AMBIGUOUS) -> Any:
    """Return the value of a run option for display, with secrets masked, also in lists and dicts.

    >>> mask_value("api_key", "abc"), mask_value("cfg", {"password": "x", "n": 1})
    ('********', {'password': '********', 'n': 1})
    """
    if grade(key, value) >= least:
        return MASK
    if isinstance(value, str):
        return mask_text(value, least)
    if isinstance(value, dict):
        return {k: mask_value(str(k), v, least) for k, v in value.items()}
    return [mask_value("", item, least) for item in value] if isinstance(value, list) else value


def mask_args(args: list[str], least: int = AMBIGUOUS) -> list[str]:
    """Return a copy of arguments for display, with secrets masked: ``--token X``, ``--token=X``, ``TOKEN=X``, ...

    >>> mask_args(["--api-key", "abc", "--hf_token=abc", "x=1"])
    ['--api-key', '********', '--hf_token=********', 'x=1']
    """
    shown: list[str] = []
    before, option, short_p = "", "", False
    for arg in args:
        if grade(option, arg) >= least and not arg.startswith("-"):
            shown.append(arg if before == "--secret" and _is_reference(arg) else MASK)
            before, option = arg, ""
            continue
        name, eq, value = arg.partition("=")
        option = name if arg.startswith("-") and not eq else ""
        if arg == "-p" and before.endswith("sshpass"):
            option = "password"
        user, colon, password = arg.partition(":")
        if before in ("-u", "--user") and colon and not (user + password).isdigit():  # `curl -u me:pw`
            shown.append(f"{user}:{MASK}")
        elif short_p and arg.startswith("-p") and len(arg) > 2:  # `mysql -ppw`
            shown.append(f"-p{MASK}")
            option = ""
        else:
            shown.append(f"{name}={MASK}" if grade(name, value) >= least else mask_text(arg, least))
        before, short_p = name, short_p or "mysql" in name or "mariadb" in name
    return shown


def _is_reference(word: str) -> bool:
    """Whether a word is a valid value of ``torchx run --secret``: a name, or ``NAME=KIND:...``.

    >>> _is_reference("HF_TOKEN"), _is_reference("KEY=file:~/key"), _is_reference("hunter2")
    (True, True, False)
    """
    name, _, reference = word.partition("=")
    if reference:
        return reference.startswith(_REFERENCES)
    return name.isupper() and grade(name, "x") > PLAIN


def _mask_assigned(found: Match[str], least: int) -> str:
    kind = found.lastgroup or ""
    name, value = found[f"name{kind[-1]}"], found[kind]
    if grade(name, value.strip("'\"")) < least or value.startswith(_REFERENCES):
        return found[0]
    if name == "--secret" and _is_reference(value):
        return found[0]
    quote = value[0] if value[0] in "'\"" else ""
    return f"{found[0][: -len(value)]}{quote}{MASK}{quote}"
