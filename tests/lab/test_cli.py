"""`watersmeet lab` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from watersmeet.cli import app
from watersmeet.lab import ssbj_runs
from watersmeet.lab.report import build
from watersmeet.lab.store import EDITION, verdicts


def call(*arguments: str) -> tuple[int, str]:
    outcome = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["lab", *arguments])
    return outcome.exit_code, outcome.output


def test_run_then_list_then_report(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path))
    code, said = call("run", "rpj/fig2", "rpj/eq4", "--scale", "tiny", *out)
    assert code == 0
    assert "rpj/fig2 agrees" in said
    code, said = call("list", *out)
    assert code == 0
    assert "agrees (tiny)" in said
    assert "not run" in said
    assert call("report", *out)[0] == 0
    assert "rpj/fig2" in (tmp_path / "index.html").read_text()
    assert (tmp_path / "README.md").exists()


def test_an_unknown_name_is_named(tmp_path: Path) -> None:
    code, said = call("run", "rpj/fig99", "--out", str(tmp_path))
    assert code == 2
    assert "rpj/fig99" in said


def test_without_tpchgen_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssbj_runs.tpch.cache_clear()
    monkeypatch.setattr(ssbj_runs.shutil, "which", lambda name: None)
    monkeypatch.setattr(ssbj_runs.sys, "executable", str(tmp_path / "python"))
    code, said = call("run", "ssbj/fig5d", "--scale", "tiny", "--out", str(tmp_path))
    assert code == 0
    assert "not reproducible here" in said
    assert "watersmeet[lab]" in said


def test_what_was_run_before_the_rules_changed_says_nothing(tmp_path: Path) -> None:
    call("run", "rpj/fig2", "rpj/eq4", "--scale", "tiny", "--out", str(tmp_path))
    path = tmp_path / "rpj/eq4.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "edition": EDITION - 1}))
    build(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "To be run again: the flush policies by Eq. 4 (Section 4.3)." in page
    assert "Held here: PSMJ merges three runs of each relation, two at a time (Fig. 2)." in page
    assert verdicts(tmp_path)["rpj/eq4"]["outcome"] == "outdated"
    assert "rpj/eq4.png" not in page
    assert "**outdated**.\n" in page
    assert "**outdated**: ." not in page
