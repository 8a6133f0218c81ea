"""The page as a person sees it, in a real Chromium: live, with 10,000 runs, fast logs, hostile texts, by keyboard."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="playwright is not installed; the extra `ci` has it")

from tests.backends.ui.browser import PROGRAM, browser
from tests.ui.conftest import Page, home, pages, run
from torchx.util.datetime import ago, duration
from torchx.util.strings import size_text

pytestmark = pytest.mark.skipif(not shutil.which(PROGRAM), reason=f"{PROGRAM} is not installed")
__all__ = ["home", "pages", "run"]

Pages = Callable[..., Page]
Run = Callable[..., str]

HOSTILE = (
    "<script>document.title='pwned'</script>",
    "<img src=x onerror=\"document.title='pwned'\">",
    "'\"><svg onload=document.title='pwned'>",
    "javascript:document.title='pwned'",
    "</pre></body><iframe srcdoc=\"<script>parent.document.title='pwned'</script>\">",
    "{{constructor.constructor('document.title=1')()}}",
    "\\u003cscript\\u003edocument.title='pwned'\\u003c/script\\u003e",
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def tab(chromium: Any, pages: Pages) -> Iterator[Any]:  # closed before the servers are killed
    """A page of its own; what the browser complained of ends the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 840})
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.set_default_timeout(60_000)
    yield page
    context.close()
    assert [text for text in wrong if "404" not in text] == []  # a run that is not known is asked for


def _rows(tab: Any) -> Any:
    return tab.locator(".row:not(.head)")


def _ended(env: dict[str, str], *handles: str) -> None:
    for handle in handles:
        subprocess.run([sys.executable, "-m", "torchx", "cancel", handle], env=env, check=True, capture_output=True)


def test_a_run_appears_and_ends_without_a_reload(tab: Any, pages: Pages, run: Run, tmp_path: Path) -> None:
    """A run that is launched meanwhile comes, its state changes, and its cause is there."""
    page = pages()
    tab.goto(page.address)
    tab.get_by_text("No runs yet").wait_for()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    run(f"read -r line < {gate}; echo $line >&2; exit 3")
    _rows(tab).filter(has_text="running").wait_for()
    gate.write_text("no data in /data\n")
    _rows(tab).filter(has_text="failed").filter(has_text="no data in /data").wait_for()
    assert "token" not in tab.url
    _rows(tab).click()
    tab.get_by_role("region", name="Cause").get_by_text("exit code 3: no data in /data").wait_for()
    tab.locator(".line", has_text="no data in /data").wait_for()


def test_every_tab_of_the_browser_that_was_opened(
    chromium: Any, tab: Any, pages: Pages, run: Run, tmp_path: Path
) -> None:
    """The address in its arguments signs it in once, also in further tabs; it is worth nothing to another browser."""
    run("true", "--wait")
    browser, told = tmp_path / "browser", tmp_path / "told"
    browser.write_text(f'#!/bin/sh\necho "$@" >> {told}\n')
    browser.chmod(0o755)
    os.mkfifo(told)
    page = pages(BROWSER=str(browser), DISPLAY=":0")
    once = told.read_text().strip()
    tab.goto(once)
    tab.get_by_role("status").get_by_text("live", exact=True).wait_for()
    assert "code" not in tab.url
    with tab.context.expect_page() as opened:
        _rows(tab).locator("a").first.click(modifiers=["Control"])
    opened.value.get_by_role("status").get_by_text("live", exact=True).wait_for()
    other = chromium.new_context()
    try:
        stranger = other.new_page()
        stranger.goto(once)
        stranger.get_by_text("not signed in").wait_for()
        stranger.goto(page.address)  # in the same tab, which only the part behind # changes for
        stranger.get_by_role("status").get_by_text("live", exact=True).wait_for()
        assert "token" not in stranger.url
    finally:
        other.close()


