"""The sidebar. It is kept out of `index.md`, so that this reads well where it is not built, too."""

from __future__ import annotations

SECTIONS = {
    "Learn": ["quickstart", "tutorial", "coming-from", "when"],
    "How to": [
        "components",
        "train",
        "hydra",
        "tensorboard",
        "interpret",
        "serve",
        "runs",
        "python",
        "config",
        "secrets",
        "retries",
        "workspaces",
        "images",
        "trackers",
        "notebook",
        "cli-json",
        "plugins",
        "adding-a-scheduler",
        "adding-an-api-scheduler",
    ],
    "Where to run": ["local", "docker", "slurm", "lsf", "ssh", "kubernetes", "aws"],
    "Reference": [
        "quick-reference",
        "reference/cli",
        "reference/components",
        "reference/run-options",
        "reference/capabilities",
        "reference/resources",
        "reference/environment",
        "errors",
        "reference/python",
    ],
    "Understand": ["concepts", "glossary", "benchmarks", "contributing/design", "contributing/open-points"],
}
"""Caption -> pages; those that are not there are left out. A page in no section is a warning, which fails the build."""

WIDE = {"index", "coming-from", "reference/capabilities", "reference/resources"}
"""Pages without a table of contents beside them."""


def toctree(caption: str, pages: list[str]) -> str:
    rows = "\n".join(pages)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{rows}\n```\n"


def add_sections(app, page, source) -> None:
    if page == app.config.root_doc:
        known = app.env.found_docs
        for caption, pages in SECTIONS.items():
            source[0] += toctree(caption, [name for name in pages if name in known])


def hide_contents(app, doctree) -> None:
    page = app.env.docname
    if page in WIDE:
        app.env.metadata[page]["hide-toc"] = ""


def setup(app):
    app.connect("source-read", add_sections)
    app.connect("doctree-read", hide_contents)
    return {"parallel_read_safe": True}
