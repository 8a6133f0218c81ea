"""Workspaces: directories of source code to add to the image of a role."""

from __future__ import annotations

from torchx.errors import SpecError
from torchx.util.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator


@dataclass
class Workspace:
    """Projects, and their destinations below the workspace root of the image.

    Args:
        projects: maps source directory (a path or an fsspec URL) to destination below the root; ``""`` is the root.

    >>> Workspace.from_str("/src/trainer=trainer,/src/lib=lib").projects
    {'/src/trainer': 'trainer', '/src/lib': 'lib'}
    """

    projects: dict[str, str]

    @staticmethod
    def from_str(workspace: str | None) -> Workspace:
        """Parse ``PATH`` (one project, at the root), ``PATH=PLACE,PATH=PLACE,...``, or a YAML mapping ``PATH: PLACE``.

        None and the empty string return the empty workspace. Outside of YAML, a comma, an equals sign or a backslash in
        a path is escaped with a backslash, as :meth:`to_text` does.

        >>> Workspace.from_str("/src/trainer: trainer\\n/src/lib: lib").projects
        {'/src/trainer': 'trainer', '/src/lib': 'lib'}

        Raises:
            SpecError: a destination is not below the root, or a source is given twice.
        """
        projects: dict[str, str] = {}
        for src, dst in _lines(workspace or "") or _entries(workspace or ""):
            if not src:
                raise SpecError(
                    f"workspace `{workspace}` does not name a source directory", hint="write `PATH` or `PATH=PLACE`"
                )
            if src in projects:
                raise SpecError(f"workspace `{workspace}` names `{src}` twice")
            projects[src] = _checked_place(dst, src)
        return Workspace(projects)

    def is_unmapped_single_project(self) -> bool:
        """Whether the workspace is a single project at the root.

        >>> Workspace.from_str("/src").is_unmapped_single_project()
        True
        """
        return len(self.projects) == 1 and not next(iter(self.projects.values()))

    def merge_into(self, outdir: str | pathlib.Path) -> None:
        """Copy every project, without ignored files, to its destination below ``outdir``; later projects overwrite.

        Raises:
            SpecError: a source cannot be read, or a destination is not below ``outdir``.
            ConfigError: a file cannot be written.
        """
        import os

        from torchx.workspace.copies import merge

        merge(self, os.fspath(outdir))

    def __bool__(self) -> bool:
        return bool(self.projects)

    def __hash__(self) -> int:
        return hash(frozenset(self.projects.items()))

    def __str__(self) -> str:
        """Return a readable form: ``/src/trainer:trainer;/src/lib:lib``.

        >>> str(Workspace({"/a": "", "/b": "t"}))
        '/a;/b:t'
        """
        return ";".join(f"{src}:{dst}" if dst else src for src, dst in self.projects.items())

    def to_text(self) -> str:
        """Return the text form, which :meth:`from_str` reads back.

        >>> Workspace({"/a": "", "/b": "t"}).to_text()
        '/a,/b=t'
        """
        entries = [_escape(src) + (f"={_escape(dst)}" if dst else "") for src, dst in self.projects.items()]
        return ",".join(entries)


def _checked_place(dst: str, src: str) -> str:
    import os

    place = os.path.normpath(dst) if dst else ""
    if os.path.isabs(place) or place.split("/", 1)[0] == "..":
        raise SpecError(
            f"workspace project `{src}` would go to `{dst}`, which is not below the workspace's root",
            hint="give a relative path without `..`",
        )
    return "" if place == "." else dst


def _escape(path: str) -> str:
    import re

    return re.sub(r"[\\,=]|:(?=\s|$)", r"\\\g<0>", path)


def _lines(text: str) -> list[tuple[str, str]]:
    """Return the pairs of a YAML mapping; empty if the text is not one."""
    found = []
    for line in text.strip().removeprefix("{").removesuffix("}").splitlines():
        src, colon, dst = f"{line.strip()} ".rpartition(": ")
        if line.strip() and not line.strip().startswith("#"):
            if not colon or src.endswith("\\"):
                return []
            found.append((_unquoted(src), _unquoted(dst)))
    return found


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _entries(text: str) -> Iterator[tuple[str, str]]:
    import re

    parts = [""]
    for char in re.findall(r"(?s)\\[,=\\:]|.", text):
        if char == ",":
            yield parts[0], "".join(parts[1:])
            parts = [""]
        elif char == "=" and len(parts) == 1:
            parts.append("")
        else:
            parts[-1] += char[-1]  # without the backslash of an escape
    if text:
        yield parts[0], "".join(parts[1:])
