"""The documentation's settings: Sphinx with furo and MyST, warnings are errors (`make docs`)."""

import re
import sys
from pathlib import Path

import whitenorm

sys.path.insert(0, str(Path(__file__).parent))

project = "whitenorm"
author = "the whitenorm authors"
copyright = "the whitenorm authors, BSD-3-Clause"
release = version = whitenorm.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # the site needs no network
    "sphinx_copybutton",
    "command_line",
]
exclude_patterns = ["_build"]
source_suffix = {".md": "myst-nb"}
myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_timeout = 300
nb_execution_raise_on_error = True

html_theme = "furo"
html_title = "whitenorm"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_theme_options = {"navigation_with_keys": True}

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_preserve_defaults = True


def setup(app):
    """Markdown files outside of this folder, tables of records, are downloads of the site."""

    def downloads(app, name, source):
        source[0] = re.sub(r"\[([^\]]*)\]\((\.\./[^)#]+\.md)\)", r"{download}`\1 <\2>`", source[0])

    app.connect("source-read", downloads)
