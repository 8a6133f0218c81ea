"""The one exception tree of torchx.

::

    TorchXError                     exit 2   .hint, .exit_code
    ├── SpecError (ValueError)      exit 2   an AppDef, Role, mount, macro or component is wrong
    ├── ConfigError (ValueError)    exit 2   a run option, config file or profile is wrong
    ├── HandleError (ValueError)    exit 2   an app handle or a reference to a run is malformed
    ├── NotFoundError (LookupError) exit 3   no such app, role, replica, run or plugin
    ├── BackendError (RuntimeError) exit 4   the scheduler's backend failed
    │   ├── CommandError            exit 4   one of its commands failed: argv, exit code, stderr
    │   ├── ParseError (ValueError) exit 4   its answer could not be parsed; ``.text`` holds it
    │   └── TransientError          exit 4   the same call may succeed later
    ├── NotSupportedError (NotImplementedError)  exit 5   this backend cannot do it
    └── MissingDependencyError (ImportError)     exit 6   an extra is not installed

Each class also derives from the builtin exception that callers already catch. Other exit codes of the command line:
0 success, 1 the job failed, 2 usage error, 7 the scheduler no longer has the job, 130 interrupted.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_JOB_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_BACKEND = 4
EXIT_NOT_SUPPORTED = 5
EXIT_MISSING_DEPENDENCY = 6
EXIT_GONE = 7
EXIT_NOT_ENDED = 75
EXIT_TIMEOUT = 124
EXIT_INTERRUPTED = 130


class TorchXError(Exception):
    """Base class of all errors that torchx raises on purpose.

    Args:
        message: what failed and why, with the offending value in backticks.
        hint: how to fix it. The command line prints it on its own line; a traceback shows it below the message.
    """

    exit_code: int = EXIT_USAGE

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.__notes__ = [f"hint: {hint}"]  # what add_note() of Python 3.11 does

    def __str__(self) -> str:
        return self.message


class SpecError(TorchXError, ValueError):
    """The description of the job is invalid."""


class ConfigError(TorchXError, ValueError):
    """A run option, a config file or a profile is invalid."""


class HandleError(TorchXError, ValueError):
    """An app handle, or a short reference to a run, is malformed or ambiguous."""


class NotFoundError(TorchXError, LookupError):
    """The named thing does not exist."""

    exit_code = EXIT_NOT_FOUND


class BackendError(TorchXError, RuntimeError):
    """The scheduler's backend failed or refused."""

    exit_code = EXIT_BACKEND


class CommandError(BackendError):
    """A command of the backend failed.

    Args:
        argv: the command line.
        returncode: its exit code.
        stderr: its standard error.
    """

    def __init__(
        self,
        message: str = "",
        *,
        argv: list[str] | None = None,
        returncode: int | None = None,
        stderr: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.argv = list(argv or ())
        self.returncode = returncode
        self.stderr = stderr


class ParseError(BackendError, ValueError):
    """An answer of the backend could not be parsed.

    Args:
        text: the complete answer.
    """

    def __init__(self, message: str = "", *, text: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.text = text


class TransientError(BackendError):
    """A transient failure: retrying the same call may succeed."""


class Unsent:
    """Context in which nothing of a job has been sent: an error in it is not transient, as the job cannot exist.

    >>> with Unsent():
    ...     raise TransientError("no answer")
    Traceback (most recent call last):
    torchx.errors.BackendError: no answer
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if isinstance(error, TransientError):
            raise BackendError(error.message, hint=error.hint) from error


class NotSupportedError(TorchXError, NotImplementedError):
    """The backend does not support the operation."""

    exit_code = EXIT_NOT_SUPPORTED


class MissingDependencyError(TorchXError, ImportError):
    """An optional dependency is not installed."""

    exit_code = EXIT_MISSING_DEPENDENCY


def install_extra(name: str) -> str:
    """Return the ``pip`` command that installs the packages of an extra.

    It lists the packages instead of ``torchx[NAME]``, because ``torchx`` on PyPI is another distribution.
    """
    import shlex
    from importlib import metadata

    try:
        requirements = metadata.requires("torchx") or []
    except metadata.PackageNotFoundError:  # sources on PYTHONPATH
        requirements = []
    packages = [line.partition(";")[0].strip() for line in requirements if line.endswith((f"'{name}'", f'"{name}"'))]
    return f"pip install {shlex.join(packages)}" if packages else f"install the packages of torchx's extra `{name}`"
