"""The package itself: typed for its users, complete and nothing else in its wheel."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

import whitenorm
from whitenorm.gpu import gate

ROOT = Path(__file__).parents[1]


def call(*words, **options):
    done = subprocess.run(words, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_changelog_and_citation_name_the_version():
    assert f"## [{whitenorm.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {whitenorm.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_importing_the_library_imports_no_compiler():
    """torch.compile's modules take as long to import as torch itself."""
    program = "import sys, torch, whitenorm; print('torch._dynamo' in sys.modules)"
    assert call(sys.executable, "-c", program) == "False\n"


def test_the_mark_of_a_constant_is_torchs_own():
    @torch.compiler.assume_constant_result
    def marked():
        return True

    assert vars(gate._passes_check) == vars(marked)


@pytest.mark.slow
def test_a_users_program_is_type_checked(tmp_path):
    """py.typed is honoured: strictly, and what is wrong is found."""
    program = (ROOT / "tests" / "user_program.py").read_text()
    (tmp_path / "right.py").write_text(program)
    wrong = 'whitenorm.DecorrelatedBatchNorm2d("16")\nwhitenorm.whitening_matrix(3)\n'
    (tmp_path / "wrong.py").write_text("import whitenorm\n" + wrong)
    mypy = (sys.executable, "-m", "mypy", "--strict", "--config-file=")
    call(*mypy, "right.py", cwd=tmp_path)
    done = subprocess.run([*mypy, "wrong.py"], cwd=tmp_path, capture_output=True, text=True)
    assert "wrong.py:2: error: Argument 1" in done.stdout
    assert "wrong.py:3: error: Argument 1" in done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT))
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


@pytest.mark.slow
def test_the_wheel_holds_the_library_and_the_laboratory_and_nothing_else(built):
    wheel, sdist = built
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"whitenorm"}
    folders = {"tests", "results", "records", "benchmarks", "examples", "docs"}
    package = "whitenorm/lab/records/"  # is code; the records themselves lie in results/
    strays = [n for n in names if folders & set(n.removeprefix(package).split("/")[:-1])]
    assert not strays
    assert not [n for n in names if "test" in n or n.endswith(".jsonl")]
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "whitenorm").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources == {name for name in names if name.startswith("whitenorm/")}
    assert "whitenorm/py.typed" in sources
    metadata = zipfile.ZipFile(wheel).read(next(n for n in names if n.endswith("METADATA")))
    text = metadata.decode()
    assert f"Version: {whitenorm.__version__}" in text
    assert "License-Expression: BSD-3-Clause" in text
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "constraints.txt"} <= held


@pytest.mark.slow
def test_the_wheel_works_outside_the_source_tree(built, tmp_path):
    """The library with torch alone: whatever the laboratory needs can't be imported."""
    wheel, _ = built
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    call(*pip, "--target", str(tmp_path / "site"), str(wheel))
    program = """
import sys
for name in ("numpy", "matplotlib", "typer", "rich", "joblib", "sklearn", "PIL"):
    sys.modules[name] = None
import torch, whitenorm
from torch import nn
assert "site" in whitenorm.__file__, whitenorm.__file__
model = nn.Sequential(nn.Linear(8, 8), whitenorm.DecorrelatedBatchNorm1d(8, group_size=4))
model(torch.randn(32, 8)).square().sum().backward()
print(whitenorm.fold(model.eval())(torch.randn(2, 8)).shape, whitenorm.__version__)
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    said = call(sys.executable, "-c", program, cwd=tmp_path, env=environment)
    assert whitenorm.__version__ in said
