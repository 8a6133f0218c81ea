"""Which small changes can be made to a source: one comparison, constant, statement, ``not``, ``and`` or sign each."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from typing import NamedTuple

_COMPARISONS = {
    ast.Lt: ("<", ["<=", ">="]),
    ast.LtE: ("<=", ["<", ">"]),
    ast.Gt: (">", [">=", "<="]),
    ast.GtE: (">=", [">", "<"]),
    ast.Eq: ("==", ["!="]),
    ast.NotEq: ("!=", ["=="]),
    ast.Is: ("is", ["is not"]),
    ast.IsNot: (r"is\s+not", ["is"]),
    ast.In: ("in", ["not in"]),
    ast.NotIn: (r"not\s+in", ["in"]),
}
_OPERATORS = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.BitOr: (r"\|", "&"),
    ast.BitAnd: ("&", "|"),
}
_TEXTS = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict)
# What is only read by people, or is a hint to the system.
_SPEECH = re.compile(r"(?i)^_?(log|logger|print|warn|warning|debug|info|exception|notice|echo)$")
_SPOKEN_ARGUMENTS = {"hint", "help", "message", "msg", "reason", "stacklevel", "metavar", "encoding", "errors"}
_READS = {"read", "pread", "recv", "read1"}  # whose number is the size of a buffer


class Change(NamedTuple):
    """One change: ``source[start:end]`` (bytes) becomes ``new``.

    Attributes:
        line: where it is, from 1.
        lines: the lines of the statement that is changed; an ``if`` counts without its body.
        function: the lines of the function around it; empty at the level of a module or class.
        names: what the statement defines, where it is at the level of a module or class.
    """

    path: str
    line: int
    kind: str
    start: int
    end: int
    new: str
    lines: range
    function: range
    names: tuple[str, ...]

    def made(self, source: str) -> str:
        """The source with the change."""
        data = source.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()

    def diff(self, source: str) -> str:
        """The lines that differ, with ``-`` and ``+``."""
        lines = difflib.unified_diff(source.splitlines(), self.made(source).splitlines(), n=0, lineterm="")
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def changes(source: str, path: str = "") -> list[Change]:
    """All changes of a source, in the order of its lines.

    >>> [change.diff("while n < 3:\\n    n += 1\\n").replace("\\n", " ") for change in changes("while n < 3:\\n    n += 1\\n")][:2]
    ['-while n < 3: +while n <= 3:', '-while n < 3: +while n >= 3:']
    """
    return sorted(set(_Finder(source, path).found()), key=lambda change: (change.start, change.end, change.new))


def is_another_program(source: str, change: Change) -> bool:
    """Whether what the change makes of the source compiles, and differs in more than its spelling."""
    try:
        return ast.dump(ast.parse(change.made(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


class _Finder:
    def __init__(self, source: str, path: str) -> None:
        self._path = path
        self._data = source.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._tree = ast.parse(source)
        self._statement: ast.stmt = ast.Pass()
        self._functions: list[ast.AST] = []

    def found(self) -> Iterator[Change]:
        for statement in self._tree.body:
            yield from self._visit(statement)

    def _visit(self, node: ast.AST) -> Iterator[Change]:
        if _cannot_matter(node):
            return
        outer, function = self._statement, isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if isinstance(node, ast.stmt):
            self._statement = node
            yield from self._of_statement(node)
        elif isinstance(node, ast.expr):
            yield from self._of_expression(node)
        if function:
            self._functions.append(node)
        for child in _children(node):
            yield from self._visit(child)
        if function:
            self._functions.pop()
        self._statement = outer

    def _of_statement(self, node: ast.stmt) -> Iterator[Change]:
        if isinstance(node, (ast.If, ast.While)) and isinstance(node.test, (ast.Name, ast.Call, ast.Attribute)):
            yield self._change("negated", node.test, f"not {self._text(node.test)}")
        if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
            yield self._change("return value", node.value, "None")
        elif _can_be_dropped(node):
            yield self._change("dropped", node, "pass")

    def _of_expression(self, node: ast.expr) -> Iterator[Change]:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for i, operator in enumerate(node.ops):
                pattern, others = _COMPARISONS[type(operator)]
                for other in others:
                    yield from self._between("comparison", sides[i], sides[i + 1], pattern=pattern, new=other)
        elif isinstance(node, ast.BoolOp):
            pattern, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from self._between("and/or", left, right, pattern=pattern, new=other)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            yield self._change("not" if isinstance(node.op, ast.Not) else "sign", node, self._text(node.operand))
        elif (
            isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS and not (_text(node.left) or _text(node.right))
        ):
            pattern, other = _OPERATORS[type(node.op)]
            yield from self._between("operator", node.left, node.right, pattern=pattern, new=other)
        elif isinstance(node, ast.IfExp) and not isinstance(node.test, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
            yield self._change("negated", node.test, f"not {self._text(node.test)}")
        elif isinstance(node, ast.Constant):
            yield from self._of_constant(node)

    def _of_constant(self, node: ast.Constant) -> Iterator[Change]:
        value = node.value
        if isinstance(value, bool):
            yield self._change("constant", node, str(not value))
        elif isinstance(value, int) and not self._text(node).startswith("0o"):
            yield self._change("constant", node, str(value + 1))
            if value > 0:
                yield self._change("constant", node, str(value - 1))
        elif isinstance(value, float):
            yield self._change("constant", node, str(value + 1))

    def _between(self, kind: str, left: ast.expr, right: ast.expr, *, pattern: str, new: str) -> Iterator[Change]:
        start, end = self._span(left)[1], self._span(right)[0]
        gap = re.sub(r"#[^\n]*", lambda m: " " * len(m.group()), self._data[start:end].decode("latin-1"))
        if match := re.search(pattern, gap):
            yield self._made(kind, start + match.start(), start + match.end(), new)

    def _change(self, kind: str, node: ast.AST, new: str) -> Change:
        return self._made(kind, *self._span(node), new)

    def _made(self, kind: str, start: int, end: int, new: str) -> Change:
        statement = self._statement
        body = getattr(statement, "body", None)
        last = (body[0].lineno - 1) if isinstance(body, list) and body else statement.end_lineno or statement.lineno
        lines = range(statement.lineno, max(statement.lineno, last) + 1)
        function = range(0)
        if self._functions:
            around = self._functions[-1]
            function = range(around.lineno, around.end_lineno + 1)  # type: ignore[attr-defined]  # both have them
        line = self._data.count(b"\n", 0, start) + 1
        names = () if self._functions else _defined(statement)
        return Change(self._path, line, kind, start, end, new, lines, function, names)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        first = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]  # all of ours have one
        return first, self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._data[start:end].decode()


def _can_be_dropped(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Assign):
        return all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
    return isinstance(node, (ast.AugAssign, ast.Delete, ast.Continue, ast.Break, ast.Raise))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """What may be changed below a node: no decorators, annotations, bases, nor what is said to people."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None), *node.body]
    elif isinstance(node, ast.ClassDef):
        yield from node.body
    elif isinstance(node, ast.AnnAssign):
        yield from [node.value] if node.value is not None else []
    elif isinstance(node, (ast.Raise, ast.Assert)):
        return
    elif isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
        return  # -1 is one constant, and its sign has been changed
    elif isinstance(node, ast.Call):
        yield node.func
        if not (isinstance(node.func, ast.Attribute) and node.func.attr in _READS):
            yield from node.args
            yield from (keyword.value for keyword in node.keywords if keyword.arg not in _SPOKEN_ARGUMENTS)
    else:
        yield from ast.iter_child_nodes(node)


def _cannot_matter(node: ast.AST) -> bool:
    if isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.If):
        return any(isinstance(n, ast.Name) and n.id in ("TYPE_CHECKING", "__name__") for n in ast.walk(node.test))
    if isinstance(node, ast.Expr):
        call = node.value
        return not isinstance(call, (ast.Call, ast.Await, ast.Yield, ast.YieldFrom)) or (
            isinstance(call, ast.Call) and bool(_SPEECH.match(_name(call.func)))
        )
    if isinstance(node, ast.Raise):
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return raised is not None and _name(raised) == "NotImplementedError"
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return bool({"__slots__", "__all__", "TYPE_CHECKING"} & set(_defined(node)))
    return isinstance(node, ast.FunctionDef) and node.name == "__repr__"


def _defined(node: ast.AST) -> tuple[str, ...]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return tuple(n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _text(node: ast.expr) -> bool:
    """Whether it is plain to see that this is no number: arithmetic with it would only be a TypeError."""
    return isinstance(node, _TEXTS) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))