def test_a_choice_stands_in_the_address(tab: Any, pages: Pages, run: Run) -> None:
    """What is searched and chosen survives a reload, and so does the right to ask."""
    run("true", "--wait")
    run("exit 3", "--wait")
    tab.goto(pages().address)
    tab.get_by_role("button", name="failed").click()
    _rows(tab).filter(has_text="succeeded").wait_for(state="detached")
    tab.get_by_label("Search runs").fill("exit code 3")
    tab.wait_for_url(lambda url: "state=FAILED" in url and "q=exit+code+3" in url)  # the driver hears of it later
    tab.reload()
    _rows(tab).wait_for()
    assert _rows(tab).count() == 1
    _rows(tab).click()
    tab.get_by_role("link", name="Runs").click()
    _rows(tab).wait_for()
    assert "state=FAILED" in tab.url and tab.get_by_label("Search runs").input_value() == "exit code 3"
    tab.get_by_label("Search runs").fill("nothing like this")
    tab.get_by_text("No run matches").wait_for()
    assert [chip.inner_text() for chip in tab.locator(".chip").all()] == ["all 0", "failed 0"]
    tab.get_by_role("button", name="Show all runs").click()
    tab.get_by_role("button", name="all 2").wait_for()
    assert _rows(tab).count() == 2


def test_by_keyboard_alone(tab: Any, pages: Pages, run: Run) -> None:
    """Down, Enter, jump to the failure, back, search."""
    run("true", "--wait")
    run("seq 3000; echo ValueError: bad batch >&2; seq 3000 >&2; exit 3", "--wait")
    tab.goto(pages().address)
    _rows(tab).nth(1).wait_for()
    tab.keyboard.press("j")
    assert "chosen" in _rows(tab).nth(1).get_attribute("class")
    tab.keyboard.press("ArrowUp")
    tab.keyboard.press("Enter")
    tab.locator(".line.hit").wait_for()
    tab.locator(".log").hover()
    tab.mouse.wheel(0, 10_000)
    tab.locator(".line", has_text="3000").first.wait_for()
    tab.keyboard.press("f")
    tab.locator(".line.hit").wait_for()
    tab.keyboard.press("Escape")
    _rows(tab).nth(1).wait_for()
    tab.keyboard.press("/")
    tab.keyboard.type("exit code 3")
    _rows(tab).filter(has_text="succeeded").wait_for(state="detached")


def test_a_job_that_writes_10_000_lines_a_second(tab: Any, pages: Pages, home: dict[str, str]) -> None:
    """The log follows, the page answers meanwhile, and only what is in sight is in the document."""
    script = (
        "import time\n"
        "for s in range(600):\n"
        "    print(*(f'step {100 * s + i} loss 0.5' for i in range(100)), sep='\\n', flush=True)\n"
        "    time.sleep(0.01)\n"
    )
    argv = [sys.executable, "-m", "torchx", "run", "-s", "local_cwd", "utils.python", "-c", script]
    done = subprocess.run(argv, env=home, cwd=home["HOME"], capture_output=True, text=True, check=True)
    handle = done.stdout.split()[0]
    tab.goto(pages().address)
    _rows(tab).first.click()
    tab.locator(".line", has_text="step 59999 ").wait_for()
    slowest = 0.0
    for _ in range(20):
        since = time.monotonic()
        tab.evaluate("() => new Promise(requestAnimationFrame)")
        slowest = max(slowest, time.monotonic() - since)
    assert tab.locator(".line").count() < 200
    assert slowest < 5
    tab.get_by_label("Find in log").fill("step 45000 ")
    tab.locator(".line.hit", has_text="step 45000 ").wait_for()
    subprocess.run([sys.executable, "-m", "torchx", "wait", handle], env=home, check=True, capture_output=True)


