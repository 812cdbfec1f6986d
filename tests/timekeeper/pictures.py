"""``python -m tests.timekeeper.pictures`` takes the pictures of the dashboard in docs/images anew. The clock
stands still, so a page that has not changed gives the same file where the fonts are the same."""

import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser

from tests.support.browser import chromium, visiting
from tests.support.tls import Tls
from tests.timekeeper.dashboards import ADMIN, filled

IMAGES = Path(__file__).parents[2] / "docs" / "images"


@dataclass(frozen=True, slots=True)
class Picture:
    """``width``, ``height``: of the window, in pixels."""

    page: str
    scheme: str
    width: int
    height: int


PICTURES = {
    "dashboard-budgets.png": Picture("/", "light", 1160, 560),
    "dashboard-map.png": Picture("/map", "light", 1160, 760),
    "dashboard-namespace-dark.png": Picture("/namespaces/team-a", "dark", 1160, 820),
    "dashboard-story-small.png": Picture("/pods/team-a/train-9", "dark", 400, 760),
}


def take(folder: Path, browser: Browser) -> None:
    """Write all pictures into the folder."""
    with tempfile.TemporaryDirectory() as work:
        dashboards = filled(Path(work))
        tls = Path(work) / "tls"
        tls.mkdir()
        with dashboards.served(Tls(tls).server()) as url:
            for name, picture in PICTURES.items():
                size = {"width": picture.width, "height": picture.height}
                visitor = visiting(browser, url, picture.scheme, size)
                visitor.log_in(ADMIN)
                visitor.open(picture.page)
                visitor.page.wait_for_load_state("networkidle")
                visitor.page.screenshot(path=folder / name)
                visitor.page.context.close()
        dashboards.close()


if __name__ == "__main__":
    with chromium() as launched:
        take(IMAGES, launched)


def sizes(folder: Path) -> dict[str, tuple[int, int]]:
    """Width and height of each picture there, as the head of a PNG has them."""
    return {file.name: struct.unpack(">II", file.read_bytes()[16:24]) for file in folder.glob("*.png")}
