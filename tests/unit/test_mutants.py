"""The mutations that `make mutation` draws from: what is changed, what is left alone, and that the draw is stable."""

import tomllib
from pathlib import Path

import mutants
import mutation

SOURCE = '''
"""1 + 1"""
LIMIT: int = 3


def chosen(rows: tuple[int, 2], sides=2 - 1):
    if not rows or len(rows) >= sides:
        raise ValueError(f"{len(rows) + 1} rows", 1 + 1)
    assert len(rows) > 0
    for a, b in zip(rows, rows, strict=True):
        rows.max()
    return min(rows) & 5 == -7


def __repr__(self):
    return 1 + 1
'''


def changes(tmp_path: Path, source: str) -> dict[tuple[str, str], mutants.Mutant]:
    (tmp_path / "module.py").write_text(source)
    return {(each.before, each.after): each for each in mutants.find(tmp_path, ["module.py"])}


def test_every_sort_of_mutation_and_nothing_else(tmp_path: Path) -> None:
    assert set(changes(tmp_path, SOURCE)) == {
        ("3", "4"),
        ("2 - 1", "2 + 1"),
        ("2", "3"),
        ("1", "2"),
        ("not rows or len(rows) >= sides", "not rows and len(rows) >= sides"),
        ("not rows", "rows"),
        ("len(rows) >= sides", "len(rows) > sides"),
        ("rows.max", "rows.min"),
        ("min(rows) & 5 == -7", "min(rows) & 5 != -7"),
        ("min(rows) & 5", "min(rows) | 5"),
        ("min(rows)", "max(rows)"),
        ("5", "6"),
        ("-7", "7"),
        ("7", "8"),
    }


def test_a_mutant_changes_one_place(tmp_path: Path) -> None:
    found = changes(tmp_path, "def f(x):\n    y = x < 1\n    return y and x + 2\n")
    sign = found["x + 2", "x - 2"]
    assert mutants.source_of(tmp_path, sign) == "def f(x):\n    y = x < 1\n    return y and x - 2"
    assert (sign.line, sign.function) == (3, "f")
    assert "return y and x + 2" in str(sign)


def test_the_draw_does_not_depend_on_what_stands_above(tmp_path: Path) -> None:
    before = list(changes(tmp_path, SOURCE).values())
    after = list(changes(tmp_path, "import os\n\n\ndef above():\n    return os.sep\n" + SOURCE).values())
    for seed in range(5):
        drawn = [mutant.id for mutant in mutants.sample(before, 6, seed)]
        assert drawn == [mutant.id for mutant in mutants.sample(after, 6, seed)]
    assert len({tuple(m.id for m in mutants.sample(before, 6, seed)) for seed in range(5)}) > 1


def test_a_mutant_knows_whether_its_function_has_changed(tmp_path: Path) -> None:
    source = "def f(x):\n    return x < 1\n\n\ndef g(x):\n    return x > 1\n"
    before, moved, edited = (
        {pair[0]: mutant.body for pair, mutant in changes(tmp_path, text).items()}
        for text in (source, "import os\n" + source, source.replace("x < 1", "2 if x < 1 else 0"))
    )
    assert before == {name: moved[name] for name in before}
    assert before["x < 1"] != edited["x < 1"]
    assert before["x > 1"] == edited["x > 1"]


def test_the_draw_does_not_depend_on_the_package(tmp_path: Path) -> None:
    for folder in ("before", "after/room", "after/other"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "module.py").write_text(SOURCE)
    before, after = (mutants.find(tmp_path / folder, ["."]) for folder in ("before", "after"))
    ids = [mutant.id for mutant in after]
    assert [mutant.id for mutant in before] == ids[: len(before)]
    assert len(set(ids)) == len(ids) == 2 * len(before)  # two modules of one name are told apart


def test_likely_tests_come_first_and_the_budget_ends_the_list() -> None:
    mutant = mutants.Mutant("id", "watersmeet/window/times.py", 9, "Times.cut", "<", "<=", "a < b", 0)
    place = "times:Times.cut"
    tests = {
        "tests/conformance/test_laws.py::quick": {"seconds": 1.0, "calls": [place]},
        "tests/conformance/test_laws.py::slow": {"seconds": 9.0, "calls": [place]},
        "tests/unit/window/test_times.py::elsewhere": {"seconds": 1.0, "calls": ["times:Times.last"]},
        "tests/unit/window/test_times.py::here": {"seconds": 2.0, "calls": [place]},
    }
    here, quick, slow = (f"tests/{name}" for name in ("unit/window/test_times.py::here", *_laws("quick", "slow")))
    assert mutation.chosen(mutant, tests, 100, None) == [[here], [quick, slow]]
    assert mutation.chosen(mutant, tests, 5, None) == [[here], [quick]]
    assert mutation.chosen(mutant, tests, 100, slow) == [[slow, here], [quick]]
    assert mutation.chosen(mutant, tests, 0, None) == [[here]]


def _laws(*names: str) -> list[str]:
    return [f"conformance/test_laws.py::{name}" for name in names]


def test_every_equivalent_mutation_has_a_reason() -> None:
    for entry in tomllib.loads(mutation.EQUIVALENT.read_text()).get("equivalent", []):
        assert set(entry) == {"id", "change", "reason"}
        assert len(entry["reason"]) > 20
