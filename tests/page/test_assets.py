"""The files of the page, without a browser."""

import re

import pytest
from starlette.applications import Starlette

from cdfl.page import OWN, docs_routes, page_routes

from .serving import Site


@pytest.fixture(scope="module")
def site():
    return Site(Starlette(routes=[*page_routes({"kind": "server"}), *docs_routes()]))


PATHS = ["/", "/docs", "/page/chart.js", "/page/swagger.js", "/page/swagger.css", "/page/main.js", "/page/style.css"]


@pytest.mark.parametrize("path", PATHS)
def test_nothing_inline_and_nothing_from_elsewhere(site, path):
    answer = site.get(path)
    assert answer.status_code == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_what_the_documents_load_is_there(site):
    for document in ("/", "/docs"):
        text = site.get(document).text
        named = re.findall(r'(?:src|href)="((?!#)[^"]+)"', text)
        assert len(named) >= 4
        for place in named:
            assert site.get(f"/{place}").status_code == 200, place
        assert "<script>" not in text
        assert " style=" not in text
        assert not re.search(r" on\w+=", text)
    for module in OWN.iterdir():
        if module.name.endswith(".js"):
            for other in re.findall(r'from "\./([^"]+)"', module.read_text()):
                assert site.get(f"/page/{other}").status_code == 200
            assert "innerHTML" not in module.read_text()
            assert "eval(" not in module.read_text()


def test_a_browser_that_has_it_is_not_sent_it_again(site):
    first = site.get("/page/chart.js")
    assert len(first.content) > 500_000
    assert int(first.headers["Content-Length"]) < 300_000  # compressed
    again = site.get("/page/chart.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    plain = site.get("/page/chart.js", headers={"Accept-Encoding": "identity"})
    assert plain.content == first.content
