"""Static checks of a component's source: the types of its arguments, and its return type.

The supported types are those of :mod:`torchx.component_reader.types`, which the argument parser uses too. The linter
reads a single file, so it rejects types that are imported from other modules of the user.
:func:`torchx.component_reader.finder.get_component` inspects the live function, and accepts them.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchx.component_reader.signature import Parameter, flags_of
from torchx.component_reader.types import ANYTHING, DICTS, LISTS, SCALARS, SUPPORTED, TUPLES, Shape, generic, union
from torchx.util.records import dataclass
from torchx.util.reexports import reexports
from torchx.util.strings import did_you_mean

if TYPE_CHECKING:  # the public interface lists these two: type checkers shall see them
    from torchx.component_reader import help as _help

    TorchXArgumentHelpFormatter, get_fn_docstring = _help.TorchXArgumentHelpFormatter, _help.get_fn_docstring

reexports(__name__)

_TYPING_NAMES = {*SCALARS, *ANYTHING, *LISTS, *TUPLES, *DICTS, "None", "Optional", "Union", "Annotated", "Literal"}


@dataclass
class LinterMessage:
    """A finding.

    Args:
        name: name of the check.
        description: what is wrong, and how to fix it.
        line: line number, from 1.
        char: column, from 0.
    """

    name: str
    description: str
    line: int
    char: int
    severity: str = "error"


def OK() -> list[LinterMessage]:
    """No findings."""
    return []


def validate(
    path: str,
    component_function: str,
    validators: list[ComponentFunctionValidator] | None = None,
) -> list[LinterMessage]:
    """Check a component in a file.

    Args:
        path: path of the Python file.
        component_function: name of the function.
        validators: the checks; None for those of argument types and return type.

    Returns:
        The findings. A file that cannot be read or parsed is a finding, and so is a missing function.
    """
    try:
        with open(path, "rb") as f:
            tree = ast.parse(f.read(), filename=path)
        visitor = ComponentFnVisitor(component_function, validators)
        visitor.visit(tree)
    except (RecursionError, MemoryError):
        return [LinterMessage("TorchxFunctionValidator", f"`{path}` is nested too deeply to be read", 0, 0)]
    except OSError as e:
        return [LinterMessage("TorchxFunctionValidator", f"`{path}` cannot be read: {e.strerror}", 0, 0)]
    except (SyntaxError, ValueError) as e:
        line, char = getattr(e, "lineno", None) or 0, getattr(e, "offset", None) or 0
        return [LinterMessage("TorchxFunctionValidator", f"{path}:{line}: {getattr(e, 'msg', e)}", line, char)]
    if not visitor.visited_function:
        functions = [n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        hint = did_you_mean(component_function, functions)
        text = f"function `{component_function}` is not found in `{path}`" + (f"; {hint}" if hint else "")
        return [LinterMessage("TorchxFunctionValidator", text, 0, 0)]
    for message in visitor.linter_errors:
        message.description = f"{path}:{message.line}: {message.description}"
    return visitor.linter_errors


class ComponentFunctionValidator(ABC):
    """Base class of checks."""

    names: Mapping[str, ast.expr | str] = {}
    """The names of the module: the type expression of an alias, or the last name of an import."""

    @abstractmethod
    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return the findings about a function."""


class ArgTypeValidator(ComponentFunctionValidator):
    """Checks that each argument has a supported type, and that there is no ``**kwargs``."""

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return the findings about the arguments."""
        args = app_specs_func_def.args
        found = []
        each = [*args.posonlyargs, *args.args, *([args.vararg] if args.vararg else []), *args.kwonlyargs]
        for arg in each:
            problem = self._problem(arg.annotation)
            if problem:
                text = f"argument `{arg.arg}` of `{app_specs_func_def.name}`: {problem}"
                found.append(LinterMessage("TorchxFunctionValidator", text, arg.lineno, arg.col_offset))
        if args.kwarg:
            text = (
                f"`{app_specs_func_def.name}` takes `**{args.kwarg.arg}`, which the command line cannot express; "
                f"name each argument, or take one `{args.kwarg.arg}: dict[str, str]`"
            )
            found.append(LinterMessage("TorchxFunctionValidator", text, args.kwarg.lineno, args.kwarg.col_offset))
        return found

    def _problem(self, annotation: ast.expr | None) -> str | None:
        if annotation is None:
            return f"it has no type; write `: str`, or another of: {SUPPORTED}"
        problem = shape_of_expr(annotation, self.names).problem()
        return f"{problem}; use one of: {SUPPORTED}" if problem else None


class ReturnTypeValidator(ComponentFunctionValidator):
    """Checks that the function is annotated with the given return type.

    Args:
        supported_return_type: last part of its name, for example ``AppDef``.
    """

    def __init__(self, supported_return_type: str) -> None:
        self._supported = supported_return_type

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return the findings about the return type."""
        returns = app_specs_func_def.returns
        if returns is not None and self._is_supported(returns):
            return OK()
        got = "no return type" if returns is None else f"return type `{ast.unparse(returns)}`"
        text = f"`{app_specs_func_def.name}` has {got}; a component is written `-> {self._supported}`"
        line, char = app_specs_func_def.lineno, app_specs_func_def.col_offset
        return [LinterMessage("TorchxFunctionValidator", text, line, char)]

    def _is_supported(self, returns: ast.expr, depth: int = 0) -> bool:
        expr = _parsed_string(returns)
        if isinstance(expr, ast.Attribute):
            return expr.attr == self._supported
        if not isinstance(expr, ast.Name):
            return False
        meaning = self.names.get(expr.id, expr.id)
        if isinstance(meaning, str):
            return meaning == self._supported
        return depth < 8 and self._is_supported(meaning, depth + 1)


