"""The README's example runs as it stands, links lead somewhere, and settings are those that the code has."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from watersmeet.spark.session import JOIN_SETTINGS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


def test_the_example_runs(spark: SparkSession) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {})
    assert printed.getvalue().strip() == "500"


def test_the_page_on_choosing_shows_what_is_printed(spark: SparkSession) -> None:
    page = (ROOT / "docs" / "which-join.md").read_text()
    example, shown = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL).groups()  # type: ignore[union-attr]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "which-join.md", "exec"), {})
    assert printed.getvalue() == shown


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in PAGES))
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text()):
        if "://" not in target:
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page} links to {target}"


def test_the_tutorial_has_the_settings_of_a_join() -> None:
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    assert dict(re.findall(r"^\| `(spark\.[^`]+)` \| (\S+) \|", tutorial, re.MULTILINE)) == JOIN_SETTINGS
