"""Finds components by name.

==============================  ===================================================================
``dist.ddp``                    built-in: function ``ddp`` of module ``torchx.components.dist``
``path/file.py:function``       a function in a file
``pkg.module:function``         a function in a module that can be imported from the current directory
``myco.train.run``              entry point ``myco = my_pkg.components`` of group ``torchx.components``:
                                function ``run`` of module ``my_pkg.components.train``
``train.run``                   as above, if the name of the entry point begins with ``_``
``vision.train``                a function registered under that name with ``torchx.plugins.register.component``
==============================  ===================================================================

A plugin may replace a built-in component. Functions and modules whose names begin with ``_`` are not components.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from torchx.component_reader.signature import location, read, returns_appdef, unwrap
from torchx.component_reader.source import PATHS, blame, load_file
from torchx.errors import NotFoundError, SpecError
from torchx.plugins import PluginError, load, names
from torchx.plugins.discovery import decorated
from torchx.util.notices import logger
from torchx.util.records import dataclass, field
from torchx.util.reexports import reexports
from torchx.util.strings import did_you_mean, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchx.component_reader.linter import ComponentFunctionValidator
    from torchx.specs.api import AppDef

reexports(__name__)

BUILTINS = {
    "dist": ("ddp", "spmd", "torchrun"),
    "metrics": ("tensorboard",),
    "serve": ("torchserve",),
    "utils": ("binary", "booth", "copy", "echo", "hydra", "python", "sbatch", "session", "sh", "touch"),
}
"""The built-in components by module, listed here so that suggestions need no imports. A test checks the list."""

_PACKAGE = "torchx.components"
_GROUP = "torchx.components"


class ComponentNotFoundException(NotFoundError, SpecError):
    """No component has that name."""


class ComponentValidationException(SpecError):
    """The component exists but cannot be used: its file is broken, or it cannot be called from a command line."""


@dataclass
class _Component:
    """A component.

    Args:
        name: its name on the command line.
        description: the first line of its docstring.
        validation_errors: why it cannot be used; empty if it is valid.
    """

    name: str
    description: str
    fn_name: str
    fn: Callable[..., AppDef]
    validation_errors: list[str] = field(default_factory=list)


class ComponentsFinder(ABC):
    """A source of components."""

    @abstractmethod
    def find(self, validators: list[ComponentFunctionValidator] | None) -> list[_Component]:
        """Return all components; invalid ones have ``validation_errors``."""


class ModuleComponentsFinder(ComponentsFinder):
    """Finds the components of a module, or of a package and all modules below it.

    Args:
        module: the module or its dotted name.
        group: prefix of the component names; omitted if empty or beginning with ``_``.
    """

    def __init__(self, module: str | ModuleType, group: str) -> None:
        self._module = module
        self._group = "" if group.startswith("_") else group

    def find(self, validators: list[ComponentFunctionValidator] | None) -> list[_Component]:
        """Return the components; a module that cannot be imported is skipped with a warning."""
        base = _import(self._module) if isinstance(self._module, str) else self._module
        found = []
        for module in _walk(base):
            prefix = ".".join(p for p in (self._group, module_relname(module, relative_to=base)) if p)
            for name, fn in _functions(module):
                found.append(_component(f"{prefix}.{name}" if prefix else name, fn, validators))
        return found


class CustomComponentsFinder(ComponentsFinder):
    """Finds a component in a file.

    Args:
        filepath: path of the Python file; ``~`` is expanded.
        function_name: name of the function; may be dotted, to reach into classes and imported modules.
    """

    def __init__(self, filepath: str, function_name: str) -> None:
        self._filepath = filepath
        self._function_name = function_name

    def find(self, validators: list[ComponentFunctionValidator] | None) -> list[_Component]:
        """Return the component as the only item.

        Raises:
            ComponentNotFoundException: the file or the function does not exist.
            ComponentValidationException: the file cannot be imported.
        """
        fn = _resolve(self._load(), self._function_name)
        if fn is None:
            raise self._no_function()
        return [_component(f"{self._filepath}:{self._function_name}", fn, validators, path=self._filepath)]

    def _load(self) -> ModuleType:
        path = os.path.expanduser(self._filepath)
        if not os.path.isfile(path) and not path.endswith(".py") and all(map(str.isidentifier, path.split("."))):
            return load_module(path)
        if not os.path.isfile(path):
            raise ComponentNotFoundException(f"component file `{self._filepath}` does not exist", hint=_near_file(path))
        try:
            return load_file(path)
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            what = "has a mistake" if isinstance(e, SyntaxError) else "raised while it was imported"
            problem = f"{what}: {blame(e, path)}"
            if isinstance(e, OSError) and e.filename and os.path.realpath(e.filename) == os.path.realpath(path):
                problem = f"cannot be read: {e.strerror}"
            message = f"component file `{self._filepath}` {problem}"
            raise ComponentValidationException(message, hint=_import_hint(e)) from e

    def _no_function(self) -> ComponentNotFoundException:
        names = [name for name, value in vars(self._load()).items() if _is_function(value) and name[:1] != "_"]
        near = did_you_mean(self._function_name, names)
        hint = near or (f"it has: {', '.join(sorted(names))}" if names else "it has no functions")
        return ComponentNotFoundException(
            f"component file `{self._filepath}` has no function `{self._function_name}`", hint=hint
        )


def get_component(name: str, validators: list[ComponentFunctionValidator] | None = None) -> _Component:
    """Return the component of that name.

    Args:
        validators: checks of its source; None for those that the argument parser requires.

    Raises:
        ComponentNotFoundException: there is no such component; the hint has the nearest name.
        ComponentValidationException: the component is invalid; the message has file and line.
        PluginError: the plugin that provides it cannot be loaded.

    >>> get_component("utils.echo").fn_name
    'echo'
    """
    component = _find(name, validators)
    if component.validation_errors:
        first, *others = component.validation_errors
        more = f" (and {len(others)} more)" if others else ""
        raise ComponentValidationException(f"component `{name}` cannot be used: {first}{more}", hint="; ".join(others))
    return component


def get_components(validators: list[ComponentFunctionValidator] | None = None) -> dict[str, _Component]:
    """Return all built-in and installed components by name. Plugins that fail to load are skipped with a warning."""
    found: dict[str, _Component] = {}
    for module in _builtin_modules():
        for c in ModuleComponentsFinder(f"{_PACKAGE}.{module}", module).find(validators):
            found[c.name] = c
    for name in names(_GROUP):
        try:
            loaded = load(_GROUP, name)
        except PluginError as e:
            _warn(str(e))
            continue
        if isinstance(loaded, ModuleType):
            found.update({c.name: c for c in ModuleComponentsFinder(loaded, name).find(validators)})
        elif callable(loaded):
            found[name] = _component(name, loaded, validators)
        else:
            _warn(f"component plugin `{name}` is neither a module nor a function")
    return found


def get_builtin_source(name: str, validators: list[ComponentFunctionValidator] | None = None) -> str:
    """Return the source of a component as a standalone file, to copy and change.

    Raises:
        ComponentNotFoundException: there is no such component.

    >>> print(get_builtin_source("utils.touch").splitlines()[-1].strip())
    return specs.AppDef(name="touch", roles=[role])
    """
    from torchx.component_reader.copy import standalone_source

    return standalone_source(get_component(name, validators).fn)


def component_names() -> list[str]:
    """Return component names for suggestions and completion: built-ins, and those of plugins that need no import."""
    return [*(f"{m}.{fn}" for m, fns in BUILTINS.items() for fn in fns), *names(_GROUP)]


def module_relname(module: ModuleType, relative_to: ModuleType) -> str:
    """Return the dotted name of a module relative to a package; empty for the package itself.

    Raises:
        ValueError: the module is not below the package.

    >>> import os, os.path, xml, xml.dom
    >>> module_relname(xml.dom, relative_to=xml)
    'dom'
    """
    if module.__name__ == relative_to.__name__:
        return ""
    if not module.__name__.startswith(f"{relative_to.__name__}."):
        raise ValueError(f"`{module.__name__}` is not a module below `{relative_to.__name__}`")
    return module.__name__[len(relative_to.__name__) + 1 :]


def is_package(module: ModuleType) -> bool:
    """Return whether it is a package, with or without an ``__init__.py``."""
    return hasattr(module, "__path__")


def is_namespace_package(module: ModuleType) -> bool:
    """Return whether it is a package without an ``__init__.py``."""
    return is_package(module) and getattr(module, "__file__", None) is None


def _find(name: str, validators: list[ComponentFunctionValidator] | None) -> _Component:
    path, colon, function = name.rpartition(":")
    if colon and path and function:
        return CustomComponentsFinder(path, function).find(validators)[0]
    fn = _from_plugins(name) or _from_builtins(name)
    if fn is not None:
        # A test checks the built-in components, so they are not checked again here.
        is_own = validators is None and (fn.__module__ or "").startswith(f"{_PACKAGE}.")
        return _Component(name, _first_line(fn), fn.__name__, fn) if is_own else _component(name, fn, validators)
    raise _not_found(name)


def _from_builtins(name: str) -> Any:
    parts = name.split(".")
    if len(parts) < 2 or (parts[0] not in BUILTINS and parts[0] not in _builtin_modules()):
        return None
    return _below(_import(_PACKAGE), parts)


def _from_plugins(name: str) -> Any:
    offered = names(_GROUP)
    if name in offered:
        loaded = load(_GROUP, name)
        if not isinstance(loaded, ModuleType):
            if not callable(loaded):
                raise ComponentValidationException(f"component plugin `{name}` is neither a module nor a function")
            return loaded
    parts = name.split(".")
    prefixes = [(".".join(parts[:i]), parts[i:]) for i in range(len(parts) - 1, 0, -1)]
    for prefix, rest in [*(p for p in prefixes if p[0] in offered), *((n, parts) for n in offered if n[:1] == "_")]:
        try:
            loaded = load(_GROUP, prefix)
        except ImportError:
            if prefix in parts[:1]:
                raise
            continue  # an entry point with `_`, which may not be the one that provides the component
        if isinstance(loaded, ModuleType):
            found = _below(loaded, rest)
            if found is not None:
                return found
    return None


def _below(module: ModuleType, names: list[str]) -> Any:
    """Return the component ``names[-1]`` of the submodule that the other names lead to, or None."""
    if any(n.startswith("_") or not n.isidentifier() for n in names):
        return None
    target = ".".join([module.__name__, *names[:-1]])
    try:
        found = _import(target)
    except ComponentValidationException as e:
        error = e.__cause__
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{target}.".startswith(f"{missing}."):
            return None
        raise
    fn = getattr(found, names[-1], None)
    return fn if callable(fn) and (returns_appdef(fn) or _lacks_return_type(fn, found)) else None


def _lacks_return_type(fn: Any, module: ModuleType) -> bool:
    """Whether a function of the module has no return type: validation reports it as an invalid component."""
    return getattr(fn, "__module__", "") == module.__name__ and "return" not in getattr(fn, "__annotations__", {})


def _component(
    name: str, fn: Any, validators: list[ComponentFunctionValidator] | None, *, path: str = ""
) -> _Component:
    errors = _validation_errors(fn, validators)
    description = _first_line(fn) or (f"{path} has no description" if path else "")
    return _Component(name, description, getattr(fn, "__name__", name), fn, errors)


def _validation_errors(fn: Any, validators: list[ComponentFunctionValidator] | None) -> list[str]:
    """Check the live function; its source is read only for better messages, or for further validators."""
    problem = ""
    try:
        read(fn)
        if not isinstance(unwrap(fn), FunctionType | MethodType) and not returns_appdef(fn):
            what = "a class" if isinstance(unwrap(fn), type) else "an object that can be called"
            named = getattr(fn, "__name__", type(fn).__name__)
            problem = f"{location(fn)}: `{named}` is {what}, not a function: write `def name(...) -> AppDef` around it"
        elif not returns_appdef(fn):
            problem = f"{location(fn)}: `{getattr(fn, '__name__', fn)}` has no return type `-> AppDef`"
    except SpecError as e:
        problem = str(e)
    if not problem and validators is None:
        return []
    inner = unwrap(fn)
    code = getattr(inner, "__code__", None)
    if code is None:
        return [problem] if problem else []
    from torchx.component_reader.linter import validate

    found = [m.description for m in validate(code.co_filename, inner.__name__, validators)]
    return found or ([problem] if problem else [])


def _walk(module: ModuleType) -> Iterator[ModuleType]:
    yield module
    if not is_package(module):
        return
    import pkgutil

    for info in sorted(pkgutil.iter_modules(module.__path__), key=lambda i: i.name):
        if info.name.startswith("_"):
            continue
        try:
            child = _import(f"{module.__name__}.{info.name}")
        except ComponentValidationException as e:
            _warn(f"{e}: its components are skipped")
            continue
        yield from _walk(child)


def _functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield name and function of the components that a module defines, in alphabetical order."""
    for name, value in sorted(vars(module).items()):
        own = _is_function(value) and getattr(value, "__module__", "") == module.__name__
        if own and not name.startswith("_") and returns_appdef(value):
            yield name, value


