"""``torchx --help``: the verbs in groups. Imports none of them."""

from __future__ import annotations

from torchx.cli import commands
from torchx.cli.failures import EXIT_CODES

EXAMPLES = """\
  torchx run train.py --epochs 3                a script, on this machine; -d returns at once
  torchx run dist.ddp -j 2x2 --script train.py  distributed training, 2 nodes x 2 workers
  torchx status @last                           state of the newest run
  torchx log -f @last                           its logs, until it ends"""
OPTIONS = """\
  --log_level   DEBUG, INFO, WARNING, ERROR or CRITICAL; DEBUG shows tracebacks
  --version     print the version
  -h, --help    print this page; `torchx help VERB` prints that of a verb"""


def page(*, color: bool = False) -> str:
    def bold(text: str) -> str:
        return f"\033[1m{text}\033[0m" if color else text

    lines = [
        f"{bold('Usage:')} torchx [--log_level LEVEL] VERB [options]",
        "",
        "Describe a job once in Python, run it anywhere, and always know what became of it.",
    ]
    for title, rows in _groups().items():
        lines += ["", bold(title + ":")]
        lines += [f"  {name:<12}{text}" for name, text in rows]
    title, _, codes = EXIT_CODES.partition("\n")
    lines += ["", bold("Examples:"), EXAMPLES, "", bold("Options:"), OPTIONS, "", bold(title), codes]
    return "\n".join(lines)


def _groups() -> dict[str, list[tuple[str, str]]]:
    groups: dict[str, list[tuple[str, str]]] = {}
    table = commands.registry()
    for name in commands.names():
        verb = commands.VERBS.get(name)
        entry = table.find(name)
        owner = f"from {entry.dist or entry.where}" if entry else ""
        if verb is None:
            groups.setdefault(commands.PLUGINS, []).append((name, owner))
        else:
            overridden = entry is not None and entry.value != verb.target
            groups.setdefault(verb.group, []).append((name, f"{verb.help} ({owner})" if overridden else verb.help))
    return groups
