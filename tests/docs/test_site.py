"""The documentation as a site: what is generated is complete, what is written agrees with the code."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.blocks import blocks
from tests.trees import walk

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
AUTOMODULE = re.compile(r"^\.\. automodule:: (\S+)", re.MULTILINE)
DOCUMENTED = sorted(
    name for page in (DOCS / "reference/python").glob("*.md") for name in AUTOMODULE.findall(page.read_text())
)


@pytest.fixture(
    params=[
        "commands",
        "components",
        "documents",
        "environment",
        "markdown",
        "resources",
        "schedulers",
        "troubleshooting",
    ]
)
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module(f"_site.{request.param}")


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("_site.generated")


def filled(generated: ModuleType, page: str) -> str:
    return generated.fill((DOCS / "reference" / page).read_text())


def test_messages_with_their_hints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What an error says and what to do, below its part of torchx; an error without a hint is not shown."""
    monkeypatch.syspath_prepend(str(DOCS))
    page = importlib.import_module("_site.troubleshooting")
    (tmp_path / "config").mkdir()
    (tmp_path / "config/a.py").write_text(
        'raise ConfigError(f"there is no option `{name}`", hint=f"did you mean `{near}`?")\nraise ConfigError("no hint here")\n'
    )
    assert list(page.messages(tmp_path)) == [("Configuration", "there is no option `…`", "did you mean `…`?")]
    assert "`torchx top` needs a terminal" in page.page()


def test_doctests(part: ModuleType) -> None:
    """The examples in the parts of the site's builder hold."""
    assert doctest.testmod(part).failed == 0


def test_every_place_is_filled(generated: ModuleType) -> None:
    """Each thing that is generated has a page, and no page asks for one that is not generated."""
    asked = [name for page in PAGES for name in re.findall(r"<!-- generated: (.*?) -->", (DOCS / page).read_text())]
    assert sorted(asked) == sorted(generated.CONTENT)


def test_command_line_page(generated: ModuleType) -> None:
    """Every verb and every option that a parser knows is on the page."""
    from torchx.cli.main import create_parser, get_default_sub_cmds

    page = filled(generated, "cli.md")
    verbs = {name: command for name, command in get_default_sub_cmds().items() if not name.startswith("_")}
    assert verbs
    for name, command in verbs.items():
        assert f"\n## `torchx {name}`\n" in page
        (verb,) = (
            dict(a.choices)[name] for a in create_parser({name: command})._actions if isinstance(a.choices, dict)
        )
        for action in verb._actions:
            flags = [] if action.help == "==SUPPRESS==" else action.option_strings
            assert all(re.search(rf"`{re.escape(flag)}[ `]", page) or flag in ("-h", "--help") for flag in flags), name


def test_run_options_page(generated: ModuleType) -> None:
    """Every option of every scheduler is on the page, below the name of its scheduler."""
    from torchx.runner import get_runner
    from torchx.schedulers import DEFAULT_SCHEDULER_MODULES

    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", filled(generated, "run-options.md"), re.M | re.S))
    assert set(sections) == set(DEFAULT_SCHEDULER_MODULES)
    with get_runner() as runner:
        for scheduler, text in sections.items():
            for name, _ in runner.scheduler_run_opts(scheduler):
                assert f"\n`{name}` (" in text


def test_capabilities_page(generated: ModuleType) -> None:
    """A scheduler's column says what its capabilities say."""
    from torchx.schedulers import get_scheduler_factories

    rows = [line.strip("|").split("|") for line in filled(generated, "capabilities.md").splitlines() if line[:1] == "|"]
    head = [re.sub(r"\W*(\w+).*", r"\1", cell) for cell in rows[0]]
    (delete,) = (row for row in rows if row[0].strip() == "`torchx delete`")
    factories = get_scheduler_factories()
    assert set(head[1:]) == set(factories)
    for name, cell in list(zip(head, delete, strict=True))[1:]:
        assert (cell.strip() == "✓") == factories[name]("test").capabilities.delete, name


def test_components_page(generated: ModuleType) -> None:
    """Every built-in component with every parameter is on the page."""
    from torchx.component_reader.finder import get_components

    page = filled(generated, "components.md")
    components = get_components()
    assert "dist.ddp" in components
    for name, component in components.items():
        section = page.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]
        assert section, name
        for parameter in inspect.signature(component.fn).parameters:
            assert parameter in section


def test_every_environment_variable_is_documented(generated: ModuleType) -> None:
    """A name in the sources that looks like a variable of ours is on the page, or is said to be none."""
    from _site.environment import INTERNAL

    page = filled(generated, "environment.md")
    names: set[str] = set()
    for file in (ROOT / "torchx").rglob("*.py"):
        text = file.read_text()
        for node in walk(ast.parse(text)) if "TORCHX_" in text else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
                names |= set(re.findall(r"^TORCHX_[A-Z0-9_]*[A-Z0-9]$", node.value))
    constants = {name for name in names if any(hasattr(importlib.import_module(m), name) for m in DOCUMENTED)}
    unknown = {name for name in names - constants - set(INTERNAL) if f"`{name}`" not in page}
    assert not unknown, "docs/_site/environment.py has to say what these are"


