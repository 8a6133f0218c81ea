"""The rules of .torchxignore are those of a .dockerignore."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.errors import SpecError
from torchx.workspace.ignore import IgnoreRules

CASES = [
    ("*.pyc", ["a.pyc"], ["d/a.pyc", "a.py"], "a star stays at the root"),
    ("**/*.pyc", ["a.pyc", "d/a.pyc", "d/e/a.pyc"], ["a.py"], "two stars span directories"),
    ("build", ["build", "build/x", "build/d/x"], ["src/build", "builds"], "a directory covers what is below"),
    ("build/", ["build/x"], ["src/build/x"], "a trailing slash changes nothing"),
    ("/build", ["build/x"], ["src/build/x"], "a leading slash changes nothing"),
    ("./build/../dist", ["dist/x"], ["build/x"], "paths are cleaned"),
    ("**/build", ["build/x", "a/b/build/x"], ["a/builds/x"], "two stars before a name"),
    ("build/**", ["build/x", "build/a/b"], ["build"], "two stars at the end leave the directory"),
    ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a/xb", "ab"], "two stars in between"),
    ("fil?.txt", ["file.txt"], ["fil.txt", "fi/e.txt"], "a question mark is one character"),
    ("[a-c]*.txt", ["a.txt", "cx.txt"], ["d.txt"], "a class"),
    ("[^a]*.txt", ["b.txt"], ["a.txt"], "a negated class"),
    (r"\*.txt", ["*.txt"], ["a.txt"], "an escaped star"),
    (r"\!important", ["!important"], ["important"], "an escaped exclamation mark"),
    ("# comment\n\n  \nx", ["x"], ["# comment"], "comments and blank lines"),
    ("  spaced  ", ["spaced"], [], "space around is dropped"),
    ("*\n!keep", ["drop"], ["keep", "keep/x"], "an exception"),
    ("*\n!keep\nkeep/secret", ["keep/secret"], ["keep/x"], "the last one that matches decides"),
    ("!keep\n*", ["keep"], [], "an exception before its rule is void"),
    ("data\n!data/small/*.csv", ["data/big.bin", "data/small/x.bin"], ["data/small/x.csv"], "an exception deep inside"),
    ("a.b", ["a.b"], ["axb"], "a dot is a dot"),
    (".git", [".git/HEAD"], [".gitignore"], "hidden names"),
    ("\ufeffx", ["x"], [], "a byte order mark"),
    ("é*", ["école"], ["ecole"], "names beyond ASCII"),
    (".", [], ["a", "b/c"], "the root itself cannot be ignored"),
]


@pytest.mark.parametrize(("text", "out", "kept", "why"), CASES, ids=[c[3] for c in CASES])
def test_patterns(text: str, out: list[str], kept: list[str], why: str) -> None:
    """Each path is ignored or included as in Docker."""
    rules = IgnoreRules.parse(text)
    assert [p for p in out if not rules.ignores(p)] == []
    assert [p for p in kept if rules.ignores(p)] == []


@pytest.mark.parametrize("text", ["!", "ok\n[a", "x\\"], ids=["bare exclamation mark", "open class", "open escape"])
def test_malformed_patterns(text: str) -> None:
    """A malformed pattern is an error with file and line."""
    with pytest.raises(SpecError, match=r"is not an ignore pattern \(the/file:\d\)"):
        IgnoreRules.parse(text, origin="the/file")


def is_pruned(rules: IgnoreRules, directory: str) -> bool:
    """Whether a walk skips a directory."""
    return rules.ignores(directory) and not rules.may_include_below(directory)


@pytest.mark.parametrize(
    ("text", "directory", "pruned"),
    [
        ("data", "data", True),
        ("data\n!data/x", "data", False),
        ("data\n!other/x", "data", True),
        ("data\n!**/x", "data", False),
        ("data\n!d*/x", "data", False),
        ("data\n!data/a/x", "data/b", True),
        ("data\n!data/a/x", "data/a", False),
        ("nothing", "data", False),
    ],
)
def test_pruning(text: str, directory: str, pruned: bool) -> None:
    """An ignored directory is skipped entirely unless an exception may match below it."""
    assert is_pruned(IgnoreRules.parse(text), directory) is pruned


names = st.text(alphabet="ab*?!./", min_size=1, max_size=6)


@given(st.lists(names, max_size=4), st.lists(st.sampled_from(["a", "b", "ab", "a.b"]), min_size=1, max_size=4))
def test_pruning_never_loses_a_file(patterns: list[str], parts: list[str]) -> None:
    """For any patterns, no included file is below a pruned directory."""
    try:
        rules = IgnoreRules.parse("\n".join(patterns))
    except SpecError:
        return
    if not rules.ignores("/".join(parts)):
        assert not any(is_pruned(rules, "/".join(parts[:n])) for n in range(1, len(parts)))


def test_many_double_stars_are_one():
    """`**/**/.../x` is as fast as `**/x`: it once took minutes on a path of sixty folders."""
    deep = "/".join(["a"] * 60)
    for count in (1, 7, 40):
        rules = IgnoreRules.parse("**/" * count + "x")
        assert rules.ignores(f"{deep}/x") and rules.ignores("x")
        assert not rules.ignores(deep)
        assert IgnoreRules.parse("b/" + "**/" * count + "**").ignores("b/c/d")
