"""Masking of secrets."""

from __future__ import annotations

import shlex

import pytest

from torchx.util.secrets import (
    AMBIGUOUS,
    CERTAIN,
    MASK,
    PLAIN,
    grade,
    mask_args,
    mask_env,
    mask_text,
    mask_told,
    mask_value,
)


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
    assert grade(name, "hunter2") in (AMBIGUOUS, CERTAIN)


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
    assert grade(name, "hunter2") == PLAIN


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("eos_token", "<|im_end|>"), ("pad_token", "x"), ("add_eos_token", "True"), ("pad_token_id", "0")),
        *(("use_auth", "basic"), ("use_auth_token", "True"), ("n_pass", "3"), ("num_pass", "x"), ("forward-pass", "x")),
        *(("MASK_TOKEN", "[MASK]"), ("data.eos_token", "</s>"), ("tokenizer.bosToken", "<s>"), ("auth", "none")),
        *(("my_token", "<x>"), ("my_token", "[x]"), ("my_token", "1e5"), ("my_token", "off"), ("max_token", "a")),
        *(("stop_token", "reserved_special_token_250"), ("sort_key", "a"), ("access_key_path", "/x")),
    ],
)
def test_words_of_language_models_are_plain(name: str, value: str) -> None:
    """Arguments of tokenizers, counts and switches are no credentials, in any form in which they are given."""
    assert grade(name, value) == PLAIN
    for args in (["--" + name, value], [f"--{name}={value}"], [f"{name}={value}"], ["sh", "-c", f"t --{name} {value}"]):
        assert mask_args(args) == args
    assert mask_env({name: value}) == {name: value}
    assert mask_value("cfg", {name: value}) == {name: value}


@pytest.mark.parametrize("name", ["MY_TOKEN", "token", "db_pass", "REGISTRY_AUTH", "MY_KEY", "auth"])
def test_ambiguous_values_are_masked_in_output_only(name: str) -> None:
    """Such a value is printed as a mask, and a record that can run again has it, unless it has the shape of a key."""
    key = "q8Zr1Xw0pLt7mBv3"
    for text in ("hunter2", "two words"):
        assert mask_args([f"--{name}", text]) == [f"--{name}", MASK]
        assert mask_args([f"--{name}", text], CERTAIN) == [f"--{name}", text]
        assert mask_env({name: text}, CERTAIN) == {name: text}
        assert mask_value("cfg", {name: text}, CERTAIN) == {name: text}
        line = f"t --{name} '{text}'"
        assert text not in mask_text(line)
        assert mask_text(line, CERTAIN) == line
    assert mask_args([f"--{name}={key}"], CERTAIN) == [f"--{name}={MASK}"]


@pytest.mark.parametrize("name", ["PASSWORD", "client_secret", "API_KEY", "access-key", "HF_TOKEN", "ACCESS_KEY_ID"])
@pytest.mark.parametrize("value", ["hunter2", "12345", "true", "<x>", "[x]"])
def test_certain_credentials_are_on_no_record(name: str, value: str) -> None:
    """A certain name decides alone: a password may be a number or a word."""
    assert grade(name, value) == CERTAIN
    assert mask_args([f"--{name}", value], CERTAIN) == [f"--{name}", MASK]


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
    """Only the password is masked; user and host remain."""
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
    """Values of secret names are masked in shell lines, lists of variables and JSON; the rest remains."""
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
    """Similar words and prose are not masked."""
    assert mask_text(text) == text


PLANTED = {
    "a Postgres password": "PGPASSWORD=hunter2secret psql",
    "a key of a service": "WANDB_KEY=hunter2secret",
    "a personal access token": "GH_PAT=hunter2secret",
    "a web token": "JWT=hunter2secret",
    "a short option": "train --pw hunter2secret",
    "a licence": "solver --license-key hunter2secret",
    "a user of curl": "curl -u me:hunter2secret https://h/x",
    "a user of curl, long": "curl --user 'me:hunter2secret' https://h/x",
    "a password of mysql": "mysql -h db -u root -phunter2secret name",
    "a password of sshpass": "sshpass -p hunter2secret ssh h",
    "a shared access signature": "azcopy https://a.blob.core.windows.net/c?sv=2022&sig=hunter2secret%3D&se=1",
    "a signed URL of S3": "wget https://b.s3.amazonaws.com/k?X-Amz-Signature=hunter2secret",
    "a webhook of Slack": "curl https://hooks.slack.com/services/T000/B000/hunter2secret",
    "a webhook of Discord": "curl https://discord.com/api/webhooks/123/hunter2secret",
    "Hugging Face by shape": "echo hf_hunter2secretABCDEFGHIJKL",
    "GitHub by shape": "git clone https://x:y@h ghp_hunter2secretABCDEFGHIJKL",
    "GitHub, fine-grained": "echo github_pat_hunter2secretABCDEFGH",
    "GitLab by shape": "echo glpat-hunter2secretABCDEF",
    "OpenAI by shape": "echo sk-proj-hunter2secretABCDEFGH",
    "Anthropic by shape": "echo sk-ant-hunter2secretABCDEFGH",
    "Stripe by shape": "echo sk_live_hunter2secretABCDEFGH",
    "Slack by shape": "echo xoxb-hunter2secret-ABCDEFGH",
    "npm by shape": "echo npm_hunter2secretABCDEFGHIJKL",
    "PyPI by shape": "echo pypi-AgEhunter2secretABCDEFGH",
    "SendGrid by shape": "echo SG.hunter2secretABCD.hunter2secretABCD",
    "a JSON web token by shape": "echo eyJhunter2secret.eyJhunter2secret.hunter2secret",
    "a private key": "-----BEGIN RSA PRIVATE KEY-----\nhunter2secret\n-----END RSA PRIVATE KEY-----",
    "a word within a word": "MYSECRET=hunter2secret",
    "a key of Azure": "AZURE_SUBSCRIPTION_KEY=hunter2secret",
    "an option with an equals sign": "--db-passwd=hunter2secret",
}