class ParameterReader(ComponentFunctionValidator):
    """No check: reads the parameters of a function other than ``*args``, without running its module."""

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Read the parameters."""
        args = app_specs_func_def.args
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs):
            expr = _parsed_string(arg.annotation or ast.Name("str"))
            notes: list[Any] = []
            if isinstance(expr, ast.Subscript) and _canonical(expr.value, self.names) == "Annotated":
                notes = [e.value for e in ast.walk(expr.slice) if isinstance(e, ast.Constant)]
            shape = shape_of_expr(expr, self.names)
            self.parameters.append(Parameter(arg.arg, shape, flags=flags_of(arg.arg, notes)))
        return OK()


class ComponentFnVisitor:
    """Runs the checks on one function of a module.

    Args:
        component_function_name: name of the function.
        validators: the checks; None for those of argument types and return type.
    """

    def __init__(
        self,
        component_function_name: str,
        validators: list[ComponentFunctionValidator] | None = None,
    ) -> None:
        self.component_function_name = component_function_name
        self.validators = [ArgTypeValidator(), ReturnTypeValidator("AppDef")] if validators is None else validators
        self.linter_errors: list[LinterMessage] = []
        self.visited_function = False

    def visit(self, node: ast.AST) -> None:
        """Find the function in a module and check it. If it is defined twice, the last definition counts."""
        body: list[ast.stmt] = getattr(node, "body", [])
        names = _names_of(body)
        functions = [
            n
            for n in _statements(body)
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == self.component_function_name
        ]
        for validator in self.validators:
            validator.names = names
        if functions:
            self.visit_FunctionDef(functions[-1])  # type: ignore[arg-type]  # an async def has the same parts

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Check a function if its name matches."""
        if node.name != self.component_function_name:
            return
        self.visited_function = True
        for validator in self.validators:
            self.linter_errors += validator.validate(node)


def get_generic_type(arg: ast.expr) -> ast.expr:
    """Return ``dict`` of ``dict[str, str]``; any other expression unchanged."""
    return arg.value if isinstance(arg, ast.Subscript) else arg


def get_optional_type(arg: ast.expr) -> ast.expr | None:
    """Return ``X`` of ``Optional[X]``, ``X | None`` and ``Union[X, None]``; otherwise None.

    >>> import ast
    >>> ast.unparse(get_optional_type(ast.parse("int | None", mode="eval").body))
    'int'
    """
    members: list[ast.expr] = []
    if isinstance(arg, ast.Subscript):
        name = ast.unparse(arg.value).rpartition(".")[2]
        if name == "Optional":
            return arg.slice
        if name == "Union" and isinstance(arg.slice, ast.Tuple):
            members = arg.slice.elts
    elif isinstance(arg, ast.BinOp) and isinstance(arg.op, ast.BitOr):
        members = [arg.left, arg.right]
    others = [m for m in members if not (isinstance(m, ast.Constant) and m.value is None)]
    return others[0] if len(members) == 2 and len(others) == 1 else None


def is_primitive(arg: ast.expr) -> bool:
    """Whether the expression is ``str``, ``int``, ``float`` or ``bool``."""
    return isinstance(arg, ast.Name) and arg.id in SCALARS


