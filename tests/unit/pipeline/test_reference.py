"""The reference page is what the models say, and says something about every key."""

from pathlib import Path

from watersmeet.pipeline.reference import reference

PAGE = Path(__file__).resolve().parents[3] / "docs" / "pipeline-reference.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "the models have changed: run `make reference`"


def test_every_key_is_explained() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [row for row in rows if row.endswith("|  |")] == []
