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
    ("text", "value"),
    [
        ("010", 10), ("08", 8), ("-007", -7), ("+12", 12), ("0o10", 8), ("0x1F", 31), ("1_000", "1_000"),
        ("0b1", "0b1"), ("0o8", "0o8"), ("!!int 010", 10), ("-0x1F", "-0x1F"), ("0", 0),
    ],
)  # fmt: skip
def test_integers_are_those_of_yaml_1_2(text: str, value: object) -> None:
    assert Document(f"a: {text}\n", "p.yaml").data == {"a": value}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "not valid YAML"),
        ("a: 1\nb: 2\na: 3\n", 3, "given twice, first on line 1"),
        ("a: 1\n2: 3\n", 2, "keys must be text"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "not valid YAML"),
        ("a: *nothing\n", 1, "not valid YAML"),
        ("a: 1\nb: x\x07y\n", 2, "not valid YAML: the character U+0007 is not allowed"),
        ("\x00", 1, "not valid YAML: the character U+0000 is not allowed"),
        ("a: 1\nb: !!int x\n", 2, "not valid YAML: 'x' is not of the type int"),
        ("a: 1\nb: !!bool x\n", 2, "not valid YAML: 'x' is not of the type bool"),
        ("a: 1\n!!float x: 2\n", 2, "not valid YAML: 'x' is not of the type float"),
        ("a: 1\nb: !!timestamp x\n", 2, "not valid YAML: 'x' is not of the type timestamp"),
        ("a: 1\nb: &x [1, *x]\n", 2, "not valid YAML: an alias stands inside of what it repeats"),
        ("a: 1\nb: &x\n  c: {d: *x}\n", 3, "not valid YAML: an alias stands inside of what it repeats"),
        ("a: 1\nb: " + "[" * 2000, 2, "not valid YAML: nested too deeply"),
        ('a: 1\nb: "\\UFFFFFFFF"\n', 2, "not valid YAML"),
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


def test_an_alias_repeats_a_value() -> None:
    assert Document("a: &x [1, 2]\nb: [*x, *x]\n", "p.yaml").data == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


def test_an_empty_document_is_nothing() -> None:
    assert Document("# only a comment\n", "p.yaml").data is None


def test_paths_and_nearest_names() -> None:
    assert dotted(("join", "constraints", 0, "one")) == "join.constraints[0].one"
    assert nearest("Memroy", ["memory", "policy"]) == "did you mean 'memory'?"
    assert nearest("when-drained", ["when_drained"]) == "did you mean 'when_drained'?"
    assert nearest("zzz", ["memory", "policy"]) == "known are memory, policy"
