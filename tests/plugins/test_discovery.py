"""Installed plugins are found without imports, and agree with importlib.metadata."""

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx import plugins
from torchx.plugins import discovery
from torchx.testing import Site, site
from torchx.testing.fixtures import torchx_site_fixture  # noqa: F401  # pytest finds fixtures by name

GROUP = "torchx.schedulers"


def test_entry_point_is_found_without_importing_it(torchx_site: Site) -> None:
    """Name, value, distribution and location are found without importing the module."""
    info = torchx_site.install(
        "acme-sched", "2.1", entry_points=f"[{GROUP}]\nacme = acme_sched:create\n", files={"acme_sched.py": "x = 1 / 0"}
    )
    (found,) = [e for e in discovery.entry_points(GROUP) if e.name == "acme"]
    assert (found.value, found.dist, found.version, found.where) == ("acme_sched:create", "acme_sched", "2.1", info)
    assert "acme_sched" not in sys.modules


def test_same_answer_as_importlib_metadata() -> None:
    """For all groups of this environment, both find the same names and values."""
    groups = importlib.metadata.entry_points().groups
    assert groups, "an environment without any entry point cannot test this"
    for group in groups:
        expected = {(e.name, e.value) for e in importlib.metadata.entry_points(group=group)}
        assert {(e.name, e.value) for e in discovery.entry_points(group)} == expected, group


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("[g]\na=m:f", [("a", "m:f")], id="no spaces"),
        pytest.param("[ g ]\n  a  =  m : f  \n", [("a", "m : f")], id="spaces"),
        pytest.param("# c\n; c\n[g]\n\n# c\na = m", [("a", "m")], id="comments and module"),
        pytest.param("[g]\na = m:f [x,y]\nb = m:g", [("a", "m:f [x,y]"), ("b", "m:g")], id="extras"),
        pytest.param("[g]\nnonsense\na.b-c = m:f", [("a.b-c", "m:f")], id="line that is not an entry"),
        pytest.param("a = m:f\n[other]\na = m:f", [], id="no section, other section"),
        pytest.param("[g]\r\na = m:f\r\n", [("a", "m:f")], id="windows line ends"),
        pytest.param("", [], id="empty"),
        pytest.param("[g]\na = m:f=1", [("a", "m:f=1")], id="equals sign in the value"),
    ],
)
def test_parse(text: str, expected: list[tuple[str, str]]) -> None:
    """Names and values of a section are parsed; other lines are skipped."""
    assert [(e.name, e.value) for e in discovery.parse(text) if e.group == "g"] == expected


def test_first_on_path_wins_for_one_distribution(tmp_path: os.PathLike[str]) -> None:
    """Of two copies of a distribution, whatever the spelling of its name, the first on sys.path counts."""
    a, b = os.path.join(tmp_path, "a"), os.path.join(tmp_path, "b")
    os.makedirs(a)
    os.makedirs(b)
    with site(b) as second, site(a) as first:
        first.install("my_pkg", "2.0", entry_points=f"[{GROUP}]\nx = new:f\n")
        second.install("My.Pkg", "1.0", entry_points=f"[{GROUP}]\nx = old:f\ny = old:g\n")
        assert [(e.name, e.value) for e in discovery.entry_points(GROUP) if e.name in "xy"] == [("x", "new:f")]


def test_a_copy_without_entry_points_hides_the_later_one(tmp_path: os.PathLike[str]) -> None:
    """A distribution that dropped its entry points hides an older copy that still has them."""
    a, b = os.path.join(tmp_path, "a"), os.path.join(tmp_path, "b")
    os.makedirs(a)
    os.makedirs(b)
    with site(b) as second, site(a) as first:
        first.install("pkg", "2.0")
        second.install("pkg", "1.0", entry_points=f"[{GROUP}]\nx = old:f\n")
        assert "x" not in plugins.names(GROUP)


def test_egg_info_and_leftovers(torchx_site: Site) -> None:
    """A development install (egg-info) is found; leftovers of pip (`~name`) are ignored."""
    torchx_site.write("dev_pkg.egg-info/entry_points.txt", f"[{GROUP}]\ndev = dev_pkg:f\n")
    torchx_site.write("~ev_pkg-1.0.dist-info/entry_points.txt", f"[{GROUP}]\nghost = dev_pkg:f\n")
    names = plugins.names(GROUP)
    assert "dev" in names
    assert "ghost" not in names


