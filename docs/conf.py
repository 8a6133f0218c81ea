"""Configuration of the site: `make docs`. Neither building nor reading the site fetches anything."""

from __future__ import annotations

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from torchx.version import __version__  # noqa: E402  # the path is set above

project = "torchx"
version = release = __version__
html_title = f"torchx {__version__}"
copyright = "the torchx authors, BSD-3-Clause"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "_site.navigation",
    "_site.type_names",
    "_site.names",
    "_site.layout",
    "_site.ipython_cells",
    "_site.files",
    "_site.generated",
    "_site.llms",
]

root_doc = "index"
source_suffix = {".md": "markdown"}
exclude_patterns = ["_site"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_url_schemes = {"http": None, "https": None, "mailto": None, "checkout": None}  # the last: _site/files.py

nitpicky = True
default_role = "code"
smartquotes = False  # they make one dash of the two of an option
highlight_language = "text"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

copybutton_prompt_text = r"\$ |> "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
LOGO = "../torchx/ui/static/icon.svg"  # one file for the site, the page in the browser, and the README
html_static_path = ["_site/static", LOGO]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_favicon = LOGO
html_theme_options = {
    "navigation_with_keys": True,
    "light_logo": "icon.svg",
    "dark_logo": "icon.svg",
    "light_css_variables": {
        "color-brand-primary": "#b43403",
        "color-brand-content": "#b43403",
        "color-sidebar-link-text--top-level": "#3f4650",
    },
    "dark_css_variables": {
        "color-brand-primary": "#fb923c",
        "color-brand-content": "#fb923c",
        "color-sidebar-link-text--top-level": "#b5bac1",
    },
}