def test_hostile_texts_stay_texts(tab: Any, pages: Pages, home: dict[str, str], tmp_path: Path) -> None:
    """In logs, causes, arguments and the address: they are shown, and nothing of them is done."""
    for text in HOSTILE:
        argv = [sys.executable, "-m", "torchx", "run", "-s", "local_cwd", "--wait", "utils.python", "-c"]
        program = f"import sys; print({text!r}); raise ValueError({text!r})"
        subprocess.run([*argv, program], env=home, cwd=tmp_path, capture_output=True, check=False)
    page = pages()
    tab.goto(page.address)
    _rows(tab).nth(len(HOSTILE) - 1).wait_for()
    for i in range(len(HOSTILE)):
        _rows(tab).nth(i).wait_for()
        assert "ValueError" in _rows(tab).nth(i).inner_text()
        _rows(tab).nth(i).click()
        tab.locator(".line").first.wait_for()
        for summary in tab.locator("summary").all():
            summary.click()
        shown = tab.locator("main").inner_text()
        assert HOSTILE[len(HOSTILE) - 1 - i] in shown
        assert tab.locator("main script, main iframe, main img, main svg").count() == 0
        assert "pwned" not in tab.title()
        tab.go_back()
    tab.goto(f"http://127.0.0.1:{page.port}/run?handle=<img src=x onerror=\"document.title='pwned'\">")
    tab.locator(".empty").wait_for()
    tab.goto(f"http://127.0.0.1:{page.port}/?q=<script>document.title='pwned'</script>none")
    tab.get_by_text("No run matches").wait_for()
    assert "pwned" not in tab.title()


def test_ten_thousand_runs(tab: Any, pages: Pages, home: dict[str, str]) -> None:
    """All are there, a handful is in the document, and a key is answered at once."""
    fill = (
        "from torchx.runs import default_registry\n"
        "from torchx.runs.records import NewRun\n"
        "from torchx.specs.api import AppState\n"
        "registry = default_registry()\n"
        "for i in range(10_000):\n"
        "    handle = f'local_cwd://torchx/job-{i}'\n"
        "    run = NewRun(scheduler='local_cwd', session='torchx', name=f'job-{i}', handle=handle)\n"
        "    registry.submitted(registry.begin(run), handle)\n"
        "registry.saw_many([(f'local_cwd://torchx/job-{i}', AppState.SUCCEEDED, '', 1e9) for i in range(10_000)])\n"
    )
    subprocess.run([sys.executable, "-c", fill], env=home, check=True)
    tab.goto(pages().address)
    tab.get_by_role("button", name="all 10,000").wait_for()
    assert _rows(tab).count() < 100
    since = time.monotonic()
    tab.keyboard.press("j")
    tab.evaluate("() => new Promise(requestAnimationFrame)")
    assert time.monotonic() - since < 5
    tab.get_by_label("Search runs").fill("job-7777")
    _rows(tab).filter(has_text="job-7777").wait_for()


def test_charts_of_what_it_uses(tab: Any, pages: Pages, run: Run, home: dict[str, str]) -> None:
    """A chart for each resource with its peak, a line for each attempt; a job without samples has none."""
    handle, short = run("true", "--wait"), run("true", "--wait")
    folder = Path(home["TORCHX_HOME"], "local", "torchx", handle.rpartition("/")[2], "sh", "0")
    rows = [f'{{"t":{1000 + 15 * i},"a":{i // 2},"cpu":{i},"mem":{i << 30},"gpu":[]}}' for i in range(4)]
    (folder / "metrics.jsonl").write_text("\n".join(['{"memory_limit":4294967296,"cpus":8}', *rows]) + "\n")
    page = pages()
    tab.goto(page.address)
    _rows(tab).filter(has_text=handle.rpartition("/")[2]).click()
    tab.get_by_role("img", name="Memory: peak 3 GiB of 4 GiB").wait_for()
    tab.get_by_role("img", name="CPU: peak 3.0 of 8.0").wait_for()
    assert (tab.locator("polyline").count(), tab.locator("line.limit").count()) == (4, 2)
    assert [" ".join(axis.split()) for axis in tab.locator(".upward").all_inner_texts()] == [
        "8.0 4.0 0.0",
        "4 GiB 2 GiB 0 B",
    ]
    assert tab.get_by_role("img", name="GPU").count() == 0
    tab.keyboard.press("Escape")
    _rows(tab).filter(has_text=short.rpartition("/")[2]).click()
    tab.locator(".line, .log").first.wait_for()
    assert tab.locator("figure").count() == 0