def shape_of_expr(expr: ast.expr, names: Mapping[str, ast.expr | str] | None = None, depth: int = 0) -> Shape:
    """Return the shape of a type expression in source code; see :func:`torchx.component_reader.types.shape_of`.

    Args:
        names: the names of the module; see :attr:`ComponentFunctionValidator.names`.

    >>> import ast
    >>> str(shape_of_expr(ast.parse("Optional[List['int']]", mode="eval").body))
    'list[int] | None'
    """
    meanings = names or {}
    unknown = Shape("unknown", (ast.unparse(expr),))
    if depth > 16:
        return unknown
    expr = _parsed_string(expr)
    if isinstance(expr, ast.Constant) and expr.value is None:
        return Shape("none")
    if isinstance(expr, ast.BinOp) and isinstance(expr.op, ast.BitOr):
        return union(shape_of_expr(e, meanings, depth + 1) for e in (expr.left, expr.right))
    if isinstance(expr, ast.Subscript):
        return _shape_of_subscript(expr, meanings, depth) or unknown
    name = _canonical(expr, meanings)
    if name is None:
        return unknown
    if not isinstance(name, str):
        return shape_of_expr(name, meanings, depth + 1)
    found = generic(name)
    return found if found.kind != "unknown" else unknown


def _shape_of_subscript(expr: ast.Subscript, names: Mapping[str, ast.expr | str], depth: int) -> Shape | None:
    name = _canonical(expr.value, names)
    inside = list(expr.slice.elts) if isinstance(expr.slice, ast.Tuple) else [expr.slice]
    if name == "Annotated":
        return shape_of_expr(inside[0], names, depth + 1)
    if name == "Literal":
        values = [e.value if isinstance(e, ast.Constant) else ... for e in inside]
        return Shape("literal", values)
    if not isinstance(name, str):
        return None
    shapes = [shape_of_expr(e, names, depth + 1) for e in inside]
    if name == "Optional" and len(shapes) == 1:
        return union([*shapes, Shape("none")])
    if name == "Union":
        return union(shapes)
    found = generic(name, shapes)
    return None if found.kind == "unknown" else found


def _canonical(expr: ast.expr, names: Mapping[str, ast.expr | str]) -> ast.expr | str | None:
    """Return the bare name of a type, the expression of an alias, or None if it is unknown."""
    if isinstance(expr, ast.Attribute):  # typing.List, t.List, collections.abc.Sequence
        root = expr.value
        while isinstance(root, ast.Attribute):
            root = root.value
        known = isinstance(root, ast.Name) and (not names or names.get(root.id) == _TYPES_MODULE)
        return expr.attr if known and expr.attr in _TYPING_NAMES - set(SCALARS) else None
    if not isinstance(expr, ast.Name):
        return None
    return names.get(expr.id, expr.id)


_TYPES_MODULE = "<module typing>"
_ELSEWHERE = "<imported>"


def _names_of(body: list[ast.stmt]) -> dict[str, ast.expr | str]:
    """Return the imports and type aliases of a module."""
    found: dict[str, ast.expr | str] = {}
    for node in _statements(body):
        if isinstance(node, ast.ImportFrom):
            typing = node.module in ("typing", "typing_extensions", "collections.abc", "builtins")
            for alias in node.names:
                keep = typing or alias.name == "AppDef"
                found[alias.asname or alias.name] = alias.name if keep else _ELSEWHERE
        elif isinstance(node, ast.Import):
            for alias in node.names:
                typing = alias.name in ("typing", "typing_extensions", "collections.abc", "collections")
                found[alias.asname or alias.name.partition(".")[0]] = _TYPES_MODULE if typing else _ELSEWHERE
        elif isinstance(node, ast.ClassDef):
            found[node.name] = _ELSEWHERE
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
        elif type(node).__name__ == "TypeAlias":  # `type X = ...` of Python 3.12
            found[node.name.id] = node.value  # type: ignore[attr-defined]  # not known to Python 3.10
    return found


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of a module, including those inside ``if``, ``try`` and ``with``."""
    found = []
    for node in body:
        found.append(node)
        for part in ("body", "orelse", "finalbody"):
            if type(node).__name__ in ("If", "Try", "With"):
                found += _statements(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            found += _statements(handler.body)
    return found


def _parsed_string(expr: ast.expr) -> ast.expr:
    """Parse a string annotation; return other expressions unchanged."""
    if isinstance(expr, ast.Constant) and isinstance(expr.value, str):
        try:
            return ast.parse(expr.value.strip(), mode="eval").body
        except SyntaxError:
            return expr
    return expr
