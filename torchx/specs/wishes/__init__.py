"""What a user wants of a job beside its roles: retries, time limits, notices, a watchdog.

Each module has a metadata key and its parser.
"""

from __future__ import annotations

import functools

from torchx.errors import SpecError
from torchx.util.any import Any
from torchx.util.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchx.specs.api import AppDef, Role
    from torchx.specs.wishes.retries import RetryRules
    from torchx.specs.wishes.watchdog import Watchdog


@dataclass(frozen=True)
class Wishes:
    """The wishes of a job; the modules of this package describe them. A new one is a field, and its parser below."""

    retry: RetryRules | None = None
    timeout_s: int = 0
    watchdog: Watchdog | None = None
    idle: Watchdog | None = None
    after: tuple[tuple[str, str], ...] = ()  # condition and handle of each job that this one depends on
    notify: tuple[str, ...] = ()
    notify_on: tuple[str, ...] = ("end",)
    setup: str = ""  # lines of shell
    uv: bool = False
    stage: tuple[tuple[str, str], ...] = ()  # sources, and their paths on the nodes
    check_nodes: tuple[str, ...] = ()  # of `checks.CHECKS`
    spares: int = 0  # nodes beyond those that the job needs
    fetch: tuple[tuple[str, str], ...] = ()  # paths in the job, and where to copy them when it has ended
    texts: dict[str, str] = field(default_factory=dict)  # each wish as its user wrote it, by the name of its field

    @staticmethod
    def of(app: AppDef | None) -> Wishes:
        """Return the wishes of a job; raises SpecError if one is invalid, or needs another that the job lacks.

        >>> from torchx.specs import AppDef
        >>> Wishes.of(AppDef("a", metadata={"torchx/timeout": "1h30m"})).timeout_s
        5400
        """
        return Wishes.read(app.metadata or {}) if app is not None else Wishes()

    def is_plain(self, roles: Iterable[Role]) -> bool:
        """Whether nothing runs before the program, which uses no GPUs: work of processors is its first step.

        >>> from torchx.specs import Resource, Role
        >>> Wishes().is_plain([Role("r", "")]), Wishes().is_plain([Role("r", "", resource=Resource(1, 1, 1))])
        (True, False)
        """
        before = self.setup or self.uv or self.stage or self.check_nodes
        return not before and all(role.resource.gpu <= 0 for role in roles)

    @staticmethod
    def read(metadata: Mapping[str, str]) -> Wishes:
        """Return the wishes in the metadata of a job; see :meth:`of`."""
        given = [(key, text) for key, text in metadata.items() if text and str(key).startswith("torchx/")]
        for key, text in given:
            if not isinstance(text, str) or "\0" in text:
                raise SpecError(f"the metadata `{key}` is `{text!r}`", hint="it is a text, without a NUL character")
        return _parsed(frozenset(given))


@functools.lru_cache(maxsize=16)  # a dry run reads them several times
def _parsed(given: frozenset[tuple[str, str]]) -> Wishes:
    if not given:
        return Wishes()
    from torchx.specs.wishes import after, checks, fetch, idle, notices, retries, setup, stages, timeouts, watchdog

    parsers: dict[str, Any] = {
        "retry": (retries.RETRY, retries.RetryRules.parse),
        "timeout_s": (timeouts.TIMEOUT, timeouts.parse_timeout),
        "watchdog": (watchdog.WATCHDOG, watchdog.parse_watchdog),
        "idle": (idle.IDLE, idle.parse_idle),
        "after": (after.AFTER, after.parse_after),
        "notify": (notices.NOTIFY, notices.parse_channels),
        "notify_on": (notices.NOTIFY_ON, notices.parse_events),
        "setup": (setup.SETUP, str),
        "uv": (setup.UV, setup.parse_uv),
        "stage": (stages.STAGE, stages.parse_stage),
        "check_nodes": (checks.CHECK_NODES, checks.parse_checks),
        "spares": (checks.SPARES, checks.parse_spares),
        "fetch": (fetch.FETCH, fetch.parse_fetch),
    }
    texts = {name: text for name, (wanted, _) in parsers.items() for key, text in given if key == wanted}
    found = Wishes(texts=texts, **{name: parsers[name][1](text) for name, text in texts.items()})
    for name, wish in (("watchdog", found.watchdog), ("idle", found.idle)):
        if wish is not None and wish.action in ("retry", "checkpoint") and found.retry is None:
            said = f"`--{name} {texts[name]}` needs a policy for retries"
            raise SpecError(said, hint="for example `--retry standard`")
    if found.retry is not None and found.retry.total and not 0 < found.timeout_s < found.retry.total_s:
        raise SpecError(
            f"`--total {found.retry.total}` needs the length of a piece, which is shorter",
            hint="for example `--piece 3h`, which is the same as `--timeout 3h`",
        )
    if found.spares and not found.check_nodes:
        raise SpecError("`--spares` needs checks of the nodes", hint="add `--check-nodes`")
    return found