@pytest.mark.parametrize("text", PLANTED.values(), ids=PLANTED)
def test_planted_secrets_are_not_shown(text: str) -> None:
    """Secrets are masked by name or by form, in texts and in arguments."""
    assert "hunter2secret" not in mask_text(text)
    assert "hunter2secret" not in " ".join(mask_args(["sh", "-c", text]))
    if "PRIVATE KEY" not in text:
        assert "hunter2secret" not in " ".join(mask_args(shlex.split(text)))


def test_keys_of_amazon_and_google_by_shape() -> None:
    """Tokens consist of letters and digits of a fixed length, without free text."""
    assert mask_text("AKIAIOSFODNN7EXAMPLE") == f"AKIA{MASK}"
    assert mask_text("AIza" + "x" * 35) == f"AIza{MASK}"


@pytest.mark.parametrize(
    "text",
    [
        "train --token-length 512 --max-tokens 5",
        "MAX_TOKENS=5 NUM_TOKENS=7 TOKEN_TYPE=bpe",
        "--secret-name db --auth-url https://h --password-file /run/pw",
        "docker run -u 1000:1000 -p 8080:80 img",
        "python -u train.py --user me",
        "ssh -p 2222 h",
        "mysql -p name",
        "sk-learn hf_hub gh pr list",
        "PATH=/usr/bin:/bin PATTERN=x COMPAT=1 SASS=1",
        "--key-padding-mask 1 --sort-key a --primary-key id",
        "https://h/x?sigma=1&design=2",
        "git checkout 0123456789abcdef0123456789abcdef01234567",
        "--keyboard us --monkey 1 --passes 3 --compass n --bypass",
        "asian Asia AKIAB sk-",
    ],
)
def test_no_false_alarms(text: str) -> None:
    """Texts about credentials, or similar to credentials, are not masked."""
    assert mask_text(text) == text
    assert mask_args(text.split(" ")) == text.split(" ")


def test_a_long_text_is_masked_in_time() -> None:
    """Masking takes linear time: half a megabyte of a word full of parts of secret names.

    Were it quadratic, this would take hours.
    """
    text = "keytoken" * 64_000 + " --token abc"
    assert mask_text(text).endswith(f" --token {MASK}")


def test_what_the_command_line_tells_is_masked_elsewhere() -> None:
    """Secrets of the command line are masked in messages that repeat them."""
    args = ["run", "--token", "hunter2", "API_KEY=abcdef", "--pass", "1"]
    assert mask_told("hunter2 and abcdef of 1 user", args) == f"{MASK} and {MASK} of 1 user"


def test_env_and_args_are_masked_in_a_copy() -> None:
    """The original values are unchanged, because the job needs them."""
    env = {"HF_TOKEN": "abc", "URL": "s3://a:b@c", "N": "1", "EMPTY_TOKEN": ""}
    assert mask_env(env) == {"HF_TOKEN": MASK, "URL": f"s3://a:{MASK}@c", "N": "1", "EMPTY_TOKEN": ""}
    assert env["HF_TOKEN"] == "abc"
    assert mask_args(["--token", "abc", "--token", "--x", "HF_TOKEN=abc", "--password=x", "plain"]) == [
        *("--token", MASK, "--token", "--x"),
        *(f"HF_TOKEN={MASK}", f"--password={MASK}", "plain"),
    ]


@pytest.mark.parametrize("value", ["abc", ["abc"], {"a": "abc"}, 12345, True, [1]])
def test_any_value_under_the_name_of_a_secret(value: object) -> None:
    """It is masked as a whole, whatever its type, also inside other values."""
    assert mask_value("api_key", value) == MASK
    assert mask_value("x", {"api_key": value, "n": 1}) == {"api_key": MASK, "n": 1}
    assert mask_value("x", [{"api_key": value}]) == [{"api_key": MASK}]


@pytest.mark.parametrize("value", ["", None, 0, [], {}])
def test_no_value_under_the_name_of_a_secret(value: object) -> None:
    """There is nothing to hide."""
    assert mask_value("api_key", value) == value
