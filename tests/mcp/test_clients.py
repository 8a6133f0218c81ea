"""The configurations of clients in docs/agents.md, as the clients read them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from torchx.cli.main import create_parser, get_default_sub_cmds

PAGE = (Path(__file__).parents[2] / "docs/agents.md").read_text()
BLOCKS = re.findall(r"^```(json|toml|shell)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def starts(language: str, text: str) -> list[list[str]]:
    """Return the command lines with which the client starts servers."""
    if language == "shell":
        lines = [shlex.split(line) for line in text.splitlines() if " mcp " in f"{line} "]
        return [line[line.index("--") + 1 :] if "--" in line else line for line in lines]
    found: dict[str, Any] = json.loads(text) if language == "json" else pytest.importorskip("tomllib").loads(text)
    [servers] = found.values()
    return [[one["command"], *one["args"]] for one in servers.values()]


@pytest.mark.parametrize(("language", "text"), BLOCKS)
def test_a_client_starts_the_server(language: str, text: str) -> None:
    """Each block is valid, and starts `torchx mcp` with options that it has."""
    parser = create_parser(get_default_sub_cmds())
    for program, *args in starts(language, text):
        assert program == "torchx"
        assert args[0] == "mcp"
        parser.parse_args(args)


def test_all_clients_are_there() -> None:
    assert [language for language, _ in BLOCKS].count("json") >= 3
    assert "toml" in dict(BLOCKS)
