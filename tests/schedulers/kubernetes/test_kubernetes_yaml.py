"""The output of a dry run is read unchanged by `kubectl apply`: strings remain strings in every version of YAML."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchx.schedulers.kit.manifests import to_yaml

yaml = pytest.importorskip("yaml")

HOSTILE = [
    *(
        "1e-4",
        "1E5",
        "12e03",
        "+1",
        "-1",
        ".5",
        "5.",
        "1.5e3",
        "0o17",
        "0O17",
        "017",
        "0x1F",
        "0b11",
        "1_000",
        "1,000",
        "190:20:30",
    ),
    *("y", "Y", "n", "N", "yes", "No", "on", "OFF", "true", "False", "null", "Null", "~", "", "=", "<<"),
    *(".inf", "-.INF", "+.Inf", ".nan", ".NaN", "2026-11-22", "2026-1-2", "2026-11-22T10:00:00Z", "2026-1-2 3:4:5"),
    *(
        "-",
        "- a",
        "a: b",
        "a #b",
        "#a",
        "&a",
        "*a",
        "!a",
        "|",
        ">",
        "'a'",
        '"a"',
        "%a",
        "@a",
        "`a`",
        "[a]",
        "{a}",
        "?",
        ": ",
    ),
    *(
        "a\nb",
        "\n",
        " a",
        "a ",
        "\t",
        "\u2028",
        "\x85",
        "\ufeff",
        "é",
        "🙂",
        "---",
        "...",
        "1Gi",
        "100m",
        "0.1.2",
        "1e",
        "0x",
    ),
]

# What a plain scalar means in YAML 1.1 (https://yaml.org/type/), in the core schema of 1.2, and to the reader of kubectl.
NOT_A_STRING = [
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?",
    r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?",
    r"[-+]?\.[0-9_]+([eE][-+][0-9]+)?",
    r"[-+]?0o?[0-7_]+",
    r"[-+]?0x[0-9a-fA-F_]+",
    r"[-+]?0b[01_]+",
    r"[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?",
    r"[-+]?\.(inf|Inf|INF|nan|NaN|NAN)",
    r"(y|Y|n|N|yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)",
    r"(~|null|Null|NULL|)",
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(([Tt]|[ \t]+)[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}(\.[0-9]*)?([ \t]*(Z|[-+][0-9]{1,2}(:?[0-9]{2})?))?)?",
    r"(=|<<)",
]


def plain_scalars(text: str) -> list[str]:
    """The scalars without quotes."""
    return [token.value for token in yaml.scan(text) if isinstance(token, yaml.ScalarToken) and token.plain]


def job(value: str) -> dict[str, Any]:
    """An object of a dry run, with the value in each place for user values."""
    return {
        "metadata": {"annotations": {value: value}},
        "args": ["python", value, value],
        "env": [{"name": "A", "value": value}],
    }


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
def test_hostile_strings(value: str) -> None:
    """Each is read back unchanged, and is quoted if any reader would take it for another type."""
    text = to_yaml(job(value))
    assert yaml.safe_load(text) == job(value)
    assert not [p for p in plain_scalars(text) for pattern in NOT_A_STRING if re.fullmatch(pattern, p)]


@given(st.text(max_size=12) | st.text("0123456789.eE+-_xob:TZ ynainfNAN", max_size=8))
@example("1e-4")
@example("._")
def test_any_string(value: str) -> None:
    """The same property holds for generated strings."""
    text = to_yaml(job(value))
    assert yaml.safe_load(text) == job(value)
    assert not [p for p in plain_scalars(text) for pattern in NOT_A_STRING if re.fullmatch(pattern, p)]


def test_numbers_stay_numbers() -> None:
    """Numbers, true and null keep their types; quantities need no quotes."""
    item = {"replicas": 2, "ratio": 0.5, "tiny": 1e-7, "on": True, "none": None, "cpu": "100m", "memory": "1Gi"}
    text = to_yaml(item)
    assert yaml.safe_load(text) == item
    assert "replicas: 2\n" in text
    assert "memory: 1Gi\n" in text