def _is_function(value: Any) -> bool:
    return isinstance(value, FunctionType) or (callable(value) and hasattr(value, "__wrapped__"))


def _resolve(module: ModuleType, dotted: str) -> Any:
    found: Any = module
    for part in dotted.split("."):
        found = getattr(found, part, None)
    return found if callable(found) else None


def _import(module: str) -> ModuleType:
    try:
        __import__(module)
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        message = f"component module `{module}` cannot be imported: {blame(e)}"
        raise ComponentValidationException(message, hint=_import_hint(e)) from e
    return sys.modules[module]


def load_module(name: str) -> ModuleType:
    """Import a module, from the current directory, too; ComponentNotFoundException if there is none of that name."""
    here = os.getcwd()
    added = [] if {here, ""} & {*sys.path} else [here]
    sys.path[:0] = added
    try:
        module = _import(name)
    except ComponentValidationException as e:
        missing = e.__cause__.name if isinstance(e.__cause__, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise
        raise ComponentNotFoundException(
            f"there is neither a component file nor a module `{name}`", hint=f"torchx looked in `{here}`"
        ) from e
    finally:
        sys.path[:] = [path for path in sys.path if path not in added]
    if added and (module.__file__ or "").startswith(os.path.join(here, "")):
        setattr(module, PATHS, (here,))  # for what it imports when it is called
    return module


def _import_hint(error: BaseException) -> str:
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return f"install `{name}`, or put its directory on PYTHONPATH" if name else ""


def _builtin_modules() -> list[str]:
    """Return the modules of ``torchx.components`` by its files, so that added modules are found too."""
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "components")
    stems = [n.partition(".")[0] for n in os.listdir(folder) if n.endswith(".py") or "." not in n]
    return sorted(n for n in stems if not n.startswith("_") and n not in ("base", "component_test_base"))


