"""The program behind ``torchx top``: the list of runs, and what can be done with them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static

from torchx.errors import TorchXError
from torchx.runner import Runner
from torchx.runner.shown import Row, run_row
from torchx.ui.live import Live
from torchx.ui.top.page import Page
from torchx.ui.top.rows import KEY, MUTED, STYLES, WARN, Rows
from torchx.ui.top.runs import GROUPS, RunList
from torchx.util.term import printable

_KEYS = """\
[b]Everywhere[/b]
  j k ↑ ↓ g G  choose        Enter   open
  c            cancel        Esc q   back; q ends the list
  r            rerun         s       shell inside
[b]Runs[/b]
  /            search names, ids, schedulers, states, causes
  f F          next, previous group of states
  Esc          all of them again
[b]A run[/b]
  Enter        log of that replica alone; a: of all
  l            log full screen, and back
  t            when what happened, and back
  Tab          from the replicas to the log, and back
[b]A sweep[/b]
  Enter        open the task; those that failed are first

?  this help. torchx top reads: jobs go on when it ends."""


class Ask(ModalScreen[bool]):
    """A question that only `y` says yes to."""

    BINDINGS: ClassVar = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """What is on the screen."""
        with Vertical(id="box"):
            yield Static(Text(self._question), id="question")
            yield Static(Text.assemble(("y", KEY), (" yes    ", MUTED), ("n", KEY), (" no", MUTED)))

    def action_answer(self, answer: bool) -> None:
        """Hands the answer to who asked."""
        self.dismiss(answer)


class Help(ModalScreen[None]):
    """The keys."""

    BINDINGS: ClassVar = [Binding("escape,q,question_mark,enter", "app.pop_screen", "back")]

    def compose(self) -> ComposeResult:
        """What is on the screen."""
        yield Static(_KEYS, id="help")


class Top(App[None]):
    """The list of runs.

    Args:
        runner: reads the record; asks the schedulers through the pollers, and that of the run that is open itself.
    """

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
    ]

    def __init__(self, runner: Runner) -> None:
        super().__init__()
        self.runner = runner
        self.runs = RunList()
        self._live = Live(lambda: [run_row(run) for run in runner.runs(refresh=False)], runner.watch)
        self._chosen = ""
        words = "words in name, id, scheduler, state or cause; Enter keeps them, Esc clears"
        self._words = Input(placeholder=words, id="search")
        self._list = Rows(self.runs, id="runs")
        self._counts, self._why = Static(id="sum"), Static(id="why")

    def compose(self) -> ComposeResult:
        """What is on the screen."""
        yield self._counts
        yield self._words
        yield self._list
        yield self._why
        yield Footer()

    def on_mount(self) -> None:
        """Begins to read."""
        self.theme = "textual-dark"
        self._words.display = False
        self._list.focus()
        self.run_worker(self._read(), group="news")
        self.set_interval(1.0, self._tick)

    # -- what is new -------------------------------------------------------------------------------

    async def _read(self) -> None:
        async with contextlib.aclosing(self._live.news()) as documents:
            async for news in documents:
                self.runs.update(news["rows"])
                self._show()
                self._sum(news["problems"])
                page, new = self.screen, {row["handle"] for row in news["rows"]}
                if isinstance(page, Page) and not new.isdisjoint((page.handle, page.handle.rpartition("/")[0])):
                    page.changed()

    def _tick(self) -> None:
        self._list.refresh()  # what is so long ago

    def _show(self) -> None:
        """The list, with the same run chosen as before, wherever it is now."""
        at = self.runs.position(self._chosen)
        self._list.show(self.runs, at)
        self._choose()

    def _choose(self) -> None:
        row = self._row()
        self._chosen = row["handle"] if row else ""
        text = Text(overflow="ellipsis")
        if row:
            text.append(row["handle"], MUTED)
            if row["msg"]:
                text.append("\n" + printable(" ".join(row["msg"].split())), STYLES.get(row["state"], ""))
        elif not self.runs.counts() or not any(self.runs.counts().values()):
            text.append("no runs on record: `torchx run` launches one", MUTED)
        else:
            text.append("none of the runs is like this: Esc shows all", MUTED)
        self._why.update(text, layout=False)

    def _sum(self, problems: dict[str, str] | None = None) -> None:
        text = Text("torchx  ", style="bold", no_wrap=True, overflow="ellipsis")
        for group, count in self.runs.counts().items():
            if count or group == self.runs.group:
                colour = STYLES[GROUPS[group][0]]
                chosen = " reverse" if group == self.runs.group else ""
                text.append(f" {count:,} {group} ", colour + chosen)
                text.append(" ")
        if self.runs.words:
            text.append(f" /{self.runs.words} ", "reverse")
        for name, why in (problems or {}).items():
            text.append(f"  {name} cannot be asked: {printable(why)}", WARN)
        self._counts.update(text, layout=False)

    def _row(self) -> Row | None:
        i = self._list.cursor
        return self.runs.shown[i] if i < len(self.runs.shown) else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002  # Textual's
        """Keys of the list mean nothing on the page of a run."""
        return len(self.screen_stack) == 1 or action not in ("search", "group", "everything")

    # -- keys ----------------------------------------------------------------------------------------

    def on_rows_chosen(self) -> None:
        """What is said below the list is of the chosen run."""
        self._choose()

    def on_rows_opened(self) -> None:
        """The page of the chosen run."""
        if row := self._row():
            self.push_screen(Page(row["handle"], sweep=bool(row["tasks"])))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Searches while one types."""
        self.runs.words = event.value
        self._again()

    def on_input_submitted(self) -> None:
        """Keeps the words, and goes back to the list."""
        self._words.display = bool(self.runs.words)
        self._list.focus()

    def _again(self) -> None:
        self.runs.choose()
        self._show()
        self._sum()

    def action_search(self) -> None:
        """Asks for words."""
        self._words.display = True
        self._words.focus()

    def action_group(self, by: int) -> None:
        """The next group of states; after the last one all."""
        names = ["", *GROUPS]
        self.runs.group = names[(names.index(self.runs.group) + by) % len(names)]
        self._again()

    def action_everything(self) -> None:
        """All runs again."""
        self.runs.group = self._words.value = ""
        self._words.display = False
        self._list.focus()
        self._again()

    def action_help(self) -> None:
        """Shows the keys."""
        self.push_screen(Help())

    def _job(self) -> Row | None:
        return self.screen.row() if isinstance(self.screen, Page) else self.runs.get(self._chosen)

    def action_cancel(self) -> None:
        """Ends a job, after a question."""
        row = self._job()
        if row is None:
            return
        if row["ended"]:
            self.notify(f"{row['app_id']} has ended already")
            return
        self._ask(f"Cancel {row['app_id']}?", "cancel", row)

    def action_rerun(self) -> None:
        """Launches a run again, after a question."""
        if (row := self._job()) is None:
            return
        if self.runs.get(row["handle"]) is None:
            self.notify("a task is launched again with its sweep: `torchx sweep --retry-failed`", markup=False)
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
            self.notify(f"launched {new}" if new else "it is being cancelled", markup=False)

    def action_shell(self) -> None:
        """Leaves the screen to a shell inside the job, and comes back."""
        row = self._job()
        if row is None:
            return
        if row["state"] != "RUNNING":
            self.notify(f"{row['app_id']} does not run: there is nothing to open a shell in")
            return
        target = self.screen.chosen() if isinstance(self.screen, Page) else row["handle"]
        with self.suspend():
            _shell(target)
        self.refresh()


def _shell(target: str) -> None:
    """Opens a shell on the bare terminal, whose Ctrl-C is for what runs there."""
    before = signal.signal(signal.SIGINT, lambda *_: None)  # no SIG_IGN: a child would inherit that
    try:
        print(f"{target}: the end of this shell leads back to torchx top", flush=True)  # noqa: T201  # for a moment it is a terminal like any other
        if code := subprocess.call([sys.executable, "-m", "torchx", "shell", target]):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with contextlib.suppress(KeyboardInterrupt, EOFError):
                input(f"torchx shell ended with exit code {code}; Enter leads back ")
    finally:
        signal.signal(signal.SIGINT, before)
