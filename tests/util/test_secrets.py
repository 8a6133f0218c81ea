"""What is masked, and what is left readable."""

from __future__ import annotations

import pytest

from torchx.util.secrets import MASK, is_secret_name, mask_args, mask_env, mask_text, mask_told


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN",
        "db-password",
        "DB_PASS",
        "MYSQL_PWD",
        "GITHUB_TOKEN_2",
        "clientSecret",
        "accessToken",
        "api.key",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "REGISTRY_AUTH",
        "APIKEY",
    ],
)
def test_names_of_credentials_are_known(name: str) -> None:
    """The names that common services give their credentials are recognised."""
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "KEY",
        "SORT_KEY",
        "PATH",
        "COMPASS",
        "AUTHOR",
        "MAX_TOKENS",
        "SECRETARY",
        "",
        "_",
        "--",
    ],
)
def test_other_names_are_not(name: str) -> None:
    """Names that only look alike stay readable."""
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://me:pw@host/db", f"postgres://me:{MASK}@host/db"),
        ("redis://:pw@host", f"redis://:{MASK}@host"),
        ("https://me:p%40w@host/x?y=1 and http://a:b@c", f"https://me:{MASK}@host/x?y=1 and http://a:{MASK}@c"),
        ("https://host/path@1", "https://host/path@1"),
        ("git@github.com:org/repo", "git@github.com:org/repo"),
        ("https://ghp_abc@github.com/o/r ssh://git@h/r", f"https://{MASK}@github.com/o/r ssh://git@h/r"),
    ],
)
def test_passwords_in_urls_are_masked(text: str, shown: str) -> None:
    """Only the password goes; who and where stay."""
    assert mask_text(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("curl --password hunter2 -v", f"curl --password {MASK} -v"),
        ("curl --password 'hunter 2' -v", f"curl --password '{MASK}' -v"),
        ("HF_TOKEN=hunter2 python train.py", f"HF_TOKEN={MASK} python train.py"),
        ("--env=HF_TOKEN=hunter2", f"--env=HF_TOKEN={MASK}"),
        ("A=1,HF_TOKEN=hun,ter2,B=2", f"A=1,HF_TOKEN={MASK},B=2"),
        ("https://h/x?access_token=hunter2&y=1", f"https://h/x?access_token={MASK}&y=1"),
        ('{"api_key": "hunter2", "n": 1}', f'{{"api_key": "{MASK}", "n": 1}}'),
        ("curl -H 'Authorization: Bearer hunter2' u", f"curl -H 'Authorization: {MASK}' u"),
        ("curl -H 'X-Api-Key: hunter2'", f"curl -H 'X-Api-Key: {MASK}'"),
    ],
    ids=["option", "quoted", "variable", "option of variables", "list", "query", "json", "authorization", "header"],
)
def test_secrets_inside_of_a_text_are_masked(text: str, shown: str) -> None:
    """A shell line, a list of variables, JSON: what is given to a secret name goes, the rest stays."""
    assert mask_text(text) == shown
    assert "hunter" not in "".join(mask_args(["sh", text]))


@pytest.mark.parametrize(
    "text",
    [
        "train --tokenizer gpt2 --max-tokens 5 --sort-key a",
        "TOKENIZERS_PARALLELISM=true python train.py --lr 0.1",
        "RuntimeError: invalid token: found <eos>",
        "--token --verbose x",
        "pass the key to the author",
    ],
)
def test_other_texts_are_left_alone(text: str) -> None:
    """Words that only look alike, and prose, stay readable."""
    assert mask_text(text) == text


def test_a_long_text_is_masked_in_time() -> None:
    """Masking is linear in the text: half a megabyte of one word, full of what secret names are made of.

    Were it quadratic, this would take hours.
    """
    text = "keytoken" * 64_000 + " --token abc"
    assert mask_text(text).endswith(f" --token {MASK}")


def test_what_the_command_line_tells_is_masked_elsewhere() -> None:
    """A message that repeats a secret of the command line shows it as little as the command line itself."""
    args = ["run", "--token", "hunter2", "API_KEY=abcdef", "--pass", "1"]
    assert mask_told("hunter2 and abcdef of 1 user", args) == f"{MASK} and {MASK} of 1 user"


def test_env_and_args_are_masked_in_a_copy() -> None:
    """The given values are not changed: the job needs them."""
    env = {"HF_TOKEN": "abc", "URL": "s3://a:b@c", "N": "1", "EMPTY_TOKEN": ""}
    assert mask_env(env) == {"HF_TOKEN": MASK, "URL": f"s3://a:{MASK}@c", "N": "1", "EMPTY_TOKEN": ""}
    assert env["HF_TOKEN"] == "abc"
    assert mask_args(["--token", "abc", "--token", "--x", "HF_TOKEN=abc", "--password=x", "plain"]) == [
        *("--token", MASK, "--token", "--x"),
        *(f"HF_TOKEN={MASK}", f"--password={MASK}", "plain"),
    ]
