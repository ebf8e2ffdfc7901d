"""The page in a browser: troubles by its own words, hostile keys, phones, themes, keyboard, and the saved file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import LAPTOP, PHONE, save_picture
from tests.troubled_joins import (
    fan_out,
    healthy,
    hot_key,
    late_rows,
    new_versions,
    nulls_match,
    rows_of,
    run_join,
    silent_input,
    small_budget,
    small_quota,
    three_inputs,
)
from watersmeet.pipeline.failures import record_failure
from watersmeet.state.directory import StateDir
from watersmeet.testing.arrivals import make_plan
from watersmeet.view.board import Board
from watersmeet.view.report import write_report
from watersmeet.view.server import PageServer

# What somebody who sees nothing but the page must find there.
TROUBLES = [
    (hot_key, "One key has half of all rows of orders", "Key 7 has about 50 %"),
    (silent_input, "payments is silent", "in 12 batches in which orders had rows"),
    (fan_out, "Fan-out of 10,000", "key 42"),
    (late_rows, "Late rows on payments", "came behind the watermark"),
    (small_budget, "The budget is too small", "20.0 kB"),
]
VIEWS = ("overview", "flow", "decisions", "keys")


@pytest.mark.parametrize(("make", "title", "words"), TROUBLES, ids=[make.__name__ for make, _, _ in TROUBLES])
def test_a_trouble_is_named_by_the_page(
    make: Callable[[Path], Path], title: str, words: str, page: Page, tmp_path: Path
) -> None:
    with PageServer(Board.of([make(tmp_path / "orders")])) as server:
        page.goto(server.url)
        card = page.locator(".trouble", has=page.get_by_role("heading", name=title))
        expect(card).to_have_count(1)
        expect(card).to_contain_text(words)
        if make is fan_out:
            save_picture(page, "troubles")


def test_a_healthy_join_is_called_so(page: Page, tmp_path: Path) -> None:
    with PageServer(Board.of([healthy(tmp_path / "orders")])) as server:
        page.goto(server.url)
        expect(page.get_by_text("Nothing looks wrong.")).to_be_visible()
        expect(page.locator(".trouble")).to_have_count(0)


def test_a_hostile_key_is_text(page: Page, tmp_path: Path) -> None:
    plan = make_plan("symmetric", keys=make_plan("symmetric").inputs[0].payload[1:2])
    key = "<script>hit=1</script><img src=x onerror='hit=1'>"
    folder = run_join(tmp_path / "join", plan, [{"left": rows_of([key] * 300)}], names={"left": key, "right": "b"})
    with PageServer(Board.of([folder])) as server:
        for view in VIEWS:
            page.goto(f"{server.url}#view={view}")
            page.reload()
            expect(page.locator("h2").first).to_be_attached()
        expect(page.locator(".keys code").first).to_have_text(key)
        page.get_by_label("Key", exact=True).fill(key)
        page.get_by_role("button", name="Explain").click()
        expect(page.locator(".answer")).to_contain_text("held for the key <script>")
        assert page.evaluate("window.hit") is None
    file = write_report(Board.of([folder]), tmp_path / "report.html")
    page.goto(f"{file.as_uri()}#view=keys")
    expect(page.locator(".keys code").first).to_have_text(key)
    assert page.evaluate("window.hit") is None


def test_the_policy_stops_scripts_that_are_not_its_own(browser: Browser, tmp_path: Path) -> None:
    with PageServer(Board.of([healthy(tmp_path / "orders")])) as server:
        page = browser.new_page()  # without the fixture: a complaint is what is wanted here
        page.goto(server.url)
        expect(page.locator(".tile").first).to_be_visible()
        page.evaluate(INJECTED)
        assert page.evaluate("window.hit") is None
        refused = page.evaluate("fetch('https://example.org').then(() => 'went out', () => 'refused')")
        assert refused == "refused"
        page.close()


def test_with_a_token_the_address_has_it_only_once(page: Page, tmp_path: Path) -> None:
    with PageServer(Board.of([healthy(tmp_path / "orders")]), token="a-secret") as server:
        page.goto(server.url)
        expect(page.locator(".tile").first).to_be_visible()
        assert "a-secret" not in page.url
        assert "a-secret" not in page.evaluate("document.cookie")
        answer = page.context.browser.new_context().new_page().goto(server.address)  # type: ignore[union-attr]
        assert answer is not None
        assert answer.status == 401


def test_several_joins_share_a_page(page: Page, tmp_path: Path) -> None:
    with PageServer(Board.of([healthy(tmp_path / "orders"), hot_key(tmp_path / "clicks")])) as server:
        page.goto(server.url)
        expect(page.get_by_text("Nothing looks wrong.")).to_be_visible()
        page.get_by_label("Join", exact=True).select_option("clicks")
        expect(page.locator(".trouble").first).to_be_visible()
        assert "join=clicks" in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_it_fits_and_can_be_read(browser: Browser, tmp_path: Path, scheme: str, size: dict[str, int]) -> None:
    context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    with PageServer(Board.of([small_budget(tmp_path / "orders")])) as server:
        for view in VIEWS:
            page.goto(f"{server.url}#view={view}")
            expect(page.locator(".card").first).to_be_visible()
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{view} is {wide} pixels wider than the screen"
            assert page.evaluate(CONTRAST) == [], view
            if view == "overview" and (scheme, size) in (("dark", LAPTOP), ("light", PHONE)):
                page.wait_for_timeout(500)
                save_picture(page, "dark" if scheme == "dark" else "phone")
    context.close()


def test_every_control_has_a_name_and_the_keyboard_reaches_it(page: Page, tmp_path: Path) -> None:
    with PageServer(Board.of([small_budget(tmp_path / "orders"), healthy(tmp_path / "clicks")])) as server:
        for view in VIEWS:
            page.goto(f"{server.url}#view={view}")
            expect(page.locator(".card").first).to_be_visible()
            assert page.evaluate(NAMELESS) == [], view
            assert page.locator("[aria-current=page]").inner_text() != ""
        page.goto(server.url)
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        reached = []
        for _ in range(9):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        assert {"join", "pause", "theme", "Overview", "Flow", "Decisions", "Keys and rows"} <= set(reached)
        page.get_by_role("link", name="Decisions").focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="flush", exact=True).focus()
        page.keyboard.press("Space")
        expect(page.get_by_role("button", name="flush", exact=True)).to_have_attribute("aria-pressed", "true")


def test_the_theme_can_be_chosen_and_stays(page: Page, tmp_path: Path) -> None:
    with PageServer(Board.of([healthy(tmp_path / "orders")])) as server:
        page.goto(server.url)
        button = page.get_by_role("button", name="Theme")
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        button.click()
        button.click()
        expect(button).to_have_accessible_name("Theme: dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
        page.reload()
        expect(button).to_have_accessible_name("Theme: dark")


def test_the_saved_page_shows_the_same(page: Page, tmp_path: Path) -> None:
    folder = small_budget(tmp_path / "orders")
    file = write_report(Board.of([folder]), tmp_path / "report.html")
    with PageServer(Board.of([folder])) as server:
        shown = []
        for address in (server.url, file.as_uri()):
            page.goto(address)
            expect(page.locator(".lane canvas")).to_have_count(5)
            shown.append([one.get_attribute("data-value") for one in page.locator("[data-figure]").all()])
    assert shown[0] == shown[1]
    for view in VIEWS:
        page.goto(f"{file.as_uri()}#view={view}")
        expect(page.locator(".card").first).to_be_visible()
    expect(page.get_by_text("A saved page cannot ask the join.")).to_be_visible()


def again(page: Page) -> None:
    """Let the page get the newest numbers and show them."""
    with page.expect_response("**/api/joins/*"):
        page.evaluate("[1, 2].forEach(() => document.getElementById('pause').click())")
    page.wait_for_timeout(100)


def test_the_keyboard_reaches_a_moment_and_the_content(page: Page, tmp_path: Path) -> None:
    with PageServer(Board.of([small_budget(tmp_path / "orders")])) as server:
        page.goto(server.url)
        page.get_by_label("Click a moment in a curve, or move to it").focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".moment strong")).to_have_text("Batch 18")
        assert "batch=18" in page.url
        page.keyboard.press("End")
        expect(page.locator(".moment")).to_have_count(0)
        page.goto(f"{server.url}#view=decisions&batch=3")
        expect(page.locator(".decided h3")).to_have_count(1)
        skip = page.get_by_role("link", name="Skip to content")
        skip.focus()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        assert page.url.endswith("#view=decisions&batch=3"), "the view is not lost"


def test_what_is_read_stays_when_the_numbers_change(browser: Browser, tmp_path: Path) -> None:
    context = browser.new_context(viewport=PHONE)  # type: ignore[arg-type]
    page = context.new_page()
    with PageServer(Board.of([hot_key(tmp_path / "orders")])) as server:
        page.goto(server.url)
        page.locator(".trouble a").first.focus()
        page.evaluate("document.querySelector('.scroll').scrollLeft = 40")
        again(page)
        assert page.evaluate("document.activeElement.closest('.trouble') !== null")
        assert page.evaluate("document.querySelector('.scroll').scrollLeft") == 40
        assert page.evaluate(CUT) == [], "figures and names are whole on a phone"
        last = page.get_by_role("link", name="Keys and rows").bounding_box()
        assert last is not None
        assert last["x"] + last["width"] <= PHONE["width"], "all views can be seen"
    context.close()


def test_a_failure_stands_on_the_axis_although_no_batch_came_after_it(page: Page, tmp_path: Path) -> None:
    folder = small_budget(tmp_path / "orders")
    record_failure(StateDir(folder), "progressive_join: expected this, found that.")
    with PageServer(Board.of([folder])) as server:
        page.goto(server.url)
        expect(page.locator(".lane canvas")).to_have_count(5)
        assert page.evaluate(REDDISH) > 20, "a line from top to bottom in the first lane"
        assert "1 failure" in (page.locator(".lane-body").last.get_attribute("aria-label") or "")
        page.goto(f"{server.url}#view=decisions")
        expect(page.locator(".bars line.failure").first).to_be_attached()


def test_the_decisions_in_view_can_be_shared(page: Page, tmp_path: Path) -> None:
    with PageServer(Board.of([small_budget(tmp_path / "orders")])) as server:
        page.goto(f"{server.url}#view=decisions")
        page.locator(".bin").nth(4).click()
        expect(page.locator(".decided h3")).to_have_count(1)  # before, those of other batches are still there
        expect(page.locator(".decided h3")).to_contain_text("Batch 4")
        assert "batch=4&kind=flush" in page.url
        page.reload()
        expect(page.locator(".decided h3")).to_have_count(1)
        page.get_by_role("button", name="Show all").click()
        expect(page.locator(".decided h3")).not_to_have_count(1)
        again(page)
        expect(page.locator(".decided h3")).not_to_have_count(1)
        page.go_back()
        expect(page.locator(".decided h3")).to_have_count(1)


def test_a_key_of_several_columns_has_a_field_for_each(page: Page, tmp_path: Path) -> None:
    plan = make_plan("symmetric", keys=(pa.string(), pa.binary()))
    folder = run_join(tmp_path / "join", plan, [{"left": [("a, b", b"\xff\x00", 1, "x")]}])
    with PageServer(Board.of([folder])) as server:
        page.goto(f"{server.url}#view=keys")
        page.get_by_label("_k0", exact=True).fill("a, b")
        page.get_by_label("_k1", exact=True).fill("0xff00")
        page.keyboard.press("Enter")
        expect(page.locator(".answer")).to_contain_text("1 row held for the key a, b, 0xff00")
        page.reload()
        expect(page.locator(".answer")).to_contain_text("1 row held for the key a, b, 0xff00")
        page.get_by_label("_k0", exact=True).fill("")
        page.keyboard.press("Enter")
        expect(page.locator(".answer")).to_contain_text("Nothing is held for the key")


def test_three_inputs_of_very_different_size_stand_apart(page: Page, tmp_path: Path) -> None:
    with PageServer(Board.of([three_inputs(tmp_path / "visits")])) as server:
        page.goto(f"{server.url}#view=flow")
        expect(page.locator("svg.flow")).to_be_visible()
        assert page.evaluate(OVERLAPS) == []
        page.goto(f"{server.url}#view=decisions")
        first = page.locator(".decisions summary").first
        expect(first).to_contain_text("drove")
        expect(first).to_contain_text("partition ")


@pytest.mark.parametrize(
    ("make", "lane", "words"),
    [
        (new_versions, "swap once", "Version 2 of the master table took over from version 1"),
        (new_versions, "refresh once", "Version 2 of the master table is being warmed up with"),
        (small_quota, "quota lifted", "Memory was full:"),
    ],
)
def test_what_happens_now_and_then_is_on_the_timeline(
    make: Callable[[Path], Path], lane: str, words: str, page: Page, tmp_path: Path
) -> None:
    with PageServer(Board.of([make(tmp_path / "orders")])) as server:
        page.goto(f"{server.url}#view=decisions")
        row = page.locator(".lane-row", has_text=lane)
        row.locator(".bin").first.click()
        expect(page.locator(".decisions summary").first).to_contain_text(words)
        assert "kind=" in page.url


def test_keys_can_be_read_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    context = browser.new_context(viewport=PHONE)  # type: ignore[arg-type]
    page = context.new_page()
    keys = [*["20000"] * 50, *["0b7c9f1e-5f0a-4b7e-9d51-1c2a7a3c55aa"] * 40, *["7"] * 30]
    plan = make_plan("symmetric", keys=(pa.string(),))
    folder = run_join(tmp_path / "orders", plan, [{"left": rows_of(keys), "right": rows_of(["7"])}])
    with PageServer(Board.of([folder])) as server:
        page.goto(f"{server.url}#view=keys")
        code = page.locator(".keys code")
        expect(code).to_have_count(3)
        lines = {one.inner_text(): one.evaluate("node => node.getClientRects().length") for one in code.all()}
        assert lines["20000"] == lines["7"] == 1, "a short key stands in one line"
        assert 1 < lines[keys[50]] <= 6, "a long one in few"
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    context.close()


def test_a_backlog_that_is_not_known_is_called_so(page: Page, tmp_path: Path) -> None:
    with PageServer(Board.of([healthy(tmp_path / "orders")])) as server:
        page.goto(server.url)
        inputs = page.get_by_role("region", name="Inputs")
        expect(inputs).to_contain_text("Backlog")
        expect(inputs.get_by_text("not known")).to_have_count(2)
        expect(page.get_by_text("what waits at a source is not in the state")).to_be_visible()


def test_a_null_key_can_be_asked_for_where_nulls_match(page: Page, tmp_path: Path) -> None:
    plan = nulls_match(make_plan("symmetric", keys=(pa.int64(), pa.bool_())))
    came = [(0, True, n, "null") for n in range(3)] + [(0, False, 9, "zero")]
    folder = run_join(tmp_path / "orders", plan, [{"left": came}])
    with PageServer(Board.of([folder, healthy(tmp_path / "others")])) as server:
        page.goto(f"{server.url}#join=orders&view=keys")
        expect(page.locator(".keys code").first).to_have_text(r"\N")
        expect(page.get_by_text("In this join a null matches a null")).to_be_visible()
        page.get_by_label("Key", exact=True).fill(r"\N")
        page.keyboard.press("Enter")
        expect(page.locator(".answer")).to_contain_text(r"3 rows held for the key \N")
        page.goto(f"{server.url}#join=others&view=keys")
        expect(page.get_by_text("In this join a null matches a null")).to_be_hidden()


def test_an_address_that_names_nothing_shows_the_overview(page: Page, tmp_path: Path) -> None:
    with PageServer(Board.of([healthy(tmp_path / "orders")])) as server:
        page.goto(f"{server.url}#view=constructor&join=__proto__&batch=77&key=%&kind=%ff")
        expect(page.locator(".moment")).to_contain_text("Batch 77 is not among the batches shown")
        expect(page.locator(".tile").first).to_be_visible()


def test_times_of_rows_are_those_of_the_join_wherever_the_browser_is(browser: Browser, tmp_path: Path) -> None:
    context = browser.new_context(viewport=LAPTOP, timezone_id="Asia/Tokyo")  # type: ignore[arg-type]
    page = context.new_page()
    with PageServer(Board.of([late_rows(tmp_path / "orders")])) as server:
        page.goto(server.url)
        clock = page.get_by_role("region", name="Inputs").locator("td", has_text="UTC").first.inner_text()
        page.goto(f"{server.url}#view=keys&key=7")
        expect(page.locator(".answer")).to_contain_text(f"(now {clock})")
        expect(page.locator(".answer")).to_contain_text(f"its clock is at {clock}")
        expect(page.locator("#foot")).to_contain_text("Asia/Tokyo")
    context.close()


# Boxes of the drawing that overlap, and texts that leave the box they begin in.
OVERLAPS = """() => {
  const boxes = [...document.querySelectorAll("svg.flow .node")].map((node) => node.getBBox());
  const bad = [];
  const meet = (a, b, from, length) => a[from] < b[from] + b[length] && b[from] < a[from] + a[length];
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
    if (meet(a, b, "x", "width") && meet(a, b, "y", "height")) bad.push([a.y, b.y]);
  }));
  for (const text of document.querySelectorAll("svg.flow .name, svg.flow .fact")) {
    const t = text.getBBox();
    const within = (b, from, length) => t[from] >= b[from] && t[from] + t[length] <= b[from] + b[length];
    if (!boxes.some((b) => within(b, "x", "width") && within(b, "y", "height"))) bad.push(text.textContent);
  }
  return bad;
}"""
# A script that did not come with the page.
INJECTED = """() => {
  const script = document.createElement("script");
  script.textContent = "window.hit = 1";
  document.body.append(script);
}"""
# Text whose contrast with what is behind it is below 4.5 (3 for large text), as far as plain colours tell.
CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const found = parse(getComputedStyle(node).backgroundColor);
      if (found.length && found[3] !== 0) return found;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].filter((child) => child.nodeType === 3 && child.textContent.trim());
    const box = node.getBoundingClientRect();
    const apart = node.closest("noscript, script, style, .hidden, .skip");
    if (!own.length || box.width < 2 || box.height < 2 || apart) continue;
    const style = getComputedStyle(node), size = parseFloat(style.fontSize);
    const a = light(parse(node instanceof SVGElement ? style.fill : style.color)), b = light(behind(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) bad.push(`${node.tagName} ${ratio.toFixed(2)}: ${own[0].textContent.trim()}`);
  }
  return bad;
}"""
# Facts of the tiles that are cut off, and figures that are broken into two lines.
CUT = """() => [...document.querySelectorAll(".facts span, .facts b")].filter((node) =>
  node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).overflow !== "visible"
  || (node.tagName === "B" && node.getBoundingClientRect().height > 30)).map((node) => node.textContent)"""
# Pixels of the first lane in the colour of what is bad.
REDDISH = """() => {
  const canvas = document.querySelector(".lane canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) {
    if (data[at] > 150 && data[at + 1] < 90 && data[at + 2] < 90 && data[at + 3] > 100) found += 1;
  }
  return found;
}"""
# Controls and pictures without a name.
NAMELESS = """() => {
  const bad = [];
  const all = "a, button, input, select, summary, [role=img], [role=region], svg[role], canvas";
  for (const node of document.querySelectorAll(all)) {
    if (node.closest("[hidden]")) continue;
    const labels = [...(node.labels || [])].map((one) => one.textContent.trim()).join("");
    const drawn = node.tagName === "CANVAS" && node.closest("[role=img][aria-label]");
    if (!(node.getAttribute("aria-label") || node.textContent.trim() || labels || drawn)) {
      bad.push(node.outerHTML.slice(0, 80));
    }
  }
  return bad;
}"""