@pytest.mark.parametrize(
    ("name", "ours", "values"),
    [
        ("span", duration, (0, 0.04, 9.96, 10, 59.9, 60, 187, 3600, 7500, 86_400, 200_000)),
        ("size", size_text, (0, 512, 999, 1000, 10_000, 3_435_973_837, 80 * 2**30, 2**31, 2**55)),
        ("ago", lambda s: ago(0, now=s), (0, 0.9, 1, 60, 119.5, 120, 5400, 7200, 3 * 3600 + 5, 172_799, 86_400 * 3)),
    ],
)
def test_durations_sizes_and_ages_are_those_of_commands(
    tab: Any, pages: Pages, name: str, ours: Callable[[float], str], values: tuple[float, ...]
) -> None:
    """The page has functions of its own, which give the same texts."""
    tab.goto(pages().address)
    call = "ago(0, value)" if name == "ago" else f"{name}(value)"
    theirs = tab.evaluate(f"values => import('/parts.js').then(({{ {name} }}) => values.map(value => {call}))", values)
    assert theirs == [ours(value) for value in values]


def test_a_running_job_is_followed_and_a_failed_one_opens_at_its_failure(tab: Any, pages: Pages, run: Run) -> None:
    """A log that ends at a failure shows it to who follows; times are of 24 hours; the buttons are those that help."""
    handle = run("until test -e go; do sleep 0.05; done; echo ValueError: bad batch >&2; seq 3000 >&2; exit 3")
    page = pages()
    tab.goto(page.address)
    _rows(tab).click()
    tab.get_by_text("running for").wait_for()
    tab.get_by_role("button", name="Follow").wait_for()
    assert tab.get_by_role("button", name="Jump to failure").count() == 0
    Path(page.env["HOME"], "go").touch()
    tab.locator(".line.hit", has_text="3000").wait_for()  # the last line, the cause of a script
    tab.get_by_role("button", name="Jump to failure").wait_for()
    assert tab.get_by_role("button", name="Follow").count() == 0
    tab.get_by_text("took").wait_for()
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", text) for text in tab.locator(".axis span").all_inner_texts())
    assert tab.locator(f"span[title^='{time.strftime('%Y-%m-%d ')}']").count() == 1
    assert handle


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_by_everybody(chromium: Any, pages: Pages, run: Run, scheme: str) -> None:
    """axe-core finds nothing on the list and on a run's page: labels, roles, contrast."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    ok, failed = run("true", "--wait"), run("echo one; exit 3", "--wait")
    waiting = run("sleep 1000")
    context = chromium.new_context(color_scheme=scheme, bypass_csp=True)
    try:
        tab = context.new_page()
        tab.goto((page := pages()).address)
        _rows(tab).nth(2).wait_for()
        found = [axe.Axe().run(tab)]
        _rows(tab).filter(has_text="failed").click()
        tab.locator(".line").first.wait_for()
        found.append(axe.Axe().run(tab))
    finally:
        context.close()
    assert [v["id"] for f in found for v in f.response["violations"]] == [], [f.generate_report() for f in found]
    _ended(page.env, waiting)
    assert ok != failed


def test_a_phone_has_no_line_too_long(chromium: Any, pages: Pages, run: Run) -> None:
    """On 360 pixels nothing is wider than the screen but the log's own lines."""
    run("echo one; exit 3", "--wait")
    context = chromium.new_context(viewport={"width": 360, "height": 700})
    try:
        tab = context.new_page()
        tab.goto(pages().address)
        _rows(tab).first.wait_for()
        wide = "() => document.scrollingElement.scrollWidth - innerWidth"
        assert tab.evaluate(wide) <= 0
        _rows(tab).first.click()
        tab.locator(".line").first.wait_for()
        assert tab.evaluate(wide) <= 0
        assert (
            tab.evaluate("() => { const m = document.getElementById('main'); return m.scrollWidth - m.clientWidth; }")
            <= 0
        )
    finally:
        context.close()


