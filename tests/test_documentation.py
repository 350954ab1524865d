"""What README and docs say is so: code runs, commands parse, links lead somewhere, names exist."""

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest
from typer.main import get_command

from whitenorm.lab.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted(ROOT.glob("docs/*.md"))]
BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name(page):
    return page.relative_to(ROOT).as_posix()


def blocks(page, language):
    return [code for kind, code in BLOCK.findall(page.read_text()) if kind == language]


def prose(page):
    return BLOCK.sub("", page.read_text())


with_code = [page for page in PAGES if blocks(page, "python")]
with_commands = [page for page in PAGES if blocks(page, "sh")]


def test_every_block_says_what_it_is():
    """So that none escapes: python is run, sh is parsed, text is text, the rest is Sphinx's."""
    known = {"python", "sh", "text"}
    for page in PAGES:
        for kind, code in BLOCK.findall(page.read_text()):
            assert kind in known or kind.startswith("{"), f"{name(page)}: {code}"


@pytest.mark.parametrize("page", with_code, ids=name)
def test_code_runs(page, tmp_path, monkeypatch):
    """The blocks of a page, one after the other, as a reader would."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for code in blocks(page, "python"):
        exec(compile(code, name(page), "exec"), namespace)


@pytest.mark.slow
def test_the_tutorial_runs(monkeypatch):
    import matplotlib as mpl

    mpl.use("agg")
    cells = re.findall(
        r"^```\{code-cell\} python\n(.*?)^```$",
        (ROOT / "docs" / "tutorial.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert cells
    namespace = {}
    for cell in cells:
        exec(compile(cell, "docs/tutorial.md", "exec"), namespace)


def commands(page):
    """The calls of whitenorm in the sh blocks of a page, without what starts them."""
    for code in blocks(page, "sh"):
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "whitenorm.lab" in words:
                yield words[words.index("whitenorm.lab") + 1 :]
            elif words[:1] == ["whitenorm"]:
                yield words[1:]


@pytest.mark.parametrize("page", with_commands, ids=name)
def test_commands_have_these_options(page):
    group = get_command(app)
    for words in commands(page):
        command = group.commands[words[0]]
        try:
            command.make_context(words[0], list(words[1:]))
        except click.UsageError as error:
            pytest.fail(f"{name(page)}: whitenorm {' '.join(words)}: {error.message}")


def anchors(page):
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    links = re.findall(r'(?:\]\(|src=")([^)"\s]+)[)"]', prose(page))
    for link in links:
        path, _, anchor = link.partition("#")
        if re.match(r"https?:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{name(page)}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_exist(page):
    """Files, dotted names and options that the prose mentions in code font."""
    words = set(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page)))
    options = {o for c in get_command(app).commands.values() for p in c.params for o in p.opts}
    options |= {
        o for c in get_command(app).commands.values() for p in c.params for o in p.secondary_opts
    }
    for word in words:
        if re.fullmatch(r"(?:src|tests|docs|examples|benchmarks|results)/[\w./-]*", word):
            assert (ROOT / word).exists(), f"{name(page)}: {word}"
        elif dotted := re.match(r"whitenorm(?:\.\w+)+", word):
            assert resolves(dotted[0]), f"{name(page)}: {word}"
        elif word.startswith("--"):
            known = {*options, "--logdir", "--quick", "--only", "--render", "--help"}
            assert re.match(r"--[\w-]+", word)[0] in known, f"{name(page)}: {word}"


def resolves(dotted):
    parts = dotted.split(".")
    for i in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:i]))
        except ImportError:
            continue
        for part in parts[i:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False
