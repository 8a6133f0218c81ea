"""Parser of ``sbatch`` options, on a command line or in ``#SBATCH`` lines: https://slurm.schedmd.com/sbatch.html.

An unknown option may be one of a plugin of the site, such as pyxis: ``sbatch`` knows.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from torchx.errors import SpecError
from torchx.util.records import dataclass

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
    " tres-bind tres-per-task uid wait-all-nodes wckey wrap"
)
_ALIASES = {"cluster": "clusters", "tasks": "ntasks", "tasks-per-node": "ntasks-per-node", "workdir": "chdir"}
_FLAGS = frozenset(_FLAG_WORDS.split())
_OPTIONAL_VALUE = frozenset(_OPTIONAL_VALUE_WORDS.split())
"""Long options with a value only after ``=``, short ones only in the same word."""
_WITH_VALUE = frozenset(_VALUE_WORDS.split())
KNOWN = sorted(_FLAGS | _OPTIONAL_VALUE | _WITH_VALUE | _ALIASES.keys())
_NO_SCRIPTS = (
    ("\0", "it contains a NUL character: it is not text, or text in UTF-16", "`iconv -f UTF-16 -t UTF-8` converts it"),
    ("\r\n", "it has DOS line breaks", "`sed -i 's/\\r$//' {name}` removes them"),
)
"""What no script may contain, why, and what to do."""

_HEREDOC = re.compile(r"<<-?\s*\\?(['\"]?)(\w+)\1")
HETJOB = "hetjob"
_IS_DIRECTIVE = re.compile(r"#SBATCH(\s|$)")
_UP_TO_COMMENT = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?<!\s)#|[^#'"\\])*""")


@dataclass(frozen=True)
class Directive:
    """An option in a script."""

    line: int  # from 1
    option: str  # the long name
    value: str  # empty for a flag
    text: str  # the option as written

    @property
    def is_known(self) -> bool:
        """Whether it is an option of sbatch itself."""
        return self.option in KNOWN or self.option == HETJOB


def directives(text: str, name: str = "the script") -> list[Directive]:
    """Parse the ``#SBATCH`` lines before the first command; raises SpecError for what ``sbatch`` would reject.

    >>> directives("#!/bin/sh\\n#SBATCH -N2 --time=1:00  # short\\necho\\n#SBATCH -n 3\\n")[1]
    Directive(line=2, option='time', value='1:00', text='--time=1:00')
    """
    for characters, why, hint in _NO_SCRIPTS:
        before, there, _ = text.partition(characters)
        if there:
            at = before.count("\n") + 1
            raise SpecError(f"{name}:{at}: sbatch does not take this script: {why}", hint=hint.format(name=name))
    if "\r" in text and "\n" not in text:
        hint = f"`tr '\\r' '\\n' < {name}` converts them"
        raise SpecError(f"{name}:1: sbatch does not take this script: its line breaks are those of old Macs", hint=hint)
    if text.startswith("\ufeff"):
        hint = f"`sed -i '1s/^\\xEF\\xBB\\xBF//' {name}` removes it"
        raise SpecError(f"{name}:1: sbatch does not take this script: it begins with a byte order mark", hint=hint)
    if not text.startswith("#!"):
        why = "this is not a batch script: its first line does not begin with `#!`"
        raise SpecError(f"{name}:1: {why}", hint="let it begin with a line such as `#!/bin/bash`")
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if not _IS_DIRECTIVE.match(line):
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


def late_directives(text: str) -> list[int]:
    """Find the numbers of ``#SBATCH`` lines after the first command, which ``sbatch`` ignores, without here documents.

    >>> late_directives("#!/bin/sh\\n#SBATCH -N2\\necho\\n#SBATCH -n 3\\n")
    [4]
    """
    late, begun, until = [], False, ""
    for number, line in enumerate(text.split("\n"), 1):
        if until:
            until = "" if line.strip() == until else until
        elif begun and _IS_DIRECTIVE.match(line):
            late.append(number)
        elif line.strip() and not line.lstrip().startswith("#"):
            begun, found = True, _HEREDOC.search(line)
            until = found[2] if found else ""
    return late


def read_options(words: Sequence[str], where: str) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Split a command line into ``(long name, value, text)`` of its options, and the words from the script on.

    Raises SpecError, which names ``where``, if the value of an option is missing. Unknown options keep their names; a
    word after one is taken for its value.

    >>> read_options(["-p", "gpu", "--mem=4G", "run.sh", "-x"], "here")
    ([('partition', 'gpu', '-p gpu'), ('mem', '4G', '--mem=4G')], ['run.sh', '-x'])
    """
    found, left = [], list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        for option, value, needs in _split(word):
            if needs and not left:
                raise SpecError(f"{where}: `{word}` has no value")
            foreign = option not in KNOWN and "=" not in word and left and not left[0].startswith("-")
            later = left.pop(0) if needs or foreign else ""
            found.append((option, value or later, f"{word} {later}" if later else word))
    return found, left


def _split(word: str) -> Iterator[tuple[str, str, bool]]:
    """Yield ``(long name, value, whether the value is the next word)`` of each option in a word."""
    if word.startswith("--"):
        given, equals, value = word[2:].partition("=")
        name = given if given in KNOWN else _unique(given) or given
        name = _ALIASES.get(name, name)
        yield name, value, name in _WITH_VALUE and not equals
        return
    letters = word[1:]
    while letters:
        name = _SHORT.get(letters[0], letters[0])
        letters = letters[1:]
        if name in _FLAGS:
            yield name, "", False
            continue
        yield name, letters.removeprefix("="), name in _WITH_VALUE and not letters
        return


def _unique(beginning: str) -> str:
    """Resolve an unambiguous prefix of a long option, as ``sbatch`` does; otherwise return the empty string."""
    matches = [name for name in KNOWN if name.startswith(beginning)]
    return matches[0] if len(matches) == 1 and beginning else ""


def _words(text: str) -> list[str]:
    """Split a line into words, up to a comment; raises ValueError if a quote is not closed."""
    found = _UP_TO_COMMENT.match(f" {text}")
    rest = f" {text}"[found.end() :] if found else ""
    return shlex.split(found[0] if found and rest.startswith("#") else text)


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
