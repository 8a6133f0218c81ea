"""The sidebar. It is not in `index.md`, so that this page also reads well on GitHub."""

from __future__ import annotations

from pathlib import Path

SECTIONS = {
    "Start": {
        "install": "Install",
        "quickstart": "First job",
        "gpus": "GPUs and sizes",
        "first-cluster": "First cluster",
        "tutorial": "Tutorial: script to sweep",
        "concepts": "Concepts",
        "coming-from": "Coming from another launcher",
        "when": "When to use torchx",
    },
    "Do": {
        "train": "Train on many workers",
        "fine-tune": "Fine-tune on 2x8 GPUs",
        "sweeps": "Sweep over values",
        "evaluate": "Evaluate checkpoints",
        "gpu-session": "Notebook on a GPU node",
        "debug": "Debug a failed job",
        "troubleshooting": "Troubleshooting by message",
        "hangs": "Find the rank that hangs",
        "why": "Explain any job",
        "doctor": "Check a job first",
        "runs": "Find, follow, cancel runs",
        "top": "Watch in the terminal",
        "ui": "Watch in the browser",
        "notices": "Get a notice",
        "inside": "Work inside a running job",
        "around": "Prepare nodes, fetch results",
        "rerun": "Rerun, compare, export",
        "retries": "Retry by cause",
        "checkpoints": "Survive preemption",
        "workspaces": "Send code",
        "images": "Build images",
        "secrets": "Pass secrets",
        "trackers": "Record results",
        "python": "Launch from Python",
        "agents": "Let coding agents launch",
        "notebook": "Launch from a notebook",
        "hydra": "Use Hydra",
        "ready-made": "TensorBoard, TorchServe, Captum",
    },
    "Backends": {
        "local": "This machine",
        "docker": "Docker, Podman",
        "slurm": "Slurm",
        "lsf": "LSF",
        "ssh": "Clusters over SSH",
        "kubernetes": "Kubernetes",
        "aws": "AWS Batch, SageMaker",
        "docker-admin": "Docker for administrators",
        "slurm-admin": "Slurm for administrators",
        "lsf-admin": "LSF for administrators",
        "kubernetes-admin": "Kubernetes for administrators",
        "aws-admin": "AWS for administrators",
    },
    "Reference": {
        "quick-reference": "Quick reference",
        "reference/cli": "Command line",
        "reference/components": "Components",
        "reference/run-options": "Run options",
        "reference/capabilities": "What schedulers can do",
        "reference/resources": "Named resources",
        "config": "Configuration",
        "reference/environment": "Environment variables",
        "cli-json": "JSON output",
        "errors": "Errors, exit codes",
        "signatures": "Signatures of failures",
        "reference/python": "Python interface",
        "glossary": "Glossary",
    },
    "Extend": {
        "components": "Write components",
        "plugins": "Write plugins",
        "adding-a-scheduler": "Add a scheduler",
        "adding-an-api-scheduler": "Add a scheduler with an API",
    },
    "Contribute": {
        "contributing/design": "Map of the code",
        "contributing/decisions/index": "Decisions",
        "contributing/open-points": "Open points",
    },
}
"""Caption -> page -> its title here. Pages that do not exist are omitted; one in no section fails the build."""

MOVED = {
    "again": "rerun",
    "foreign": "why",
    "surviving": "checkpoints",
    "tensorboard": "ready-made",
    "serve": "ready-made",
    "interpret": "ready-made",
}
"""Old address of a page -> new one. The old address leads there, and keeps the part after `#`."""

REDIRECT = """\
<!doctype html><meta charset="utf-8"><title>{page}</title><link rel="canonical" href="{page}.html">
<meta http-equiv="refresh" content="1; url={page}.html"><script>location.replace("{page}.html" + location.hash)</script>
<a href="{page}.html">This page has moved.</a>
"""

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


def redirect(app, exception) -> None:
    if exception is None and app.builder.name == "html":
        for old, page in MOVED.items():
            Path(app.outdir, f"{old}.html").write_text(REDIRECT.format(page=page), "utf-8")


def setup(app):
    app.connect("build-finished", redirect)
    app.connect("source-read", add_sections)
    app.connect("doctree-read", hide_contents)
    return {"parallel_read_safe": True}
