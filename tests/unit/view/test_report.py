"""The page as one file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

from tests.troubled_joins import healthy, rows_of, run_join
from typer.testing import CliRunner

from watersmeet.cli import app
from watersmeet.testing.arrivals import make_plan
from watersmeet.view.assets import SCRIPTS, read_asset


def saved(tmp_path: Path, *folders: Path) -> str:
    file = tmp_path / "out" / "report.html"
    done = CliRunner().invoke(app, ["report", *map(str, folders), "-o", str(file)])
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"report in {file}\n"
    return file.read_text(encoding="utf-8")


def test_all_is_in_one_file(tmp_path: Path) -> None:
    page = saved(tmp_path, healthy(tmp_path / "orders"), healthy(tmp_path / "clicks"))
    documents = json.loads(re.search(r'id="documents">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert list(documents["documents"]) == ["orders", "clicks"]
    assert documents["documents"]["orders"]["newest_batch"] == 11
    assert not re.search(r'(src|href)="(?!data:|#)', page), "nothing is fetched"


def test_only_its_own_scripts_may_run(tmp_path: Path) -> None:
    page = saved(tmp_path, healthy(tmp_path / "orders"))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]  # type: ignore[index]
    scripts = re.findall(r"<script(?: type=\"module\")?>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert f"script-src 'sha256-{digests[0]}' 'sha256-{digests[1]}';" in policy
    assert "unsafe" not in policy


def test_a_key_cannot_end_the_data(tmp_path: Path) -> None:
    plan = make_plan("symmetric", keys=make_plan("symmetric").inputs[0].payload[1:2])
    key = "</script><script>alert(1)</script>"
    page = saved(tmp_path, run_join(tmp_path / "join", plan, [{"left": rows_of([key] * 200)}]))
    assert key not in page
    assert "\\u003c/script>\\u003cscript>alert(1)" in page


def test_scripts_are_in_the_order_of_their_imports() -> None:
    seen: set[str] = set()
    for name in SCRIPTS:
        imported = set(re.findall(r'from "\./(\w+\.js)"', read_asset(name)))
        assert imported <= seen, name
        seen.add(name)


def test_nothing_parses_html() -> None:
    for name in SCRIPTS:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", read_asset(name)), name
