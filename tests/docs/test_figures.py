"""Measured figures of README and docs are those of the result files, and the result files keep to their floors."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


figures, ratios = loaded("figures"), loaded("ratios")


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda path: path.name)
def test_figures_come_from_the_result_files(page: Path) -> None:
    text = page.read_text()
    assert text == figures.rewritten(text), "run `make figures`"
    assert text.count("<!-- figures: ") == len(figures.BLOCK.findall(text)), "a block is not closed"


def test_every_block_is_on_a_page() -> None:
    used = re.findall(r"<!-- figures: ([\w-]+) -->", "".join(page.read_text() for page in figures.PAGES))
    assert sorted(used) == sorted(figures.BLOCKS)


def test_another_figure_is_noticed() -> None:
    page = "<!-- figures: idle-pages -->\n\n| old |\n\n<!-- end -->\n"
    assert "| `rpj` |" in figures.rewritten(page)


def test_committed_results_keep_to_the_floors() -> None:
    found = ratios.rows(json.loads(ratios.FLOORS.read_text()), ratios.RESULTS)
    assert [name for name, _, _, said in found if said == "below its floor"] == []


def test_a_ratio_below_its_floor_is_said(tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text('{"case": {"ratio": 1.5}}')
    floors = {
        "kept": {"file": "some", "at": ["case", "ratio"], "floor": 1.5},
        "broken": {"file": "some", "at": ["case", "ratio"], "floor": 1.6},
        "lost": {"file": "some", "at": ["case", "other"], "floor": 1.0},
        "to come": {"file": "other", "at": ["ratio"], "floor": 1.0},
    }
    assert [said for *_, said in ratios.rows(floors, tmp_path)] == ["", "below its floor", "missing", "no result yet"]
