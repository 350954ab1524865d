r"""Records -> files: tables and a figure beside each record, and the blocks of a page."""

from __future__ import annotations

from pathlib import Path

from whitenorm.lab.bench.harness import BenchError
from whitenorm.lab.bench.records import read_record
from whitenorm.lab.bench.suites import SUITES
from whitenorm.lab.bench.tables import for_page, report
from whitenorm.lab.lookup import look_up
from whitenorm.lab.reporting.markdown import fill_blocks

__all__ = ["fill_page", "render"]


def render(path: Path) -> list[Path]:
    """Writes the tables of a record, and the figure of layers, beside it; their paths."""
    record = read_record(path)
    look_up(SUITES, "suite", record["suite"])
    text, written = report(record), [path.with_suffix(".md")]
    if record["suite"] == "layer":
        from whitenorm.lab.bench.figures import save_layer_figure  # matplotlib loads slowly

        written.append(path.with_name(path.stem.replace("layer", "layer-figure") + ".svg"))
        save_layer_figure(record, written[1])
        text += f"\n![Cost of the layer against BatchNorm]({written[1].name})\n"
    written[0].write_text(text)
    return written


def fill_page(page: Path, out: Path) -> list[str]:
    """Renders all records of a folder and fills a page from them; the suites that it shows.

    The table of a suite stands between ``<!-- bench: suite -->`` and ``<!-- end -->``, and nothing
    else on the page is touched. Quick and partial records are left out.
    """
    records = [path for name in SUITES if (path := out / f"{name}.json").exists()]
    if not records:
        raise BenchError(f"{out} holds no records of whole suites; measure with --suite first")
    if not page.is_file():
        raise BenchError(f"{page} is no file; --page takes a Markdown page to fill")
    blocks = {}
    for path in records:
        render(path)
        record = read_record(path)
        if record["quick"] or record["only"] is not None:
            raise BenchError(f"{path} isn't for publication; measure without --quick and --only")
        blocks[record["suite"]] = for_page(record)
    text, replaced, _ = fill_blocks(page.read_text(), "bench", blocks)
    if missing := blocks.keys() - replaced:
        raise BenchError(
            f"{page} has no place for {', '.join(sorted(missing))}; add '<!-- bench: name -->' "
            "and '<!-- end -->', each on a line of its own"
        )
    page.write_text(text)
    return replaced
