"""What is masked, and what is left readable."""

from __future__ import annotations

import pytest

from torchx.util.secrets import MASK, is_secret_name, mask_args, mask_env, mask_text


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
    ],
)
def test_passwords_in_urls_are_masked(text: str, shown: str) -> None:
    """Only the password goes; who and where stay."""
    assert mask_text(text) == shown


def test_env_and_args_are_masked_in_a_copy() -> None:
    """The given values are not changed: the job needs them."""
    env = {"HF_TOKEN": "abc", "URL": "s3://a:b@c", "N": "1", "EMPTY_TOKEN": ""}
    assert mask_env(env) == {"HF_TOKEN": MASK, "URL": f"s3://a:{MASK}@c", "N": "1", "EMPTY_TOKEN": ""}
    assert env["HF_TOKEN"] == "abc"
    assert mask_args(["--token", "abc", "--token", "--x", "HF_TOKEN=abc", "--password=x", "plain"]) == [
        *("--token", MASK, "--token", "--x"),
        *(f"HF_TOKEN={MASK}", f"--password={MASK}", "plain"),
    ]