def _first_line(fn: Any) -> str:
    doc = (getattr(fn, "__doc__", None) or "").strip()
    return doc.splitlines()[0].strip() if doc else ""


def _near_file(path: str) -> str:
    folder = os.path.dirname(path) or "."
    try:
        files = [n for n in os.listdir(folder) if n.endswith(".py")]
    except OSError:
        return f"there is no directory `{folder}`"
    return did_you_mean(os.path.basename(path), files) or f"torchx looked in `{os.path.abspath(folder)}`"


def _not_found(name: str) -> ComponentNotFoundException:
    cheap = component_names()
    if name.rstrip(":").endswith(".py"):
        hint = f"name a function of the file: `{name.rstrip(':')}:function`"
    elif below := [n for n in (get_components() if name in cheap else cheap) if n.startswith(f"{name}.")]:
        hint = f"it is a module, with: {', '.join(below)}"
    elif nearest(name, cheap := [n for n in cheap if n != name]):
        hint = did_you_mean(name, cheap)
    else:
        # Importing all components is acceptable here: the command fails anyway.
        hint = did_you_mean(name, get_components()) or "`torchx builtins` lists them"
    if "." not in name:
        from shutil import which

        hint += f"; `torchx run -- {name} ...` runs the program" if which(name) else ""
    failures = [str(f) for f in decorated(_GROUP)[1]]
    return ComponentNotFoundException(f"there is no component `{name}`", hint="; ".join([hint, *failures]))


def _warn(text: str) -> None:
    logger("torchx").warning("%s", text)
