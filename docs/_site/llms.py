"""For language models: ``llms.txt``, a list of the pages, and beside each page its Markdown (https://llmstxt.org)."""

from __future__ import annotations

import shutil
from pathlib import Path

from sphinx.application import Sphinx

from _site.navigation import SECTIONS

_HEAD = """\
# torchx

> A job launcher for PyTorch: describe a job once in Python, run it on local processes, Docker, Slurm, LSF,
> Kubernetes or AWS, and know how it ended.

Each page is also at its address with `.md` in place of `.html`. `torchx mcp` serves runs to agents: see agents.md.
"""


def write(app: Sphinx, failed: Exception | None) -> None:
    """Copy the sources of the pages into the site, and list them."""
    if failed is not None or app.builder.name != "html":
        return
    out, lines = Path(app.outdir), [_HEAD]
    for page in sorted(app.env.found_docs):
        source = Path(app.srcdir, f"{page}.md")
        if source.exists():
            target = out / f"{page}.md"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    for section, pages in SECTIONS.items():
        lines.append(f"## {section}\n")
        lines += [f"- [{title}]({page}.md)" for page, title in pages.items() if Path(app.srcdir, f"{page}.md").exists()]
        lines.append("")
    (out / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