def test_zip_on_the_path(tmp_path: os.PathLike[str]) -> None:
    """Zip files on the path are read with importlib.metadata."""
    archive = os.path.join(tmp_path, "pkgs.zip")
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("zipped-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 1.0\n")
        z.writestr("zipped-1.0.dist-info/entry_points.txt", f"[{GROUP}]\nzipped = zipped_mod:f\n")
        z.writestr("zipped_mod.py", "def f(): return 'from a zip'")
    with site(archive):
        assert plugins.load(GROUP, "zipped")() == "from a zip"
        sys.modules.pop("zipped_mod", None)


def test_import_hook_with_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distributions of a finder on sys.meta_path are found too."""

    class Dist(importlib.metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            return {
                "METADATA": "Metadata-Version: 2.1\nName: hooked\nVersion: 3\n",
                "entry_points.txt": f"[{GROUP}]\nhooked = os:getcwd\n",
            }.get(filename)

        def locate_file(self, path: Any) -> Any:
            return path

    class Finder(importlib.metadata.DistributionFinder):
        def find_spec(self, *args: object) -> None:
            return None

        def find_distributions(self, context: object = None) -> list[Dist]:
            return [Dist()]

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    plugins.refresh()
    try:
        assert plugins.load(GROUP, "hooked") is os.getcwd
    finally:
        plugins.refresh()


@pytest.mark.parametrize(
    "value", ["", "no module", "m:", "a..b:f", "m:f:g", "1m:f"], ids=["empty", "space", "colon", "dots", "two", "digit"]
)
def test_malformed_value(value: str) -> None:
    """A malformed object reference raises ValueError with the value."""
    with pytest.raises(ValueError, match="is not of the form"):
        discovery.EntryPoint("x", value, GROUP).load()


def test_dotted_attribute_and_extras() -> None:
    """A dotted attribute is resolved, extras are ignored."""
    assert discovery.EntryPoint("x", "os:path.join [extra]", GROUP).load() is os.path.join


def test_a_package_installed_later_is_seen(torchx_site: Site) -> None:
    """A running process finds packages that are installed after its first query."""
    assert "late" not in plugins.names(GROUP)
    folder = os.path.join(torchx_site.folder, "late-1.0.dist-info")
    os.makedirs(folder)
    with open(os.path.join(folder, "entry_points.txt"), "w") as f:
        f.write(f"[{GROUP}]\nlate = os:getcwd\n")
    assert "late" in plugins.names(GROUP)


def test_discovery_imports_nothing_heavy() -> None:
    """Listing names in a fresh interpreter imports neither importlib.metadata nor re nor configparser."""
    code = (
        "import sys; from torchx import plugins; plugins.names('torchx.schedulers');"
        "print([m for m in ('importlib.metadata', 'configparser', 're', 'inspect', 'pkgutil', 'typing', 'logging') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_a_hundred_distributions_cost_two_system_calls_each(torchx_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan lists each folder once and opens one file per distribution; the next query opens none."""
    for i in range(100):
        os.makedirs(os.path.join(torchx_site.folder, f"pkg{i}-1.0.dist-info"))
    opened: list[str] = []
    real = discovery._read
    monkeypatch.setattr(discovery, "_read", lambda path: (opened.append(path), real(path))[1])
    plugins.refresh()
    plugins.names(GROUP)
    assert len([p for p in opened if p.startswith(torchx_site.folder)]) == 100
    opened.clear()
    plugins.names(GROUP)
    plugins.names("torchx.components")
    assert opened == []


words = st.text(st.characters(whitelist_categories=("L", "N"), whitelist_characters="._-"), min_size=1, max_size=8)


@given(st.dictionaries(words, st.dictionaries(words, words, max_size=3), max_size=3))
def test_parse_reads_back_what_was_written(groups: dict[str, dict[str, str]]) -> None:
    """Any valid groups, names and values survive the round trip."""
    text = "".join(f"[{g}]\n" + "".join(f"{k} = {v}\n" for k, v in es.items()) for g, es in groups.items())
    read: dict[str, dict[str, str]] = {}
    for e in discovery.parse(text):
        read.setdefault(e.group, {})[e.name] = e.value
    assert read == {g: es for g, es in groups.items() if es}


@given(st.text())
def test_parse_is_total(text: str) -> None:
    """Garbage raises no exception, and all entries have a name and a group."""
    assert all(e.group and e.name for e in discovery.parse(text))
