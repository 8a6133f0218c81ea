"""The jobs of hangs.py, round by round: who is named at the first look at which somebody is, and what of him is said."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.backends.shell import Shell

RANKS = int(os.environ.get("HANG_RANKS", "4"))
DOING = {
    "sleep": r"is in hangs\.py:\d+",
    "stop": r"is stopped by a signal(, .*)?",
    "loader": r"waits for its data loader at hangs\.py:\d+(, whose worker is in hangs\.py:\d+)?",
    "slow": r"is (often )?in (\w+ at )?hangs\.py:\d+",
    "mismatch": r"waits in broadcast #\d+ at hangs\.py:\d+",
}


def wait_for(shell: Shell, handle: str, path: Path) -> Any:
    """What the program has written there; an error when it has ended instead."""
    while not path.exists():
        document = json.loads(shell.torchx("status", handle, "--json"))
        assert document["state"] in ("SUBMITTED", "PENDING", "RUNNING"), document
        time.sleep(0.3)
    return json.loads(path.read_text())


def look(shell: Shell, handle: str) -> tuple[list[int], dict[str, Any]]:
    """The ranks that are named, and all that was said."""
    document = json.loads(shell.torchx("stacks", handle, "--json"))
    return [r["rank"] for r in document["ranks"] if r["suspect"]], document


def said_in_the_end(shell: Shell, handle: str, pattern: str) -> list[int]:
    """The ranks that are named once the sentence is as expected: ranks may be on their way yet."""
    looks = 0
    while not re.fullmatch(pattern, (found := look(shell, handle))[1]["sentence"]):
        looks += 1
        assert looks < 20, found[1]["sentence"]
    return found[0]


def each_is_named(
    shell: Shell, handle: str, out: Path, rounds: int, go_on: Callable[[dict[str, Any]], object]
) -> list[dict[str, Any]]:
    """The right rank in each round, and nobody else; what was said in each.

    Args:
        out: where the program writes.
        go_on: sends SIGCONT to a rank that has stopped itself.
    """
    all_said = []
    for number in range(rounds):
        said, looks, before = wait_for(shell, handle, out / f"round-{number}"), 1, time.monotonic()
        while not (found := look(shell, handle))[0] and looks < 10:  # the others may be on their way yet
            looks += 1
        spent_s, document = time.monotonic() - before, found[1]
        what = f"{said['kind']} of rank {said['who']}, look {looks}, {spent_s:.0f} s"
        print(f"{handle} round {number}: {what}: {document['sentence']}", flush=True)
        assert found[0] == [said["who"]], (said, document)
        (doing,) = (rank["doing"] for rank in document["ranks"] if rank["rank"] == said["who"])
        assert re.fullmatch(DOING[said["kind"]], doing), (said, document)
        all_said.append(document)
        (out / f"go-{number}").touch()
        if said["kind"] == "stop":
            go_on(said)
    return all_said
