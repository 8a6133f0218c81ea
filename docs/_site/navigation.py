"""The sidebar. It is not in `index.md`, so that this page also reads well on GitHub."""

from __future__ import annotations

SECTIONS = {
    "Start": {
        "quickstart": "Quickstart",
        "tutorial": "Tutorial",
        "concepts": "Concepts",
        "quick-reference": "Quick reference",
        "when": "When to use torchx",
        "coming-from": "Coming from elsewhere",
    },
    "Describe jobs": {
        "components": "Components",
        "train": "Training",
        "python": "Recipes in Python",
        "notebook": "Notebooks",
        "hydra": "Hydra",
        "tensorboard": "TensorBoard",
        "interpret": "Interpreting a model",
        "serve": "Serving a model",
    },
    "Run them": {
        "doctor": "Before it runs",
        "runs": "Runs: find, follow, end",
        "foreign": "Jobs that torchx did not launch",
        "again": "Again, elsewhere, without torchx",
        "top": "The screen in the terminal",
        "ui": "The page in the browser",
        "inside": "Inside a running job",
        "hangs": "When a job hangs",
        "sweeps": "Sweeps",
        "config": "Configuration",
        "secrets": "Secrets",
        "retries": "Retries",
        "surviving": "Surviving preemption",
        "notices": "Notices",
        "workspaces": "Workspaces",
        "images": "Images",
        "trackers": "Trackers",
        "cli-json": "JSON for programs",
    },
    "Where": {
        "local": "This machine",
        "docker": "Docker, Podman",
        "slurm": "Slurm",
        "lsf": "LSF",
        "ssh": "Clusters over SSH",
        "kubernetes": "Kubernetes",
        "aws": "AWS Batch, SageMaker",
    },
    "Reference": {
        "reference/cli": "Command line",
        "reference/components": "Components",
        "reference/run-options": "Run options",
        "reference/capabilities": "What schedulers can do",
        "reference/resources": "Named resources",
        "reference/environment": "Environment variables",
        "errors": "Errors, exit codes",
        "reference/python": "Python interface",
        "glossary": "Glossary",
    },
    "Extend": {
        "plugins": "Plugins",
        "adding-a-scheduler": "A scheduler",
        "adding-an-api-scheduler": "A scheduler with an API",
    },
    "About": {
        "benchmarks": "Benchmarks",
        "contributing/design": "The map",
        "contributing/decisions/index": "Decisions",
        "contributing/open-points": "Open points",
    },
}
"""Caption -> page -> its title here. Pages that do not exist are omitted; one in no section fails the build."""

WIDE = {"index", "coming-from", "reference/capabilities", "reference/resources"}
"""Pages without a table of contents next to them."""


def toctree(caption: str, pages: dict[str, str]) -> str:
    rows = "\n".join(f"{title} <{page}>" for page, title in pages.items())
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{rows}\n```\n"


def add_sections(app, page, source) -> None:
    if page == app.config.root_doc:
        known = app.env.found_docs
        for caption, pages in SECTIONS.items():
            source[0] += toctree(caption, {page: title for page, title in pages.items() if page in known})


def hide_contents(app, doctree) -> None:
    page = app.env.docname
    if page in WIDE:
        app.env.metadata[page]["hide-toc"] = ""


def setup(app):
    app.connect("source-read", add_sections)
    app.connect("doctree-read", hide_contents)
    return {"parallel_read_safe": True}
