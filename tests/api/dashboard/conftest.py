"""One service process with real jobs, and one Chromium, for all tests of a file that look at pages in a browser."""

from pathlib import Path

import pytest

from kintsugi.client import Client
from tests.api.dashboard.browser import Visitor, tell
from tests.chromium import CHROMIUM
from tests.services import service


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Address of the service, and a client of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KINTSUGI_PLANS_AHEAD", "false")
        folder = tmp_path_factory.mktemp("dashboard")
        with service(Path(folder) / "kintsugi.sqlite3") as process, Client(process.url) as client:
            tell(client)
            yield process, client


@pytest.fixture(scope="module")
def chromium():
    playwright_api = pytest.importorskip("playwright.sync_api")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def visit(chromium, site):
    """Opens pages; at the end nobody complained, and nothing came from another host."""
    visitors = []

    def begin(**options):
        visitors.append(Visitor(chromium, site[0].url, **{"viewport": {"width": 1280, "height": 860}, **options}))
        return visitors[-1]

    yield begin
    for visitor in visitors:
        visitor.context.close()
    for visitor in visitors:
        visitor.check()