@pytest.mark.parametrize("module", DOCUMENTED)
def test_public_names_have_docstrings(module: str) -> None:
    """What the reference shows has something to show: each public class and function of a documented module."""
    loaded = importlib.import_module(module)
    assert loaded.__doc__
    for name in getattr(loaded, "__all__", [n for n in vars(loaded) if not n.startswith("_")]):
        value = getattr(loaded, name)
        ours = getattr(value, "__module__", "").startswith("torchx.")
        if ours and (inspect.isclass(value) or inspect.isfunction(value)):
            assert value.__doc__, f"{module}.{name}"


def test_every_public_package_has_a_page() -> None:
    """Packages with a list of public names are in the reference."""
    import torchx

    packages = [p for p in Path(torchx.__path__[0]).glob("*/__init__.py") if "__all__ = [" in p.read_text()]
    names = {f"torchx.{p.parent.name}" for p in packages}
    shown = {".".join(module.split(".")[:2]) for module in DOCUMENTED}
    assert names
    assert not names - shown


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_marked_up_in_pairs(page: str) -> None:
    """What is set side by side ends somewhere, and there are at least two blocks of code in it."""
    text = (DOCS / page).read_text()
    begins, ends = text.count("<!-- side by side -->"), text.count("<!-- end -->")
    pairs = re.findall(r"<!-- side by side -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert begins == ends == len(pairs)
    assert all(pair.count("```") == 4 for pair in pairs)


def test_the_sidebar_and_the_moved_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page is in one section, and an old address, which no page has, leads to a page."""
    monkeypatch.syspath_prepend(str(DOCS))
    navigation = importlib.import_module("_site.navigation")
    listed = [page for pages in navigation.SECTIONS.values() for page in pages]
    written = {page.removesuffix(".md") for page in PAGES}
    inner = {page for page in written if page.startswith(("reference/python/", "contributing/decisions/"))}
    assert len(listed) == len(set(listed))
    assert written - inner - {"index"} <= set(listed)
    assert set(navigation.MOVED.values()) <= written
    assert not set(navigation.MOVED) & written


def test_our_side_of_each_pair_runs() -> None:
    """Of each pair on the page for people who come from elsewhere, one block is ours, is executed, and submits nothing."""
    page = DOCS / "coming-from.md"
    pairs = page.read_text().count("<!-- side by side -->")
    executed = [b for b in blocks(str(page)) if b.language in ("bash", "python") and not b.not_run]
    assert len(executed) == pairs >= 4
    assert all("dryrun" in b.body and "torchx" in b.body for b in executed)


def test_exit_codes_are_the_codes() -> None:
    """The table of exit codes has the numbers that the command line uses, and no other."""
    from torchx import errors
    from torchx.cli import failures

    table = (DOCS / "errors.md").read_text().partition("| exit code |")[2].partition("\n\n")[0]
    shown = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    used = {v for m in (errors, failures) for n, v in vars(m).items() if n.startswith("EXIT_") and isinstance(v, int)}
    assert shown == used


def test_names_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference to something that does not exist is found out: this is what makes it a warning."""
    pytest.importorskip("sphinx", reason="make docs has it")
    monkeypatch.syspath_prepend(str(DOCS))
    names = importlib.import_module("_site.names")
    from torchx.specs import AppDef

    assert names.lookup("torchx.specs.AppDef") is AppDef
    assert names.lookup("torchx.specs.Role.num_replicas") is not None
    assert names.lookup("torchx.specs.Role.num_replica") is None
    assert names.lookup("torchx.specks") is None


def test_the_readme_shows_rows_of_the_benchmark_table() -> None:
    """Its figures are those of the page, and the rows those that `python -m benchmarks --write` puts there."""
    from benchmarks import report, rows

    def table(page: Path) -> list[str]:
        text = page.read_text().partition(report.BEGIN)[2].partition(report.END)[0]
        return [line for line in text.splitlines() if line.startswith("|")]

    shown, all_rows = table(ROOT / "README.md"), table(ROOT / "benchmarks" / "README.md")
    assert len(all_rows) == 2 + len(rows.ROWS)
    assert len(shown) == 2 + sum(row.front for row in rows.ROWS) == 7
    assert set(shown) <= set(map(report.without_bound, all_rows))


def test_the_quick_reference_has_the_named_resources() -> None:
    """The sizes in its table are those that the names stand for."""
    from torchx.specs import GENERIC_NAMED_RESOURCES

    text = (DOCS / "quick-reference.md").read_text()
    names = re.findall(r"`(\w+)`", re.search(r"^\| \|(.*`small`.*)$", text, re.MULTILINE)[1])
    assert "small" in names
    for kind in ("cpu", "gpu"):
        cells = re.search(rf"^\| `{kind}\.` \|(.*)\|$", text, re.MULTILINE)[1].split("|")
        for name, cell in zip(names, cells, strict=True):
            made = GENERIC_NAMED_RESOURCES[f"{kind}.{name}"]()
            figures = [made.cpu, made.gpu, made.memMB // 1024] if made.gpu else [made.cpu, made.memMB // 1024]
            assert [int(figure) for figure in re.findall(r"\d+", cell)] == figures, name
