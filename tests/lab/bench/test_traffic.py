"""The computed table, and that the page shows it."""

from pathlib import Path

from whitenorm.lab.bench.traffic import GPUS, LAUNCHES, least_ratio, traffic_table

PAGE = Path(__file__).parents[3] / "docs" / "performance.md"


def test_the_page_shows_the_computed_table():
    assert traffic_table() in PAGE.read_text()


def test_bandwidth_bounds_groups_of_16_in_float32():
    assert [round(least_ratio(gpu, 16, 4), 3) for gpu in GPUS] == [1.0, 1.0]
    assert least_ratio("A100 (40 GB)", 64, 4) > 1.5  # arithmetic does


def test_the_page_names_the_number_of_launches():
    forward, backward = (len(names) for names in LAUNCHES.values())
    assert f"{forward} launches forward and {backward} backward" in PAGE.read_text()
