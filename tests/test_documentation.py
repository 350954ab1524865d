"""What README and docs say is so: code runs, commands parse, links lead somewhere, names exist."""

import importlib
import re
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import click
import pytest
import torchvision_models
from typer.main import get_command

from whitenorm.lab.cli import app

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "whitenorm"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted(ROOT.glob("docs/*.md")),
]
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
    """The blocks of a page, one after the other, as a reader would.

    `torchvision.models` is a stand-in of the same structure, `tests/torchvision_models.py`:
    torchvision isn't built for every build of torch that these tests run with.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", torchvision_models)
    namespace = {"__name__": "__main__"}
    for code in blocks(page, "python"):
        exec(compile(code, name(page), "exec"), namespace)


def test_the_stand_in_for_torchvision_has_its_parameters_and_names():
    """Their number is that of torchvision's documentation."""
    model = torchvision_models.resnet18()
    assert sum(p.numel() for p in model.parameters()) == 11_689_512
    names = model.state_dict().keys()
    assert {"bn1.running_var", "layer4.1.bn2.weight", "layer2.0.downsample.1.bias"} <= names


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


def titles(page):
    return re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)


def anchor(title):
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def anchors(page):
    return {anchor(title) for title in titles(page)}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    links = re.findall(r'(?:\]\(|src=")([^)"\s]+)[)"]', prose(page))
    for link in links:
        path, _, section = link.partition("#")
        if re.match(r"https?:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: {link}"
        if section:
            assert section in anchors(target), f"{name(page)}: {link}"


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
            known = {*options, "--logdir", "--help", "--no-deps"}
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


COMPATIBILITY = ROOT / "docs" / "compatibility.md"


def rows_of_tables(page, first):
    """The cells of each row of the tables whose heading starts with that word."""
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE):
        heading, _, *rows = table.splitlines()
        if heading.startswith(f"| {first} |"):
            yield from ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)


def test_the_tests_that_the_page_of_compatibility_names_exist():
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^def (test_\w+)", text, re.MULTILINE))
    rows = list(rows_of_tables(COMPATIBILITY, "with"))
    assert rows
    for _, works, why, tests in rows:
        assert works in ("yes", "no")
        named = re.findall(r"`(test_\w+)`", tests)
        assert set(named) <= there
        assert named or (works == "no" and why)


def test_the_index_of_compatibility_leads_to_every_section():
    rows = list(rows_of_tables(COMPATIBILITY, "looking for"))
    assert all(works.startswith(("yes", "no", "training:")) for _, works, _ in rows)
    linked = {a for *_, read in rows for a in re.findall(r"\(#([\w-]+)\)", read)}
    _, *sections = titles(COMPATIBILITY)
    assert linked == set(map(anchor, sections))


SEARCHED = (
    "AMP",
    "autocast",
    "CUDA graphs",
    "checkpointing",
    "convert",
    "DDP",
    "Deploy",
    "EMA",
    "export",
    "fold",
    "freeze",
    "FSDP",
    "group size",
    "Install",
    "ONNX",
    "ResNet",
    "small batches",
    "SWA",
    "torch.compile",
    "weight decay",
)


@pytest.mark.parametrize("word", SEARCHED)
def test_a_heading_has_what_a_newcomer_searches_for(word):
    """The search of the site ranks headings first, and its sidebar shows them alone."""
    pages = [page for page in PAGES if page.parent.name == "docs" and page.stem != "ledger"]
    headings = [title for page in pages for title in titles(page)]
    assert any(re.search(rf"\b{re.escape(word)}\b", t, re.IGNORECASE) for t in headings)


def test_every_page_is_in_the_table_of_contents_once():
    trees = BLOCK.findall((ROOT / "docs" / "index.md").read_text())
    listed = [
        line
        for kind, tree in trees
        if kind == "{toctree}"
        for line in tree.splitlines()
        if line and not line.startswith(":")
    ]
    assert sorted(listed) == sorted(p.stem for p in ROOT.glob("docs/*.md") if p.stem != "index")


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_the_versions_needed_are_those_of_the_package(page):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python, torch = project["requires-python"], *project["dependencies"]
    text = " ".join((ROOT / page).read_text().split())
    assert re.findall(r"Python \(?(3\.\d+) or later", text) == [python.removeprefix(">=")]
    assert re.findall(r"torch (\d\.\d+) or later", text) == [torch.removeprefix("torch>=")]


def test_every_install_is_constrained_or_leaves_an_environment_as_it_is():
    """So that what the tests ran with is what is installed."""
    for page in PAGES:
        for line in re.findall(r"pip (?:install|wheel) [^`\n]*", page.read_text()):
            from_clone = re.search(r" '?\.(?:\[|$|\s)", line)
            free = "--no-deps" in line or "--no-index" in line
            if from_clone and not free:
                assert "-c constraints.txt" in line, f"{name(page)}: {line}"


def drawn(text):
    """The rows of the drawings in a text: words, names and a path below src/whitenorm or its lab.

    Columns are two spaces or more apart. The first line of a drawing is its heading.
    """
    for kind, drawing in BLOCK.findall(text):
        if kind == "text":
            for line in drawing.splitlines()[1:]:
                _, *names, path = re.split(r"\s{2,}", line.strip().lstrip("│├─▼ "))
                yield re.findall(r"[\w.]+", " ".join(names)), path


def wrong_rows(text):
    """What the drawings name that isn't there."""
    wrong = []
    for names, path in drawn(text):
        found = [root / path for root in (SOURCES, SOURCES / "lab") if (root / path).exists()]
        if not found:
            wrong.append(path)
        elif found[0].is_file():
            module = ".".join(found[0].relative_to(ROOT / "src").with_suffix("").parts)
            wrong += [f"{path}: {n}" for n in names if not resolves(f"{module}.{n}")]
    return wrong


def test_the_drawings_of_the_layout_name_what_is_there():
    assert wrong_rows((ROOT / "docs" / "layout.md").read_text()) == []


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("│  sums of samples  moments, sums  passes.py", []),
        ("│  sums of samples  moments, sumz  passes.py", ["passes.py: sumz"]),
        (
            "│  forward  DecorrelatedBatchNorm.frwd  modules.py",
            ["modules.py: DecorrelatedBatchNorm.frwd"],
        ),
        ("│  one run  execute  execution.py", ["execution.py"]),
        ("├─ which runs, and where  executions/", ["executions/"]),
    ],
)
def test_a_name_that_is_not_there_is_found(row, wrong):
    assert wrong_rows(f"```text\nwhat happens  by  in\n{row}\n```\n") == wrong


def test_the_drawings_pass_every_module():
    """Those of the laboratory once; a layer passes its modules on the way back, too."""
    passed = [p for _, p in drawn((ROOT / "docs" / "layout.md").read_text()) if p.endswith(".py")]
    modules = {path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("[!_]*.py")}
    laboratory = {path.removeprefix("lab/") for path in modules if path.startswith("lab/")}
    library = {path for path in modules if not path.startswith("lab/")}
    assert set(passed) == library | laboratory
    assert sorted(path for path in passed if path in laboratory) == sorted(laboratory)
