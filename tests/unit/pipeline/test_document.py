"""YAML with lines: where things are, and which words mean what."""

import pytest

from watersmeet.pipeline.document import Document
from watersmeet.pipeline.problems import PipelineError, dotted, nearest


def test_lines_of_keys_items_and_what_is_missing() -> None:
    document = Document("a: 1\nb:\n  c:\n    - x\n    - {d: 2,\n       e: 3}\n", "p.yaml")
    assert document.data == {"a": 1, "b": {"c": ["x", {"d": 2, "e": 3}]}}
    assert document.line(("b", "c", 1, "e")) == 6
    assert document.line(("b", "c", 0)) == 4
    assert document.line(("b", "nothing", "here")) == 2
    assert document.line(("nothing",)) == 1


def test_finding_a_value() -> None:
    document = Document("a: x\njoin:\n  on:\n    - [id, x]\n    - y\n", "p.yaml")
    assert document.find("x", ("join",)) == ("join", "on", 0, 1)
    assert document.find("y", ("join",)) == ("join", "on", 1)
    assert document.find("z", ("join",)) == ("join",)
    assert document.find("x", ("nothing",)) == ("nothing",)


def test_only_true_and_false_are_booleans() -> None:
    document = Document("on: key\nyes: no\noff: true\nwhen: 2026-01-01\nsize: 1e3\nat: 12:30:00\nnone: ~\n", "p.yaml")
    assert document.data == {
        "on": "key", "yes": "no", "off": True, "when": "2026-01-01", "size": 1000.0, "at": "12:30:00", "none": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "not valid YAML"),
        ("a: 1\nb: 2\na: 3\n", 3, "given twice, first on line 1"),
        ("a: 1\n2: 3\n", 2, "keys must be text"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "not valid YAML"),
        ("a: *nothing\n", 1, "not valid YAML"),
    ],
)
def test_what_is_wrong_has_its_line(text: str, line: int, words: str) -> None:
    try:
        problems = Document(text, "p.yaml").problems
    except PipelineError as error:
        problems = error.problems
    (problem,) = problems
    assert (problem.file, problem.line) == ("p.yaml", line)
    assert words in problem.message


def test_an_empty_document_is_nothing() -> None:
    assert Document("# only a comment\n", "p.yaml").data is None


def test_paths_and_nearest_names() -> None:
    assert dotted(("join", "constraints", 0, "one")) == "join.constraints[0].one"
    assert nearest("Memroy", ["memory", "policy"]) == "did you mean 'memory'?"
    assert nearest("when-drained", ["when_drained"]) == "did you mean 'when_drained'?"
    assert nearest("zzz", ["memory", "policy"]) == "known are memory, policy"
