"""The page in a real browser: drawn without a complaint and without the network, at every width, in both themes."""

import base64
import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

from lipkit import report
from lipkit.report.results.contents import Contents

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs Debian's chromium and chromium-driver (apt-get install)"
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip
PHONE, DESK = 390, 1100


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(contents: Contents, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    return report.write_report(contents, folder)[0].as_uri()


def show(browser: Any, address: str, width: int, theme: str) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(address)


def shot(browser: Any, path: Path) -> tuple[int, int]:
    """The whole page as a picture, and its size."""
    found = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
    path.write_bytes(base64.b64decode(found["data"]))
    return struct.unpack(">II", path.read_bytes()[16:24])


def requested(browser: Any) -> list[str]:
    """Addresses that the browser asked for since the last call."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


# Elements that stick out of the window to the right; what scrolls inside of a box of its own does not count.
WIDE = """return [...document.querySelectorAll('main > section > *')]
    .filter(one => one.getBoundingClientRect().right > document.documentElement.clientWidth).length"""
# The contrast of the text to the paper, as WCAG defines it.
CONTRAST = """
const light = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const paper = light(getComputedStyle(document.body).backgroundColor);
return [...document.querySelectorAll('h1, p, td, figcaption, svg text')].map(one => {
    const style = getComputedStyle(one), ink = light(one.closest('svg') ? style.fill : style.color);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
});"""


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_it_renders(browser: Any, address: str, tmp_path: Path, theme: str, width: int):
    requested(browser)
    show(browser, address, width, theme)
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "DEBUG"] == []
    # The page itself, and images that are inside of it: nothing else was asked for.
    # A browser that is still starting on a busy machine also loads pages of its own, which it calls chrome:.
    assert {one.partition(":")[0] for one in requested(browser)} <= {"file", "data", "chrome"}
    entries = browser.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
    assert [one for one in entries if not one.startswith("data:")] == []
    assert browser.execute_script("return document.querySelectorAll('.failed').length") == 0
    assert browser.execute_script("return document.documentElement.scrollWidth") == width
    assert browser.execute_script(WIDE) == 0
    assert browser.execute_script("return [...document.images].filter(one => !one.naturalWidth).length") == 0
    # What WCAG asks for at level AA.
    assert min(browser.execute_script(CONTRAST)) >= 4.5
    assert shot(browser, tmp_path / f"{theme}-{width}.png")[0] == width


# Boxes with more in them than they show, and how much of the column the widest drawing of each figure takes.
SCROLLING = "return [...document.querySelectorAll('.box')].filter(one => one.scrollWidth > one.clientWidth).length"
FILLED = """return [...document.querySelectorAll('main > section > figure')].map(one =>
    Math.max(...[...one.querySelectorAll('svg')].map(svg => svg.getBoundingClientRect().width))
    / one.parentElement.getBoundingClientRect().width)"""


@pytest.mark.browser
def test_tables_fit_and_figures_fill_the_column(browser: Any, address: str):
    show(browser, address, DESK, "light")
    assert browser.execute_script(SCROLLING) == 0
    for width in (DESK, PHONE):
        show(browser, address, width, "light")
        filled = browser.execute_script(FILLED)
        assert len(filled) == 5
        # The rounding of a pixel.
        assert min(filled) > 0.995


@pytest.mark.browser
def test_text_in_figures_is_as_large_as_a_reader_needs(browser: Any, address: str):
    for width in (DESK, PHONE):
        show(browser, address, width, "light")
        heights = browser.execute_script(
            "return [...document.querySelectorAll('svg text')].map(one => one.getBoundingClientRect())"
            ".filter(one => one.width > 0).map(one => Math.min(one.width, one.height))"
        )
        # One digit is about half as wide as it is high: a box of 5 pixels holds text of 9.
        assert min(heights) >= 5


# How far the sides of the first table wider than its box lie from the paper's colour, in the empty line of its caption.
PLACE = """
const box = [...document.querySelectorAll('.box')].find(one => one.scrollWidth > one.clientWidth + 40);
box.scrollLeft = arguments[0] * box.scrollWidth;
box.scrollIntoView();
const at = box.getBoundingClientRect();
return [at.left, at.right, at.top, at.bottom].map(Math.round);"""


def contrast_at_the_sides(browser: Any, path: Path, scrolled: int) -> tuple[float, float]:
    left, right, top, bottom = browser.execute_script(PLACE, scrolled)
    path.write_bytes(base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]))
    rows = matplotlib.image.imread(path)[top + 2 : min(bottom, 790) - 2, :, :3]
    # The margin is paper; text and lines are in some rows only, so the median tells the background.
    paper = np.median(rows[:, 4], axis=0)
    ends = (np.median(rows[:, at], axis=0) for at in (left + 1, right - 2))
    before, after = (float(np.abs(end - paper).max()) for end in ends)
    return before, after


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_table_shows_where_it_goes_on(browser: Any, address: str, tmp_path: Path, theme: str):
    show(browser, address, PHONE, theme)
    # A tenth of the range of a colour is plain to see; a hundredth is the rounding of a picture.
    left, right = contrast_at_the_sides(browser, tmp_path / "begin.png", 0)
    assert left < 0.01
    assert right > 0.1
    left, right = contrast_at_the_sides(browser, tmp_path / "end.png", 1)
    assert left > 0.1
    assert right < 0.01


@pytest.mark.browser
def test_the_themes_differ(browser: Any, address: str):
    papers = []
    for theme in ("light", "dark"):
        show(browser, address, DESK, theme)
        papers.append(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert papers == ["rgb(253, 253, 252)", "rgb(22, 23, 28)"]


@pytest.mark.browser
def test_what_is_wrong_would_be_noticed(browser: Any, tmp_path: Path):
    page = tmp_path / "bad.html"
    page.write_text(
        "<meta name='viewport' content='width=device-width'><body style='background: #fff'>"
        "<main><section><p style='width: 900px; color: #888'>wide</p></section></main>"
        "<img src='http://127.0.0.1:9/x.png'><script>console.error('no')</script>"
    )
    requested(browser)
    show(browser, page.as_uri(), PHONE, "light")
    assert browser.get_log("browser")
    assert "http" in {one.partition(":")[0] for one in requested(browser)}
    assert browser.execute_script(WIDE) == 1
    assert browser.execute_script("return document.documentElement.scrollWidth") > PHONE
    assert min(browser.execute_script(CONTRAST)) < 4.5