def test_what_was_allowed_is_a_button(tab: Any, pages: Pages, run: Run) -> None:
    """Without `--allow` there is none; with it, the job is cancelled."""
    run("sleep 1000")
    tab.goto(pages().address)
    _rows(tab).first.click()
    tab.get_by_role("button", name="Copy command").wait_for()
    assert tab.get_by_role("button", name="Cancel").count() == 0
    tab.on("dialog", lambda dialog: dialog.accept())
    tab.goto(pages("--allow", "cancel").address)
    _rows(tab).first.click()
    tab.get_by_role("button", name="Cancel").click()
    tab.locator("h1 + .pill", has_text="cancelled").wait_for()


def test_a_sweep_and_its_tasks(tab: Any, pages: Pages, home: dict[str, str]) -> None:
    """Counts, causes and a square for each task; a task is a page of its own, with its log."""
    argv = [sys.executable, "-m", "torchx", "sweep", "-s", "local_cwd", "--grid", "seed=0..99", "utils.sh", "--"]
    script = "echo seed {seed}; [ {seed} != 42 ] || { echo bad seed >&2; exit 4; }"
    subprocess.run([*argv, script], env=home, cwd=home["HOME"], check=True, capture_output=True)
    tab.goto(pages().address)
    _rows(tab).filter(has_text="failed").click()
    tasks = tab.get_by_role("region", name="Tasks", exact=True)
    tasks.get_by_text("100 of 100 ended · 99 succeeded · 1 failed").wait_for()
    tasks.locator("canvas").hover(position={"x": 2, "y": 2})
    tasks.get_by_text("task 0: succeeded").wait_for()
    results = tab.get_by_role("region", name="Results", exact=True)
    assert results.locator("tr", has_text="bad seed").inner_text().split("\t") == [
        *("42", "✕ failed", "42", "exit code 4: bad seed"),
    ]
    assert not results.locator(".scatter").is_visible()
    tasks.get_by_role("link", name="42").click()
    tab.get_by_role("region", name="Cause").get_by_text("exit code 4: bad seed").wait_for()
    tab.locator(".line", has_text="seed 42").wait_for()
    tab.get_by_role("navigation").get_by_role("link", name="sh").click()
    tasks.get_by_text("100 of 100 ended").wait_for()


def test_what_came_out_of_a_sweep(tab: Any, pages: Pages, home: dict[str, str]) -> None:
    """A point for each task that wrote both numbers, and a table to sort; a logarithmic axis where it spans decades."""
    folder = Path(home["HOME"])
    (folder / ".torchxconfig").write_text(f"[torchx:tracker]\nfsspec = {folder}/tracked\n")
    (folder / "train.py").write_text(
        "import sys\nfrom torchx.tracker import app_run_from_env\n"
        "app_run_from_env().add_metadata(loss=float(sys.argv[1]) ** 2, note='<img src=x onerror=alert(1)>')\n"
    )
    argv = [sys.executable, "-m", "torchx", "sweep", "-s", "local_cwd", "--grid", "lr=0.001,0.1,1", "utils.python"]
    words = ["--script", "train.py", "--", "{lr}"]
    subprocess.run([*argv, *words], env=home, cwd=folder, check=True, capture_output=True)
    tab.goto(pages().address)
    _rows(tab).filter(has_text="succeeded").click()
    results = tab.get_by_role("region", name="Results", exact=True)
    results.get_by_text("3 tasks have written to the tracker").wait_for()
    results.get_by_role("img", name="loss against lr, 3 tasks").wait_for()
    assert [button.get_attribute("aria-pressed") for button in results.locator(".title button").all()] == [
        "true",
        "true",
    ]
    assert results.locator("td", has_text="<img src=x onerror=alert(1)>").count() == 3
    results.get_by_label("y axis").select_option("task")
    results.get_by_role("img", name="task against lr, 3 tasks").wait_for()
    results.get_by_role("button", name="loss").click()
    results.get_by_role("button", name="loss").click()  # descending
    assert [link.text_content() for link in results.locator("tbody a").all()] == ["2", "1", "0"]
    results.locator("tbody a").first.click()
    tab.locator(".pill", has_text="succeeded").first.wait_for()
    assert tab.url.endswith("%2F2")
