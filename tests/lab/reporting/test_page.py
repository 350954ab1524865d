"""Figures and page are functions of records; the page works in a browser without a network."""

import re
import shutil
import time
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image
from tiny_study import BASE, tiny_study

from whitenorm.lab.execution.runner import run_study
from whitenorm.lab.records.record import Record, RecordError, RecordFile, find_records
from whitenorm.lab.reporting.find import find_results
from whitenorm.lab.reporting.page import build_report
from whitenorm.lab.reporting.plots import draw, plain_ticks
from whitenorm.lab.reporting.style import colours
from whitenorm.lab.studies import catalogue as studies
from whitenorm.lab.studies.catalogue import STUDIES
from whitenorm.lab.studies.results import Results
from whitenorm.lab.studies.study import Curve, Panel
from whitenorm.lab.studies.wording import number


def short_demo():
    """The demo with few updates, at two learning rates."""
    demo = STUDIES["demo"]
    plan = demo.scales["small"]
    short = {"iterations": 10, "evaluate_every": 2}
    panels = tuple(
        Panel(
            p.name,
            tuple(
                Curve(c.label, c.run.changed(short), {"optimiser.lr": (0.1, 1)}) if c.grid else c
                for c in p.curves
            ),
        )
        for p in plan.panels
    )
    return replace(demo, scales={"small": replace(plan, panels=panels)})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with the records of the demo and of a tiny study."""
    out = tmp_path_factory.mktemp("recorded")
    run_study(short_demo(), "small", out, seeds=2)
    run_study(tiny_study(), "small", out)
    return out


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setitem(studies.STUDIES, "demo", short_demo())
    monkeypatch.setitem(studies.STUDIES, "tiny", tiny_study())


@pytest.fixture
def folder(recorded, known, tmp_path):
    """Only the records, elsewhere."""
    shutil.copytree(recorded / "records", tmp_path / "moved" / "records")
    return tmp_path / "moved"


# --- from records alone -------------------------------------------------------------------------


def test_figures_and_page_are_built_from_records_alone(folder):
    page = build_report(folder)
    assert page == folder / "report.html"
    names = {path.name for path in (folder / "figures").iterdir()}
    views = ("loss", "error", "conditioning", "correlations", "illustration")
    stems = [*(f"demo-small-{name}" for name in views), "tiny-small-loss"]
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    for stem in stems:
        with Image.open(folder / "figures" / f"{stem}.png") as picture:
            assert min(picture.size) > 500
            assert len(picture.convert("RGB").getcolors(1 << 20)) > 50
    first = {p.name: p.read_bytes() for p in (folder / "figures").glob("*.svg")}
    text = page.read_text()
    build_report(folder)
    assert {p.name: p.read_bytes() for p in (folder / "figures").glob("*.svg")} == first
    assert page.read_text() == text


def test_plots_with_the_same_curves_share_a_legend_that_hides_none(folder):
    (_, one), *_ = [r for r in find_results(folder).results if r[1].study.name == "tiny"]
    (panel,), view = one.scale.panels, one.study.views[0]
    single = draw(one, view)
    assert not single.legends
    assert single.axes[0].get_legend() is not None

    pair = (panel, Panel("again", panel.curves))
    scales = {"small": replace(one.scale, panels=pair)}
    double = draw(Results(replace(one.study, scales=scales), "small", one.all), view)
    assert [len(legend.texts) for legend in double.legends] == [3]
    assert all(axes.get_legend() is None for axes in double.axes)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (1.2, 2.1, ["1.2", "1.4", "1.6", "1.8", "2"]),
        (0.04, 2, ["0.05", "0.1", "0.2", "0.5", "1", "2"]),
        (1e-4, 1, None),
    ],
)
def test_short_logarithmic_axes_have_plain_numbers(low, high, labels):
    axes = Figure().subplots()
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    usual = [tick.get_text() for tick in axes.get_yticklabels()]
    plain_ticks(axes)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == (labels or usual)


def test_the_page_leads_from_each_curve_to_its_records(folder):
    text = build_report(folder).read_text()
    for path, records, _ in find_records(folder):
        assert f'href="records/{path.name}"' in text
        lines = path.read_text().splitlines()
        for record in records.values():
            assert f"<code>{record.id}</code></a> <span" in text
            assert record.id in lines[record.line - 1]


def test_the_paper_stands_beside_ours(folder):
    text = re.sub(r"<[^>]+>|\s+", " ", build_report(folder).read_text().split("<script>")[0])
    assert re.search(r"digits +BN +test error \(%\) +1.25 ± 0.5 +[\d.]+ ± [\d.]+ \(n=3\)", text)
    assert re.search(
        r"“BN beats plain.” +(supported|undecided|contradicted) +if its loss is", text
    )


def test_the_page_and_the_study_say_the_same_summary(folder):
    (results,) = [r for _, r in find_results(folder).results if r.study.name == "demo"]
    said = results.study.summary(results)
    text = unescape(build_report(folder).read_text())
    assert text.count(f'<p class="summary">{said}</p>') == 1
    assert text.count('class="summary"') == 1  # the tiny study has none


def test_the_page_asks_nothing_of_the_network(folder):
    markup = build_report(folder).read_text()
    outside = re.sub(r"<script>.*?</script>", "", markup, flags=re.S)
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", outside)
    assert markup.count("plotly.js v") == 1


def test_labels_can_not_break_the_page(folder, monkeypatch):
    study = tiny_study()
    plan = study.scales["small"]
    bad = "<script>alert(1)</script>"
    curves = (Curve(bad, plan.panels[0].curves[0].run, plan.panels[0].curves[0].grid),)
    scale = type(plan)((Panel("</script>", curves),), 3, "seconds")
    evil = type(study)(**{**vars(study), "scales": {"small": scale}, "paper": ()})
    monkeypatch.setitem(studies.STUDIES, "tiny", evil)
    text = build_report(folder).read_text()
    assert bad not in text
    assert "&lt;script&gt;alert(1)" in text


def test_a_page_of_ones_own_runs_claims_nothing(tmp_path):
    with RecordFile.of(tmp_path, "train", "single") as file:
        history = {name: [1.0, 0.5] for name in ("epoch", "train_loss", "train_error")}
        history["test_error"] = [40.0, 30.0]
        file.append(Record(BASE, "train", "single", history=history, started="2026-01-01"))
    text = build_report(tmp_path).read_text().split("<script>")[0]
    assert "<h1>Training runs</h1>" in text
    assert "1 run\n" in text
    for words in ("re-measured", "Claims", "paper says", "Beside the paper", "↑ All studies"):
        assert words not in text
    assert '<p class="soft small">solid: training error, dashed: test error</p>' in text


def test_figures_say_what_is_solid_and_what_is_dashed(folder):
    (_, one), *_ = [r for r in find_results(folder).results if r[1].study.name == "tiny"]
    both = replace(one.study.views[0], y=("train_error", "test_error"))
    (words,) = [figure.get_text() for figure in [draw(one, both)._supxlabel]]
    assert words.endswith("; solid: training error, dashed: test error")
    assert "solid" not in draw(one, one.study.views[0])._supxlabel.get_text()


def test_what_can_not_be_used_is_said(folder):
    with RecordFile.of(folder, "tiny", "small") as file:
        file.append(Record(BASE.changed({"seed": 99, "epochs": 9}), "tiny", "small"))
    with file.path.open("ab") as stream:
        stream.write(b'{"format": 1, "id')
    with RecordFile.of(folder, "fig99", "small") as file:
        file.append(Record(BASE, "fig99", "small", started="2026-01-01"))
    text = build_report(folder).read_text()
    assert "1 records have settings that tiny no longer asks for" in text
    assert "line 14 is no whole record" in text
    assert "there is no study &#39;fig99&#39; at scale &#39;small&#39;" in text


def test_a_folder_without_records_is_refused(tmp_path):
    with pytest.raises(RecordError, match=r"no records in .*: expected .*<study>-<scale>.jsonl"):
        build_report(tmp_path)


def test_an_unfinished_study_is_shown_as_far_as_it_is(folder):
    path = folder / "records" / "tiny-small.jsonl"
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(True)[:3]))
    text = build_report(folder).read_text()
    assert "(grid incomplete)" in text
    assert "not tested" in text


def test_numbers_have_the_digits_that_their_spread_leaves():
    assert number(7.7712, 0.031) == "7.77 ± 0.03"
    assert number(0.00291, 0.00081) == "0.0029 ± 0.0008"
    assert number(123.4, 20.0) == "123 ± 20"
    assert number(1.5, float("nan")) == "1.5"
    assert number(float("inf")) == "—"


def test_a_panel_has_a_colour_for_each_curve():
    for study in STUDIES.values():
        for scale in study.scales.values():
            for panel in scale.panels:
                assert len(set(colours(panel).values())) == len(panel.curves)


# --- in a browser -------------------------------------------------------------------------------

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-component-update",
    "--disable-background-networking",
]


@pytest.fixture
def browser(tmp_path):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver on the path")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in [*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(driver)
    window = webdriver.Chrome(options=options, service=service)
    yield window
    window.quit()


def emulate(browser, width, scheme):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value


# How many ticks each axis of each line plot has.
TICKS = """return [...document.querySelectorAll(".plot")].filter(plot => plot.data[0].fill)
    .flatMap(plot => ["x", "y"].map(axis => plot.querySelectorAll(`.${axis}tick text`).length))"""


def background(browser, selector):
    script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    return browser.execute_script(script, selector, "backgroundColor")


def test_the_page_works_in_a_browser(folder, browser):
    page: Path = build_report(folder)
    emulate(browser, 1280, "light")
    browser.get(page.as_uri())
    plots = until(lambda: browser.find_elements("css selector", ".plot .main-svg"))
    figures = browser.find_elements("css selector", "figure .plot.js-plotly-plot")
    assert len(figures) == 8  # of the demo two views of two panels, three of one; of the other one
    assert len(plots) >= 8
    for figure in figures:
        assert figure.size["height"] > 200
    for width in (1280, 390):
        emulate(browser, width, "light")
        until(lambda: browser.execute_script(TICKS))
        assert min(browser.execute_script(TICKS)) >= 2
    emulate(browser, 1280, "light")
    for selector in ("#overview", ".numbers", ".paper"):
        assert len(browser.find_elements("css selector", f"{selector} tbody tr")) >= 1

    # A click on a name in the legend hides its curve, and another brings it back.
    shown = """return document.querySelector("#plot-tiny-small-loss-0").data
        .filter(trace => trace.legendgroup === "BN").map(trace => trace.visible)"""
    toggle = browser.find_element(
        "xpath",
        "//div[@id='plot-tiny-small-loss-0']//*[@class='traces'][contains(., 'BN')]"
        "//*[contains(@class, 'legendtoggle')]",
    )
    assert "legendonly" not in browser.execute_script(shown)
    for state in ("legendonly", True):
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", toggle)
        toggle.click()
        until(lambda state=state: set(browser.execute_script(shown)) == {state})
        time.sleep(0.4)  # longer than a double click

    # No button of the figures sends them anywhere.
    assert not browser.find_elements("css selector", "[data-attr='cloud'], [href*='plotly.com']")

    # Light and dark, by the system's wish and by the button; the figures follow.
    light = background(browser, "body")
    browser.find_element("id", "theme").click()
    until(lambda: background(browser, "body") != light)
    layout = "return document.querySelector('.plot')._fullLayout.paper_bgcolor"
    until(lambda: browser.execute_script(layout) == "rgb(17,17,17)")
    assert background(browser, "body") == "rgb(17, 17, 17)"

    emulate(browser, 390, "dark")
    browser.refresh()
    until(lambda: browser.find_elements("css selector", ".plot .main-svg"))
    assert background(browser, "body") != light
    widths = "return [document.documentElement.scrollWidth, window.innerWidth]"
    page_width, window_width = browser.execute_script(widths)
    assert page_width <= window_width

    messages = [entry["message"] for entry in browser.get_log("browser")]
    assert messages == []


def test_a_click_on_a_curve_opens_its_settings(folder, browser):
    emulate(browser, 1280, "light")
    browser.get(build_report(folder).as_uri())
    until(lambda: browser.find_elements("css selector", ".plot .main-svg"))
    browser.execute_script("""
        const plot = document.querySelector("#plot-tiny-small-loss-0");
        const curve = plot.data.findIndex(trace => trace.name === "DBN");
        plot.emit("plotly_click", {points: [{data: plot.data[curve]}]});
    """)
    details = browser.find_element("css selector", "details[open]")
    assert "DBN" in details.find_element("css selector", "summary").text
    assert '"name": "dbn"' in details.find_element("css selector", "pre").text

    # Back to the figures, by the browser's button and by a link.
    anchor, top = details.get_attribute("id"), "return document.querySelector('#tiny-small')"
    assert browser.current_url.endswith(f"#{anchor}")
    browser.back()
    assert "#" not in browser.current_url
    browser.forward()
    until(lambda: browser.current_url.endswith(f"#{anchor}"))
    details.find_element("css selector", "a[href='#tiny-small']").click()
    until(lambda: browser.execute_script(f"{top}.getBoundingClientRect().top") < 100)
