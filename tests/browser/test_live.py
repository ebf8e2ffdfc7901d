"""Each view of the page of a pipeline that runs: `watersmeet run --ui`, with sources that are played."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Thread

import pyarrow as pa
import pytest
from playwright.sync_api import Page, expect
from pyspark.sql import SparkSession

import watersmeet as wm
from tests.browser.conftest import save_picture
from watersmeet.pipeline.starter import STARTERS, init, write_part

PARTS, ROWS = 12, 3_000
SOON = 180_000  # milliseconds: Spark starts slowly on a busy machine


class Played:
    """A pipeline with a page, whose sources get their files one by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        file = init("progressive", folder, parts=1, rows=10)
        text = file.read_text().replace("available_now: true ", "processing_time: 300 ms ")
        text = text.replace("memory: 64 MB", "memory: 600 kB")
        text = text.replace("policy: rpj", "page_rows: 256\n  partitions: 3\n  policy: rpj")
        file.write_text(f"{text}drained_after: 1 hour\n")
        self.tables = STARTERS["progressive"].tables(PARTS, ROWS)
        for source in self.tables:
            for path in (folder / "progressive-data" / source).iterdir():
                path.unlink()
        self.sent = 0
        command = [sys.executable, "-m", "watersmeet", "run", str(file), "--ui", "--plain", "--master", "local[2]"]
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines: Queue[str] = Queue()
        self.log: list[str] = []
        Thread(target=self._read, args=(self.process.stdout, None), daemon=True).start()
        Thread(target=self._read, args=(self.process.stderr, lines), daemon=True).start()
        self.url = ""
        while not self.url:
            found = re.search(r"in the browser: (http://127\.0\.0\.1:\d+/)", lines.get(timeout=300))
            self.url = found[1] if found else ""

    def _read(self, stream: object, lines: Queue[str] | None) -> None:
        for line in stream:  # type: ignore[attr-defined]
            self.log.append(line)
            if lines is not None:
                lines.put(line)

    def send(self, parts: int, pause: float = 0.4) -> None:
        """Give both sources their next files."""
        for _ in range(parts):
            for source, tables in self.tables.items():
                write_part(tables[self.sent], self.folder / "progressive-data" / source, self.sent)
            self.sent += 1
            time.sleep(pause)

    @property
    def state(self) -> Path:
        return next(self.folder.rglob("join.json")).parent

    def stop(self) -> None:
        """As Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(180)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    started = Played(tmp_path_factory.mktemp("pipeline"))
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.stop()


def value(page: Page, name: str) -> float:
    return float(page.locator(f'[data-figure="{name}"]').first.get_attribute("data-value") or "nan")


def test_the_page_is_live_from_before_the_first_batch(played: Played, page: Page) -> None:
    page.goto(played.url)
    expect(page.get_by_text("Waiting for the first batch")).to_be_visible()
    played.send(1)
    expect(page.locator('[data-figure="rows.left"]')).to_have_text("3,000", timeout=SOON)
    expect(page.locator("#status")).to_contain_text("reading")
    played.send(2)
    expect(page.locator('[data-figure="rows.right"]')).to_have_text("9,000", timeout=SOON)


def test_the_numbers_are_those_of_read_metrics(played: Played, page: Page, spark: SparkSession) -> None:
    page.goto(played.url)
    played.send(3)
    expect(page.locator('[data-figure="rows.left"]')).to_have_text("18,000", timeout=SOON)
    expect(page.locator('[data-figure="rows.right"]')).to_have_text("18,000", timeout=SOON)
    page.wait_for_timeout(4_000)  # what is left to do on disk while no rows come
    metrics = [row.asDict() for row in wm.read_metrics(spark, str(played.state)).collect()]
    page.wait_for_timeout(2_500)
    after = wm.read_metrics(spark, str(played.state)).count()
    last = [row for row in metrics if row["batch"] == max(row["batch"] for row in metrics)]
    assert value(page, "rows.left") == sum(row["rows_in"].get("left", 0) for row in metrics)
    assert value(page, "rows.right") == sum(row["rows_in"].get("right", 0) for row in metrics)
    assert value(page, "late.left") == sum(row["counters"].get("late.left", 0) for row in metrics)
    if after == len(metrics):  # no batch came between the two readings
        assert value(page, "results") == sum(row["rows_out"] for row in metrics)
        assert value(page, "state_rows") == sum(row["state_rows"] for row in last)
        assert value(page, "resident_bytes") == sum(row["resident_bytes"] for row in last)
        assert value(page, "spilled_bytes") == sum(row["spilled_bytes"] for row in last)
        assert value(page, "held.left") == sum(row["counters"]["held_rows.left"] for row in last)


def test_the_overview_has_curves_for_everything(played: Played, page: Page) -> None:
    played.send(3, pause=1.2)
    page.goto(played.url)
    titles = page.locator(".lane-title")
    expect(titles).to_have_text(["orders", "payments", "results", "time in the join", "state"], timeout=SOON)
    expect(page.locator(".lane canvas")).to_have_count(5)
    for lane in page.locator(".lane-body").all():
        assert "highest" in (lane.get_attribute("aria-label") or "")
    expect(page.get_by_role("region", name="Inputs")).to_contain_text("orders")
    expect(page.get_by_role("region", name="Delay")).to_contain_text("newest batch")
    page.set_viewport_size({"width": 1280, "height": 1060})
    page.wait_for_timeout(500)
    save_picture(page, "overview")


def test_a_moment_is_kept_in_the_address(played: Played, page: Page, browser: object) -> None:
    page.goto(played.url)
    expect(page.locator(".lane canvas")).to_have_count(5, timeout=SOON)
    page.locator(".u-over").first.click()
    expect(page.locator(".moment")).to_contain_text("Batch ")
    said = page.locator(".moment strong").inner_text()
    assert f"batch={said.removeprefix('Batch ')}" in page.url
    again = page.context.new_page()
    again.goto(page.url)
    expect(again.locator(".moment strong")).to_have_text(said)
    again.get_by_role("link", name="Back to now").click()
    expect(again.locator(".moment")).to_have_count(0)


def test_the_join_is_drawn(played: Played, page: Page) -> None:
    page.goto(f"{played.url}#view=flow")
    drawn = page.locator("svg.flow")
    expect(drawn).to_be_visible(timeout=SOON)
    words = drawn.get_attribute("aria-label") or ""
    assert re.match(r"orders [\d,]+ rows, payments [\d,]+ rows into \d+ partitions?, [\d,]+ results\.", words)
    assert page.locator("svg.flow .band").count() >= 9
    expect(page.get_by_role("region", name="Partitions", exact=True)).to_contain_text("%")
    save_picture(page, "flow")


def test_a_decision_shows_the_numbers_it_was_made_from(played: Played, page: Page) -> None:
    page.goto(f"{played.url}#view=decisions")
    expect(page.locator(".timeline .bin").first).to_be_visible(timeout=SOON)
    page.get_by_role("button", name="flush", exact=True).click()
    first = page.locator(".decisions details").first
    expect(first).to_contain_text("moved to disk")
    first.locator("summary").click()
    expect(first.locator("dl")).to_contain_text("probability")
    expect(first.locator("dl")).to_contain_text("rows left")
    save_picture(page, "decisions")


def test_why_a_row_is_not_out_yet(played: Played, page: Page) -> None:
    page.goto(f"{played.url}#view=keys")
    key = str(pa.concat_tables(played.tables["orders"][:1])["order_id"][0])
    page.get_by_label("Key", exact=True).fill(key, timeout=SOON)
    page.get_by_role("button", name="Explain").click()
    expect(page.locator(".answer")).to_contain_text(f"held for the key {key}", timeout=SOON)
    expect(page.locator(".answer")).to_contain_text("waits until payments ends")
    assert f"key={key}" in page.url
    page.get_by_label("Key", exact=True).fill("not a number")
    page.keyboard.press("Enter")
    expect(page.locator(".answer .problem")).to_contain_text("not a number")
    page.get_by_label("Key", exact=True).fill(key)
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_contain_text("held for the key")
    save_picture(page, "keys")


def test_pause_holds_the_page_still(played: Played, page: Page) -> None:
    page.goto(played.url)
    expect(page.locator(".lane canvas")).to_have_count(5, timeout=SOON)
    # Partitions commit one by one: all of them have what was sent.
    expect(page.locator('[data-figure="rows.left"]')).to_have_text(f"{ROWS * played.sent:,}", timeout=SOON)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#status")).to_contain_text("paused")
    before = value(page, "rows.left")
    played.send(1)
    page.wait_for_timeout(4_000)
    assert value(page, "rows.left") == before
    page.get_by_role("button", name="Resume").click()
    expect(page.locator('[data-figure="rows.left"]')).to_have_text(f"{before + ROWS:,.0f}", timeout=SOON)


def test_the_run_ends_as_without_a_page(played: Played) -> None:
    played.stop()
    assert played.process.returncode == 0, "".join(played.log)
    assert any(line.startswith("the page again: watersmeet ui ") for line in played.log)
