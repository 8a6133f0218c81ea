"""Parser of ``sbatch`` options, on a command line or in ``#SBATCH`` lines: https://slurm.schedmd.com/sbatch.html.

An unknown option is an error that names its line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from torchx.errors import SpecError
from torchx.util.records import dataclass
from torchx.util.strings import did_you_mean

_SHORT = {
    **{"A": "account", "a": "array", "b": "begin", "B": "extra-node-info", "C": "constraint", "c": "cpus-per-task"},
    **{"D": "chdir", "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "i": "input"},
    **{"J": "job-name", "k": "no-kill", "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes"},
    **{"n": "ntasks", "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos", "S": "core-spec"},
    **{"s": "oversubscribe", "t": "time", "v": "verbose", "W": "wait", "w": "nodelist", "x": "exclude"},
}
_FLAG_WORDS = (
    "contiguous hold ignore-pbs no-requeue overcommit parsable quiet requeue reboot spread-job test-only use-min-nodes"
    " verbose wait disable-stdout-job-summary stepmgr"
)
_OPTIONAL_VALUE_WORDS = "exclusive get-user-env nice no-kill oversubscribe propagate resv-ports"
_VALUE_WORDS = (
    "account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container"
    " container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency"
    " distribution error exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node"
    " gpus-per-socket gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type"
    " mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks"
    " ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output partition power prefer priority"
    " profile qos reservation segment signal sockets-per-node switches thread-spec threads-per-core time time-min tmp"
    " tres-bind tres-per-task uid wait-all-nodes wckey workdir wrap"
)
_FLAGS = frozenset(_FLAG_WORDS.split())
_OPTIONAL_VALUE = frozenset(_OPTIONAL_VALUE_WORDS.split())
"""Long options with a value only after ``=``, short ones only in the same word."""
_WITH_VALUE = frozenset(_VALUE_WORDS.split())
_KNOWN = sorted(_FLAGS | _OPTIONAL_VALUE | _WITH_VALUE)
HETJOB = "hetjob"


@dataclass(frozen=True)
class Directive:
    """An option in a script."""

    line: int  # from 1
    option: str  # the long name
    value: str  # empty for a flag
    text: str  # the option as written


def directives(text: str, name: str = "the script") -> list[Directive]:
    """Parse the ``#SBATCH`` lines before the first command; raises SpecError for what ``sbatch`` would reject.

    >>> directives("#!/bin/sh\\n#SBATCH -N2 --time=1:00  # short\\necho\\n#SBATCH -n 3\\n")[1]
    Directive(line=2, option='time', value='1:00', text='--time=1:00')
    """
    lines = text.splitlines()
    if not lines or not lines[0].startswith("#!"):
        raise SpecError(f"{name}:1: this is not a batch script: its first line does not begin with `#!`")
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if not re.match(r"#SBATCH(\s|$)", line):
            continue
        where = f"{name}:{number}"
        try:
            words = _words(line.removeprefix("#SBATCH"))
        except ValueError as e:
            raise SpecError(f"{where}: `{line.strip()}` cannot be read: {e}") from e
        if words and words[0] in (HETJOB, "packjob"):
            found.append(Directive(number, HETJOB, "", words[0]))
            continue
        options, rest = read_options(words, where)
        if rest:
            raise SpecError(f"{where}: `{rest[0]}` is not an option", hint="quote values that contain a space")
        found += [Directive(number, *option) for option in options]
    return found


def read_options(words: Sequence[str], where: str) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Split a command line into ``(long name, value, text)`` of its options, and the words from the script on.

    Raises SpecError, which names ``where``, if an option is unknown or its value is missing.

    >>> read_options(["-p", "gpu", "--mem=4G", "run.sh", "-x"], "here")
    ([('partition', 'gpu', '-p gpu'), ('mem', '4G', '--mem=4G')], ['run.sh', '-x'])
    """
    found, left = [], list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        for option, value, needs in _split(word, where):
            if needs and not left:
                raise SpecError(f"{where}: `{word}` has no value")
            later = left.pop(0) if needs else ""
            found.append((option, value or later, f"{word} {later}" if needs else word))
    return found, left


def _split(word: str, where: str) -> Iterator[tuple[str, str, bool]]:
    """Yield ``(long name, value, whether the value is the next word)`` of each option in a word."""
    if word.startswith("--"):
        given, equals, value = word[2:].partition("=")
        name = given if given in _KNOWN else _unique(given)
        if not name:
            raise SpecError(f"{where}: `--{given}` is not an option of sbatch", hint=did_you_mean(given, _KNOWN) or "")
        yield name, value, name in _WITH_VALUE and not equals
        return
    letters = word[1:]
    while letters:
        name = _SHORT.get(letters[0], "")
        if not name:
            raise SpecError(f"{where}: `-{letters[0]}` is not an option of sbatch")
        letters = letters[1:]
        if name in _FLAGS:
            yield name, "", False
            continue
        yield name, letters.removeprefix("="), name in _WITH_VALUE and not letters
        return


def _unique(beginning: str) -> str:
    """Resolve an unambiguous prefix of a long option, as ``sbatch`` does; otherwise return the empty string."""
    matches = [name for name in _KNOWN if name.startswith(beginning)]
    return matches[0] if len(matches) == 1 and beginning else ""


def _words(text: str) -> list[str]:
    """Split a line into words, up to a comment; raises ValueError if a quote is not closed."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = "#" if re.search(r"(^|\s)#", text) else ""
    return list(lexer)


def expand(pattern: str, values: Mapping[str, str]) -> str:
    """Expand a filename pattern by letter: https://slurm.schedmd.com/sbatch.html#SECTION_FILENAME-PATTERN.

    >>> expand("out/%x-%4j.%N%%", {"x": "train", "j": "17", "N": "n1"})
    'out/train-0017.n1%'
    """
    if "\\" in pattern:  # a backslash disables expansion
        return pattern.replace("\\", "")

    def one(found: re.Match[str]) -> str:
        width, letter = found[1], found[2]
        if letter == "%":
            return "%"
        value = values.get(letter)
        if value is None:
            return found[0]
        return value.zfill(min(int(width), 10)) if width and value.isdigit() else value

    return re.sub(r"%(\d*)([A-Za-z%])", one, pattern)
