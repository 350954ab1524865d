r"""Records -> files: tables and figures of each, and the blocks of a page."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from whitenorm.lab.bench.run import BenchError, read
from whitenorm.lab.bench.tables import tables
from whitenorm.lab.reporting.markdown import fill_blocks

__all__ = ["fill", "render"]


def render(json_path: Path | str, out_dir: Path | str) -> list[Path]:
    """Writes ``<record>.md`` and its figures as SVG into a folder; their paths."""
    return list(_render(read(json_path), Path(json_path), Path(out_dir)).values())


def fill(page: Path | str, json_paths: Iterable[Path | str], figures: Path | str) -> list[str]:
    """Replaces the blocks of a page by those of records; the names of the blocks replaced.

    A block stands between ``<!-- bench: name -->`` and ``<!-- end -->``, and nothing else in the
    page is touched. Blocks that the records don't have stay as they are.

    Args:
        page: Markdown.
        json_paths: Records; each must be of a whole suite at full size.
        figures: Folder that figures are written to, and the page's links lead to.
    """
    page, blocks = Path(page), {}
    for path in json_paths:
        record = read(path)
        if record["quick"] or record["only"] is not None:
            raise BenchError(
                f"{path} is not for publication: it holds "
                f"{'shrunken cases' if record['quick'] else 'some cases only'}; measure the suite "
                f"{record['suite']!r} without --quick and --only"
            )
        blocks.update(tables(record))
        for name, file in _render(record, Path(path), Path(figures)).items():
            if name != "page":
                link = Path(os.path.relpath(file, page.parent)).as_posix()
                blocks[name] = f"![{_ALT[name]}]({link})"
    text, replaced, _ = fill_blocks(page.read_text(), "bench", blocks)
    if missing := set(blocks) - set(replaced):
        raise BenchError(
            f"{page} has no block for {', '.join(sorted(missing))}; add "
            "'<!-- bench: name -->' and '<!-- end -->', each on a line of its own"
        )
    page.write_text(text)
    return replaced


_ALT = {
    "bars-figure": "Each ratio as a share of its bar",
    "layer-figure": "Cost of the layer against BatchNorm, by group size and beside usual ports",
    "layer-roofline": "Operations a second of the layer under the roofline of the machine",
    "network-figure": "Training steps against BatchNorm, beside the paper's",
    "scaling-figure": "Cost of the layer along batch, channels, group size and map size",
}


def _render(record: dict[str, Any], source: Path, out: Path) -> dict[str, Path]:
    """The files of a record: its page, and each figure by name."""
    from whitenorm.lab.bench.figures import figures, save  # slow to load, not for measuring

    out.mkdir(parents=True, exist_ok=True)
    parts, paths = [f"# {record['title']}", *tables(record).values()], {}
    for name, figure in figures(record).items():
        paths[name] = out / f"{name}{source.stem.removeprefix(record['suite'])}.svg"
        save(figure, paths[name])
        parts.append(f"![{_ALT[name]}]({paths[name].name})")
    page = out / f"{source.stem}.md"
    page.write_text("\n\n".join(parts) + "\n")
    return {"page": page, **paths}
