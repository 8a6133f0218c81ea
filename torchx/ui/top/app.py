"""The Textual application of ``torchx top``: the list of runs, and actions on them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static

from torchx.errors import TorchXError
from torchx.runner import Runner
from torchx.runner.show.tables import Row, run_row
from torchx.ui.live import Live
from torchx.ui.top.page import Page
from torchx.ui.top.parts import GROUPS, RunList, took
from torchx.ui.top.rows import KEY, MUTED, STYLES, WARN, Rows
from torchx.util.datetime import ago
from torchx.util.procs import own_program
from torchx.util.term import printable

_KEYS = """\
[b]Everywhere[/b]
  j k ↑ ↓ g G  choose        Enter   open
  c            cancel        Esc q   back; q ends the list
  r            rerun         s       shell inside
[b]Runs[/b]
  /            search names, ids, schedulers, states, causes
  f F          next, previous group of states
  Esc          show all runs
[b]A run[/b]
  Enter        log of this replica; a: of all replicas
  l            log full screen, and back
  t            timeline, and back
  Tab          switch between replicas and log
[b]A sweep[/b]
  Enter        open the task; failed ones come first

?  this help    Ctrl-C  quit. Jobs continue when torchx top ends."""


class Ask(ModalScreen[bool]):
    BINDINGS: ClassVar = [Binding("y", "answer(True)", "yes"), Binding("n,escape,q", "answer(False)", "no")]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(Text(self._question), id="question")
            yield Static(Text.assemble(("y", KEY), (" yes    ", MUTED), ("n", KEY), (" no", MUTED)))

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class Help(ModalScreen[None]):
    BINDINGS: ClassVar = [Binding("escape,q,question_mark,enter", "app.pop_screen", "back")]

    def compose(self) -> ComposeResult:
        yield Static(_KEYS, id="help")


class Top(App[None]):
    TITLE = "torchx top"
    CSS_PATH = "top.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("slash", "search", "search"),
        Binding("f", "group(1)", "states"),
        Binding("F", "group(-1)", "states", show=False),
        Binding("s", "shell", "shell"),
        Binding("c", "cancel", "cancel"),
        Binding("r", "rerun", "rerun"),
        Binding("question_mark", "help", "help"),
        Binding("escape", "everything", "all runs", show=False),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, runner: Runner) -> None:
        super().__init__()
        self.runner = runner
        self.runs = RunList()
        self._live = Live(lambda: [run_row(run) for run in runner.runs(refresh=False)], runner.watch)
        self._chosen = ""
        self._problems: dict[str, str] = {}  # schedulers that cannot be asked, and why
        words = "words in name, id, scheduler, state or cause; Enter keeps them, Esc clears"
        self._words = Input(placeholder=words, id="search")
        self._list = Rows(self.runs, id="runs")
        self._counts, self._details = Static(id="sum"), Static(id="why")

    def compose(self) -> ComposeResult:
        yield self._counts
        yield self._words
        yield self._list
        yield self._details
        yield Footer()

    def on_mount(self) -> None:
        self.theme = "textual-dark"
        self._words.display = False
        self._list.focus()
        self.run_worker(self._read(), group="news")
        self.set_interval(1.0, self._show_ages)

    # -- updates -----------------------------------------------------------------------------------

    async def _read(self) -> None:
        async with contextlib.aclosing(self._live.news()) as documents:
            async for news in documents:
                self.runs.update(news["rows"])
                self._show()
                self._problems = news["problems"]
                self._show_counts()
                page, new = self.screen, {row["handle"] for row in news["rows"]}
                if isinstance(page, Page) and not new.isdisjoint((page.handle, page.handle.rpartition("/")[0])):
                    page.changed()

    def _show(self) -> None:
        """Show the list, and keep the chosen run chosen."""
        self._list.show(self.runs, self.runs.position(self._chosen))
        self._choose()

    def _show_ages(self) -> None:
        self._list.refresh()
        self._choose()

    def _choose(self) -> None:
        row = self._row()
        self._chosen = row["handle"] if row else ""
        text = Text(overflow="ellipsis")
        if row:
            text.append(
                f"{row['handle']}  launched {ago(row['created'])}{f', took {took(row)}' if row['ended'] else ''}", MUTED
            )
            if row["msg"]:
                text.append("\n" + printable(" ".join(row["msg"].split())), STYLES.get(row["state"], ""))
        elif not any(self.runs.counts().values()):
            text.append("no runs on record: `torchx run` launches one", MUTED)
        else:
            text.append("no run matches: Esc shows all", MUTED)
        self._details.update(text, layout=False)

    def _show_counts(self) -> None:
        text = Text("torchx  ", style="bold", no_wrap=True, overflow="ellipsis")
        for group, count in self.runs.counts().items():
            if count or group == self.runs.group:
                colour = STYLES[GROUPS[group][0]]
                chosen = " reverse" if group == self.runs.group else ""
                text.append(f" {count:,} {group} ", colour + chosen)
                text.append(" ")
        if self.runs.words:
            text.append(f" /{self.runs.words} ", "reverse")
        for name, why in self._problems.items():
            text.append(f"  {name} cannot be asked: {printable(why)}", WARN)
        self._counts.update(text, layout=False)

    def _row(self) -> Row | None:
        i = self._list.cursor
        return self.runs.shown[i] if i < len(self.runs.shown) else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002  # Textual's
        """Disables the keys of the list on the page of a run."""
        return len(self.screen_stack) == 1 or action not in ("search", "group", "everything")

    # -- keys ----------------------------------------------------------------------------------------

    def on_rows_chosen(self) -> None:
        self._choose()

    def on_rows_opened(self) -> None:
        if row := self._row():
            self.push_screen(Page(row["handle"], sweep=bool(row["tasks"])))

    def on_input_changed(self, event: Input.Changed) -> None:
        self.runs.words = event.value
        self._filter()

    def on_input_submitted(self) -> None:
        self._words.display = bool(self.runs.words)
        self._list.focus()

    def _filter(self) -> None:
        self.runs.choose()
        self._show()
        self._show_counts()

    def action_search(self) -> None:
        self._words.display = True
        self._words.focus()

    def action_group(self, by: int) -> None:
        """Show the next group of states; after the last group all runs."""
        names = ["", *GROUPS]
        self.runs.group = names[(names.index(self.runs.group) + by) % len(names)]
        self._filter()

    def action_everything(self) -> None:
        self.runs.group = self._words.value = ""
        self._words.display = False
        self._list.focus()
        self._filter()

    def action_help(self) -> None:
        self.push_screen(Help())

    def _job(self) -> Row | None:
        return self.screen.row() if isinstance(self.screen, Page) else self.runs.get(self._chosen)

    def action_cancel(self) -> None:
        if (row := self._job()) is None:
            return
        if row["ended"]:
            self.notify(f"{row['app_id']} has already ended")
        else:
            self._ask(f"Cancel {row['app_id']}?", "cancel", row)

    def action_rerun(self) -> None:
        if (row := self._job()) is None:
            return
        if self.runs.get(row["handle"]) is None:
            self.notify("tasks are retried with their sweep: `torchx sweep --retry-failed`", markup=False)
        else:
            self._ask(f"Launch {row['name']} again, as {row['app_id']} was?", "rerun", row)

    def _ask(self, question: str, verb: str, row: Row) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._do(verb, row["handle"]), group="do")

        self.push_screen(Ask(printable(question)), answered)

    async def _do(self, verb: str, handle: str) -> None:
        try:
            new = await getattr(self.runner.aio, verb)(handle)
        except TorchXError as e:
            self.notify(printable(f"{e}; {e.hint}" if e.hint else str(e)), severity="error", timeout=10, markup=False)
        else:
            self.notify(f"launched {new}" if new else "cancelling", markup=False)

    def action_shell(self) -> None:
        """Suspends the screen for a shell inside the job."""
        if (row := self._job()) is None:
            return
        if row["state"] != "RUNNING":
            self.notify(f"{row['app_id']} is not running, so no shell can be opened")
            return
        target = self.screen.chosen() if isinstance(self.screen, Page) else row["handle"]
        with self.suspend():
            _shell(target)
        self.refresh()


def _shell(target: str) -> None:
    """Open a shell on the terminal; Ctrl-C goes to the shell only."""
    before = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which a child would inherit
    try:
        print(f"{target}: exit this shell to return to torchx top", flush=True)  # noqa: T201  # the screen is suspended
        if code := subprocess.call(own_program("torchx.cli.main", "shell", "--", target)):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with contextlib.suppress(KeyboardInterrupt, EOFError):
                input(f"torchx shell ended with exit code {code}; press Enter to return ")
    finally:
        signal.signal(signal.SIGINT, before)
