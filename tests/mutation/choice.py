"""Which tests are run for a change, and in which order: those that ran its line, the mirror folder first, quick ones first."""

from __future__ import annotations

from typing import Any

from tests.mutation.changes import Change
from tests.mutation.house import imported, is_mirror, mentions, readers_of

Tests = dict[str, dict[str, Any]]
"""By node id: ``cpu``, the seconds it takes, ``lines``, what it runs by file, and ``starts``, whether it starts programs."""

SLOW_S = 6.0  # tests that take longer are left out
BUDGET_S = 40.0  # of tests for one change


def batches(change: Change, tests: Tests, top: str) -> list[list[str]]:
    """Node ids in the order in which to run them: the mirror's first, which mostly suffice, then the others."""
    found = _covering(change, tests, top)
    nodes = sorted((node for node in found if tests[node]["cpu"] < SLOW_S), key=lambda node: (tests[node]["cpu"], node))
    mirror = [node for node in nodes if is_mirror(node.partition("::")[0], change.path)]
    others = [node for node in nodes if node not in set(mirror)]
    left = BUDGET_S
    chosen: list[list[str]] = []
    for group in (mirror, others):
        affordable = []
        for node in group:
            left -= tests[node]["cpu"]
            if left > 0:
                affordable.append(node)
        chosen += [affordable] if affordable else []
    return chosen


def cost(nodes: list[str], tests: Tests) -> float:
    """Seconds of processor time."""
    return float(sum(tests[node]["cpu"] for node in nodes))


def _is_own(file: str, path: str, top: str) -> bool:
    return is_mirror(file, path) and path in imported(top, file)


def _covering(change: Change, tests: Tests, top: str) -> list[str]:
    if change.names:  # a constant: whoever runs a line that uses it, and who imports the file and may look at it
        used = mentions(top, change.names)
        return [
            node
            for node, test in tests.items()
            if change.path in imported(top, node.partition("::")[0])
            or any(lines & set(test["lines"].get(path, ())) for path, lines in used.items())
        ]
    for lines in (change.lines, change.function):
        found = [node for node, test in tests.items() if set(lines) & set(test["lines"].get(change.path, ()))]
        if found:  # and what its own tests do in processes that are killed, of which nobody knows what they ran
            own = {node for node in tests if _is_own(node.partition("::")[0], change.path, top)}
            return [*found, *sorted(own - set(found))]
    if change.path.endswith(".sh"):  # nobody knows what runs of it: whoever starts a program, and renders the script
        tests = {node: test for node, test in tests.items() if test.get("starts")}
        readers = readers_of(top, change.path)
        return [n for n, t in tests.items() if is_mirror(n.partition("::")[0], change.path) or readers & {*t["lines"]}]
    # Nothing runs it in this process: whatever has to do with the file or its neighbours may run it in another.
    return [n for n, t in tests.items() if change.path in t["lines"] or is_mirror(n.partition("::")[0], change.path)]
