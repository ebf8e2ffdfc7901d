"""`watersmeet lab` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from watersmeet.cli import app
from watersmeet.lab import ssbj_runs
from watersmeet.lab.report import build


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


def test_the_report_takes_data_of_an_older_version_with_its_verdict(tmp_path: Path) -> None:
    for name in ("rpj/fig12", "ssbj/fig5a", "punctuations/fig9", "windows/fig4"):
        path = tmp_path / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        old = {"panels": [], "numbers": {"a": {"SSBJ": 1.0, "MESHJOIN": 2.0, "RPJ": 2.0, "RPJ-md": 1.0}}, "notes": []}
        verdict = {"outcome": "differs", "why": "as it was said then"}
        path.write_text(json.dumps({"experiment": name, "scale": "small", "verdict": verdict, "findings": old}))
    assert build(tmp_path).read_text().count("as it was said then") >= 2
