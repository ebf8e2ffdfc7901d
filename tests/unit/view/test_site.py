"""The page over HTTP: what it gives, and all that it refuses."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.troubled_joins import healthy, rows_of, run_join
from typer.testing import CliRunner

from watersmeet.cli import app
from watersmeet.errors import OptionError, StateDirError
from watersmeet.testing.arrivals import make_plan
from watersmeet.view.assets import ASSETS
from watersmeet.view.board import Board
from watersmeet.view.embed import ui
from watersmeet.view.server import PageServer
from watersmeet.view.site import make_site


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return healthy(tmp_path_factory.mktemp("state") / "orders")


def client(folder: Path, base: str = "http://127.0.0.1", **given: object) -> TestClient:
    return TestClient(make_site(Board.of([folder]), **given), base_url=base)  # type: ignore[arg-type]


def test_the_page_and_its_files(folder: Path) -> None:
    site = client(folder)
    page = site.get("/")
    assert page.status_code == 200
    assert "<title>Watersmeet</title>" in page.text
    for name in ASSETS:
        assert site.get(f"/assets/{name}").status_code == 200
    assert site.get("/api/joins").json()["joins"] == ["orders"]
    shown = site.get("/api/joins/orders").json()
    assert shown["newest_batch"] == 11
    assert site.get("/api/joins/orders?after=9").json()["series"]["batch"] == [10, 11]


def test_answers_are_hardened(folder: Path) -> None:
    for path in ("/", "/assets/app.js", "/api/joins", "/nowhere"):
        headers = client(folder).get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers
    framed = client(folder, framed=True).get("/").headers["content-security-policy"]
    assert "frame-ancestors http://localhost:* http://127.0.0.1:*" in framed


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_shows(folder: Path, method: str) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    site = client(folder)
    assert site.request(method, "/api/joins/orders").status_code == 405
    site.get("/api/joins/orders")
    site.get("/api/joins/orders/why?key=1")
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../site.py",
        "/assets/%2e%2e/site.py",
        "/assets/..%2fsite.py",
        "/assets/__init__.py",
        "/assets//etc/passwd",
        "/api/joins/..%2f..%2fetc",
        "/api/joins/%2e%2e",
        "/api/joins/orders%2f..%2f..",
        "/api/joins/other",
        "/api/joins/orders?after=x",
        "/api/joins/orders/why",
    ],
)
def test_nothing_else_can_be_reached(folder: Path, path: str) -> None:
    assert client(folder).get(path).status_code == 404


def test_a_name_that_points_here_from_elsewhere_is_refused(folder: Path) -> None:
    assert client(folder, "http://evil.example").get("/api/joins").status_code == 421
    assert client(folder, "http://127.0.0.1.evil.example:80").get("/api/joins").status_code == 421
    assert client(folder, "http://localhost:8000").get("/api/joins").status_code == 200
    assert client(folder, "http://[::1]:8000").get("/api/joins").status_code == 200


def test_with_a_token_only_who_has_it_comes_in(folder: Path) -> None:
    site = client(folder, "http://example.org", token="s3cret")
    for path in ("/", "/assets/app.js", "/api/joins", "/api/events", "/?token=wrong", "/api/joins?token=s3cret"):
        assert site.get(path).status_code == 401, path
    assert site.get("/api/joins", headers={"Authorization": "Bearer s3cret"}).status_code == 200
    assert site.get("/api/joins", headers={"Authorization": "Bearer s3cre"}).status_code == 401
    answer = site.get("/?token=s3cret", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/"), "the token leaves the address"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert site.get("/api/joins").status_code == 200, "the cookie is enough"


@pytest.mark.parametrize("token", ["q8+Zr/x&1==", "two words; #1", '"><script>', "ключ", "%41"])
def test_any_token_comes_in_by_the_address_that_is_printed(folder: Path, token: str) -> None:
    with PageServer(Board.of([folder]), token=token) as page:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(page.url) as answer:
            assert (answer.status, answer.url) == (200, page.address)
        with opener.open(f"{page.address}api/joins") as answer:
            assert json.load(answer)["joins"] == ["orders"]
        assert "<script>" not in page._repr_html_()
        assert f'src="{page.url}" ' in page._repr_html_()


def test_two_pages_of_one_host_are_open_in_one_browser(folder: Path) -> None:
    """A browser sends the cookies of a host to all of its ports."""
    first = client(folder, "http://example.org", token="one")
    second = client(folder, "http://example.org", token="two")
    assert first.get("/?token=one").status_code == 200
    assert second.get("/?token=two").status_code == 200
    first.cookies.update(second.cookies)
    assert first.get("/api/joins").status_code == 200


def test_keys_are_text_in_json(tmp_path: Path) -> None:
    plan = make_plan("symmetric", keys=make_plan("symmetric").inputs[0].payload[1:2])
    key = "<script>alert(1)</script>"
    folder = run_join(tmp_path / "join", plan, [{"left": rows_of([key] * 200)}])
    shown = client(folder).get("/api/joins/join").json()
    assert shown["keys"]["hot"][0]["key"] == key
    found = client(folder).get("/api/joins/join/why", params={"key": key}).json()
    assert len(found["rows"]) == 100
    assert "waits until payments ends" in found["rows"][0]["sentence"]


def test_why_says_what_is_wrong_with_a_key(folder: Path) -> None:
    site = client(folder)
    assert site.get("/api/joins/orders/why?key=99999").json()["rows"] == []
    assert "abc" in site.get("/api/joins/orders/why?key=abc").json()["error"]
    assert "a value for each key column" in site.get("/api/joins/orders/why?key=1&key=2").json()["error"]


def test_a_server_is_on_this_machine_alone_unless_told_otherwise(folder: Path) -> None:
    with ui(folder) as page:
        assert page.url.startswith("http://127.0.0.1:")
        assert page.token is None
        with urllib.request.urlopen(f"{page.url}api/joins") as answer:
            assert json.load(answer)["joins"] == ["orders"]
        assert f'src="{page.url}"' in page._repr_html_()
        port = int(page.url.rsplit(":", 1)[1].strip("/"))
        with pytest.raises(OptionError, match=f"expected an address of this machine with a free port, .* port {port}"):
            PageServer(Board.of([folder]), port=port)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(page.url, timeout=2)


def test_another_address_always_has_a_token(folder: Path) -> None:
    with PageServer(Board.of([folder]), host="0.0.0.0") as page:
        assert page.token is not None
        assert len(page.token) >= 32
        assert page.url.endswith(f"/?token={page.token}")
        assert "0.0.0.0" not in page.url, "that is no address that a browser opens"
        with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(page.url) as answer:
            assert b"<title>Watersmeet</title>" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(page.address + "api/joins")


def test_a_directory_without_a_join_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StateDirError, match=r"no join\.json"):
        ui(tmp_path)


def test_the_command_says_what_is_wrong_and_serves_nothing(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["ui", str(tmp_path)])
    assert refused.exit_code == 2
    assert "expected a join's state directory" in refused.stderr
    refused = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert refused.exit_code == 2


class _Query:
    """What `ui` asks of a query."""

    isActive = True  # noqa: N815

    def __init__(self, *descriptions: str) -> None:
        self.lastProgress = {"sources": [{"description": text} for text in descriptions], "durationMs": {}}
        self.failure: Exception | None = None

    def exception(self) -> Exception | None:
        return self.failure

    def explain(self) -> None:
        print("== Physical Plan ==\n", self.lastProgress)


def test_a_query_shows_its_joins(folder: Path) -> None:
    query = _Query("KafkaV2[Subscribe[orders]]", f"FileStreamSource[file:{folder}/control]")
    with ui(query) as page:
        assert list(page.board.joins) == ["orders"]
    with pytest.raises(OptionError, match="Give the state directory in place of the query"):
        ui(_Query("RateStreamV2[rowsPerSecond=1]"))


def test_a_query_that_fails_says_why(folder: Path) -> None:
    query = _Query(f"FileStreamSource[file:{folder}/control]")
    with ui(query) as page:
        join = page.board.joins["orders"]
        assert join.document()["failures"] == []
        query.isActive, query.failure = False, RuntimeError("the disk is <full>\n\tat java.lang.Thread")
        (failure,) = join.document()["failures"]
        assert failure["message"] == "the disk is <full>"
        shown = join.document()
        assert shown["failures"] == [failure], "when it was noticed"
        assert (shown["status"], shown["troubles"][0]["sentence"]) == ("stopped", "the disk is <full>")
