"""Layers are reused only if the result is exactly the workspace, and never become too many or too wasteful."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx.workspace.content import DIRECTORY, FILE, Entry
from torchx.workspace.images.layers import Arrangement, Item, Layer, Pushed, arrange, parents

_MB = 1 << 20


def tree(files: dict[str, tuple[str, int]]) -> dict[str, Item]:
    """Path -> item, from path -> (content, size); creates parent directories."""
    found = {path: Item(Entry(path, DIRECTORY, 0o755), "directory 755 ") for path in parents(files)}
    for path, (text, size) in files.items():
        found[path] = Item(Entry(path, FILE, 0o644, size=size), f"file 644 {text}")
    return found


def push(pushed: list[Layer], arrangement: Arrangement, number: itertools.count[int]) -> list[Layer]:
    """The layers that a push of this arrangement leaves in the registry."""
    new = [
        Layer(
            f"sha256:{next(number)}",
            "",
            sum(i.entry.size for i in group),
            True,
            {i.entry.path: (i.key, i.entry.size) for i in group},
        )
        for group in arrangement.new
    ]
    assert all(layer in pushed for layer in arrangement.kept)
    return arrangement.kept + new


def unpacked(layers: list[Layer]) -> dict[str, str]:
    """The result of unpacking the layers: path -> key."""
    found: dict[str, str] = {}
    for layer in layers:
        for path, (key, _) in layer.contents.items():
            for parent in parents([path]):
                assert parent in layer.contents, "a layer has the directories of its files"
            if not key.startswith("directory"):
                found = {p: k for p, k in found.items() if not p.startswith(f"{path}/")}
            found[path] = key
    return found


names = st.sampled_from(["a", "b", "a/x", "a/y", "a/z/w", "b/x", "c"])
contents = st.tuples(st.sampled_from("123"), st.sampled_from([0, 10, _MB, 40 * _MB]))


def consistent(files: dict[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """Returns the files without those that have others below them."""
    return {path: of for path, of in files.items() if path not in parents(files)}


@settings(max_examples=200)
@given(st.lists(st.dictionaries(names, contents).map(consistent), min_size=1, max_size=12), st.integers(3, 6))
def test_after_any_history_the_image_has_exactly_the_workspace(
    history: list[dict[str, tuple[str, int]]], most: int
) -> None:
    """Files come, go, change, and become directories and files again: unpacking gives exactly the workspace."""
    pushed: list[Layer] = []
    number = itertools.count()
    for files in history:
        desired = tree(files)
        arrangement = arrange(desired, pushed, most)
        pushed = push(pushed, arrangement, number)
        assert unpacked(pushed) == {path: item.key for path, item in desired.items()}
        assert len(pushed) <= most or not arrangement.kept


def test_nothing_changed() -> None:
    """The same workspace needs no new layer."""
    desired = tree({"a/b": ("1", 5)})
    pushed = push([], arrange(desired, []), itertools.count())
    assert arrange(desired, pushed) == Arrangement(pushed, [])


def test_a_changed_file_is_a_layer_of_its_own() -> None:
    """A changed file comes with its directories, so that the layer can be unpacked."""
    files = {f"d/{n}": ("1", _MB) for n in range(100)}
    pushed = push([], arrange(tree(files), []), itertools.count())
    arrangement = arrange(tree({**files, "d/7": ("2", 10)}), pushed)
    assert len(arrangement.kept) == len(pushed) > 1
    assert [[item.entry.path for item in group] for group in arrangement.new] == [["d", "d/7"]]


def test_a_removed_file_takes_its_layer_along_and_no_other() -> None:
    """A removed file must not reappear, and a whiteout would also remove the base image's file at that path."""
    files = {f"d/{n:03}": ("1", _MB) for n in range(100)}
    pushed = push([], arrange(tree(files), []), itertools.count())
    del files["d/050"]
    arrangement = arrange(tree(files), pushed)
    assert len(arrangement.kept) == len(pushed) - 1
    assert sum(item.entry.size for group in arrangement.new for item in group) < 40 * _MB


def test_the_last_edit_replaces_the_one_before() -> None:
    """Editing one file all day gives two layers, not a hundred."""
    files = {"big": ("1", 10 * _MB), "train.py": ("0", 100)}
    number = itertools.count()
    pushed = push([], arrange(tree(files), []), number)
    for edit in range(30):
        pushed = push(pushed, arrange(tree({**files, "train.py": (str(edit), 100)}), pushed), number)
        assert len(pushed) <= 2


def test_a_large_workspace_is_in_layers_of_moderate_size() -> None:
    """Nodes pull layers in parallel, and one removed file must not send everything again. A huge file has its own layer."""
    files = {f"{n:03}": ("1", _MB) for n in range(500)} | {"zz": ("1", 900 * _MB)}
    groups = arrange(tree(files), []).new
    assert 4 < len(groups) <= 14
    assert sorted(len(group) for group in groups)[0] == 1


def test_what_was_pushed_is_remembered(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache survives the process, for the same key; a damaged file counts as missing."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path))
    layers = [Layer("sha256:1", "sha256:2", 5, True, {"a\udcff": ("file 644 x", 3)})]
    Pushed(["repo", "ws"]).save(layers)
    assert Pushed(["repo", "ws"]).load() == layers
    assert Pushed(["repo", "other"]).load() == []
    for path in (tmp_path / "cache" / "images").iterdir():  # type: ignore[operator]  # a path
        path.write_text('{"layers": [{"digest": 1}]}')
    assert Pushed(["repo", "ws"]).load() == []
