"""Links out of `docs/`: each file of the checkout that a page links to gets a page with its text."""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path

from docutils import nodes

ROOT = Path(__file__).resolve().parents[2]
SCHEME = "checkout:"
FOLDER = "files"
_LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)([)#])")


def mark(app, page, source) -> None:
    """Marks relative links out of the documentation with a scheme, which `point` resolves."""
    folder = posixpath.dirname(f"docs/{page}")

    def replace(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[2]))
        return match[0] if path.startswith("docs/") else f"{match[1]}{SCHEME}{path}{match[3]}"

    source[0] = _LINK.sub(replace, source[0])


def point(app, doctree, page) -> None:
    """Resolves the marked links to the pages of `pages`, and records which pages are needed."""
    for node in doctree.findall(nodes.reference):
        uri = node.get("refuri", "")
        if uri.startswith(SCHEME):
            path = uri.removeprefix(SCHEME).partition("#")[0]
            linked(app).add(path)
            node["refuri"] = app.builder.get_relative_uri(page, f"{FOLDER}/{path}")
            node["internal"] = True
            node["classes"] = [name for name in node["classes"] if name != "external"]


def linked(app) -> set[str]:
    if not hasattr(app.env, "torchx_files"):
        app.env.torchx_files = set()
    return app.env.torchx_files


def pages(app):
    """Creates a page for each linked file, and for the files in linked folders."""
    for path in sorted(with_content(linked(app))):
        body = folder_page(path) if (ROOT / path).is_dir() else file_page(app, path)
        yield f"{FOLDER}/{path}", {"title": path, "body": body}, "page.html"


def with_content(paths: set[str]) -> set[str]:
    inside = {
        str(file.relative_to(ROOT))
        for path in paths
        for file in (ROOT / path).rglob("*")
        if file.suffix in (".py", ".md", ".toml") and not any(part.startswith((".", "__")) for part in file.parts)
    }
    return paths | inside


def folder_page(path: str) -> str:
    names = sorted(str(file) for file in with_content({path}) if file != path)
    rows = [f'<li><a href="{posixpath.relpath(name, posixpath.dirname(path))}.html">{name}</a></li>' for name in names]
    return f"<h1>{path}</h1><ul>{''.join(rows)}</ul>"


def file_page(app, path: str) -> str:
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return rendered(app, path, text)
    return f"<h1>{html.escape(path)}</h1>{highlighted(app, text, language(path))}"


def rendered(app, path: str, text: str) -> str:
    """Renders a Markdown file as HTML; its links lead to the pages of other files, if they have one."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt(
        "commonmark", {"highlight": lambda code, name, _: highlighted(app, code, name or "text")}
    ).enable("table")
    there = with_content(linked(app))

    def target(match: re.Match[str]) -> str:
        full = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        if full in there:
            return f'<a href="{match[1]}.html">{match[2]}</a>'
        if full.startswith("docs/") and full.endswith(".md"):
            page = posixpath.relpath(full.removeprefix("docs/"), posixpath.dirname(f"{FOLDER}/{path}"))
            return f'<a href="{page.removesuffix(".md")}.html">{match[2]}</a>'
        return match[2]

    return re.sub(r'<a href="(?!https?:|#)([^"]+)">(.*?)</a>', target, parser.render(text))


def highlighted(app, code: str, name: str) -> str:
    return app.builder.highlighter.highlight_block(code, name)


def language(path: str) -> str:
    return {".py": "python", ".toml": "toml", ".md": "markdown"}.get(posixpath.splitext(path)[1], "text")


def merge(app, env, docnames, other) -> None:
    linked(app).update(getattr(other, "torchx_files", ()))


def setup(app):
    app.connect("source-read", mark)
    app.connect("doctree-resolved", point)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True}
