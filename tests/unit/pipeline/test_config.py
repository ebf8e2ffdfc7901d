"""Pipeline files: what they mean, and every kind of mistake with its line."""

from pathlib import Path

import pytest
from tests.unit.pipeline.conftest import GOOD

from watersmeet.pipeline.config import draft, from_dict, load
from watersmeet.pipeline.families import FAMILIES
from watersmeet.pipeline.joins import Join
from watersmeet.pipeline.problems import PipelineError, dotted
from watersmeet.pipeline.run import check_sink


def test_a_good_file(good: Path) -> None:
    loaded = load(good)
    pipeline = loaded.pipeline
    assert pipeline.sources["orders"].options == {"maxFilesPerTrigger": "1"}
    assert pipeline.join.memory == 256_000_000
    assert pipeline.join.given.keys() == {"memory", "policy"}
    assert pipeline.trigger.processing_time == 2_000_000
    assert loaded.state_dir == str(good.parent / "watersmeet-work/orders-with-payments/state")
    assert loaded.checkpoint == str(good.parent / "watersmeet-work/orders-with-payments/checkpoint")
    assert loaded.resolve("s3a://bucket/x") == "s3a://bucket/x"
    assert loaded.resolve("/data") == "/data"
    assert loaded.resolve("data") == str(good.parent / "data")


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("name: orders-with-payments", "name: ../orders", 1, "only letters, digits"),
        ("name: orders-with-payments\n", "", 1, "name: missing"),
        ("    path: data/orders\n", "    pth: data/orders\n", 5, "unknown key; did you mean 'path'?"),
        ("    schema: ", "    shema: ", 6, "unknown key; did you mean 'schema'?"),
        ("  payments:\n", "  pay/ments:\n", 8, "only letters, digits"),
        ("    format: parquet\n    path: data/orders", "    path: data/orders", 3, "give either format"),
        ("operator: progressive", "operator: progresive", 13, "did you mean 'progressive'?"),
        ("  left: orders\n", "", 12, "join.left: missing"),
        ("  left: orders\n", "  left: order\n", 14, "did you mean 'orders'?"),
        ("  right: payments\n", "  right: orders\n", 8, "payments: is not used"),
        ("  memory: 256 MB", "  memry: 256 MB", 17, "unknown key; did you mean 'memory'?"),
        ("  memory: 256 MB", "  memory: 256 parsecs", 17, "is not a size"),
        ("  policy: rpj", "  policy: rjp", 18, "'rpj'"),
        ("  policy: rpj", "  partitions: 1000000000", 18, "less than or equal to 100000"),
        ("  on: order_id", "  on: 7", 16, "on"),
        ("sink: {format: parquet, path: out/joined}", "sink: {path: out/joined}", 19, "give format"),
        ("sink: {format: parquet, path: out/joined}\n", "", 1, "sink: missing"),
        ("{format: parquet, path: out/joined}", "{format: json}", 19, "format json needs a path"),
        ("processing_time: 2 seconds", "processing_time: soon", 20, "is not a duration"),
        ("processing_time: 2 seconds", "procesing_time: 2 s", 20, "did you mean 'processing_time'?"),
        ("processing_time: 2 seconds", "processing_time: 2 s, once: true", 20, "exactly one"),
        ("processing_time: 2 seconds", "available_now: false", 20, "true"),
        ("finish: when_drained", "finish: when_dry", 21, "'when_drained'"),
        ("finish: when_drained", "finsh: when_drained", 21, "did you mean 'finish'?"),
        ("finish: when_drained", "packages: [hudi]", 21, "group:artifact:version"),
        ("finish: when_drained", "conf: {a: '${NOT_SET_ANYWHERE}'}", 21, "NOT_SET_ANYWHERE is not set"),
        ("    format: parquet\n    path: data/orders", "    format: rate\n    path: x", 21, "would never happen"),
    ],
)
def test_a_mistake_has_its_line(good: Path, old: str, new: str, line: int, words: str) -> None:
    assert old in GOOD
    good.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(PipelineError) as caught:
        load(good)
    found = [problem for problem in caught.value.problems if words in str(problem)]
    assert found, str(caught.value)
    assert found[0].line == line
    assert str(found[0]).startswith(f"{good}:{line}: ")


def test_all_mistakes_are_found_at_once(good: Path) -> None:
    good.write_text(GOOD.replace("path: data/orders", "pth: x").replace("256 MB", "1 X").replace("when_drained", "now"))
    with pytest.raises(PipelineError) as caught:
        load(good)
    assert [problem.line for problem in caught.value.problems] == [5, 17, 21]


@pytest.mark.parametrize("text", ["", "just text\n", "- a\n- list\n"])
def test_not_a_mapping(good: Path, text: str) -> None:
    good.write_text(text)
    with pytest.raises(PipelineError, match="a pipeline is a mapping"):
        load(good)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"nothing\.yaml: cannot be read"):
        load(tmp_path / "nothing.yaml")


def test_a_secret_is_in_no_message(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "canary-7f3a")
    good.write_text(GOOD.replace("{maxFilesPerTrigger: 1}", "{token: '${MY_TOKEN}'}").replace("256 MB", "canary-7f3a"))
    with pytest.raises(PipelineError) as caught:
        load(good)
    assert "canary" not in str(caught.value)
    good.write_text(GOOD.replace("{maxFilesPerTrigger: 1}", "{token: '${MY_TOKEN}'}"))
    loaded = load(good)
    assert "canary" not in repr(loaded.pipeline)
    assert loaded.pipeline.sources["orders"].options["token"] == "canary-7f3a"


def test_the_same_from_python() -> None:
    source = {"format": "parquet", "path": "x", "schema": "k long"}
    data = {
        "name": "p", "sources": {"a": source, "b": source},
        "join": {"operator": "progressive", "left": "a", "right": "b", "on": "k"}, "sink": {"format": "noop"},
    }  # fmt: skip
    assert from_dict(data).pipeline.join.memory is None
    with pytest.raises(PipelineError, match=r"^join\.memory: '1 X' is not a size"):
        from_dict({**data, "join": {**data["join"], "memory": "1 X"}})  # type: ignore[dict-item]


JOINS = {
    "progressive": {"left": "a", "right": "b", "on": "k", "memory": "1 GB", "flush": "largest"},
    "window": {"left": "a", "right": "b", "on": [["k", "l"]], "window": ["60 s", "1 min"], "time": ["t", "u"]},
    "multiway": {
        "inputs": ["a", "b"], "on": {"a": "k", "b": "l"}, "time": "t", "window": "1 h", "optional": ["b"],
    },
    "punctuated": {
        "left": "a", "right": "b", "on": "k", "constraints": [{"kind": "one_to_many", "one": "left"}],
        "punctuations": {"right": {"column": "is_end"}}, "purge": "batch",
    },
    "semi-stream": {"stream": "a", "master": "b", "on": "k", "memory": "10 MB", "how": "left", "max_delay": 2},
}  # fmt: skip


@pytest.mark.parametrize("operator", FAMILIES)
def test_every_family_takes_its_options_and_refuses_others(operator: str) -> None:
    source = {"format": "parquet", "path": "x", "schema": "k long"}
    data = {"name": "p", "sources": {"a": source, "b": source}, "sink": {"format": "noop"}}
    join = {"operator": operator, **JOINS[operator]}
    loaded = from_dict({**data, "join": join})
    options = FAMILIES[operator].option_names()
    assert loaded.pipeline.join.given.keys() == set(join) & set(options)
    with pytest.raises(PipelineError, match=r"join\.nonsense: unknown key"):
        from_dict({**data, "join": {**join, "nonsense": 1}})
    for hidden in FAMILIES[operator].OPTIONS.INTERNAL - set(FAMILIES[operator].model_fields):
        with pytest.raises(PipelineError, match="unknown key"):
            from_dict({**data, "join": {**join, hidden: 1}})


# What a file says of the inputs, and the same with the operator that is chosen.
CHOSEN: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "progressive": ({"left": "a", "right": "b", "memory": "1 GB"},) * 2,
    "window": (
        {"left": "a", "right": "b", "within": ["0 s", "1 min"], "time": ["t", "u"], "algorithm": "HH"},
        {"left": "a", "right": "b", "window": {"between": ["0 s", "1 min"]}, "time": ["t", "u"], "algorithm": "HH"},
    ),
    "multiway": (
        {"inputs": ["a", "b"], "within": "1 h", "time": "t"}, {"inputs": ["a", "b"], "window": "1 h", "time": "t"},
    ),
    "punctuated": (
        {
            "left": "a", "right": "b", "unique": "left", "clustered": {"input": "right", "sequence": "s"},
            "ordered": ["left"], "ends": {"right": {"column": "is_end"}}, "how": "left",
        },
        {
            "left": "a", "right": "b", "punctuations": {"right": {"column": "is_end"}}, "how": "left",
            "constraints": [
                {"kind": "one_to_many", "one": "left"}, {"kind": "clustered", "input": "right", "sequence": "s"},
                {"kind": "ordered", "input": "left"},
            ],
        },
    ),
    "semi-stream": ({"left": "a", "master": "b", "max_delay": 2}, {"stream": "a", "master": "b", "max_delay": 2}),
}  # fmt: skip


def auto(**join: object) -> Join:
    source = {"format": "parquet", "path": "x", "schema": "k long"}
    data = {"name": "p", "sources": {"a": source, "b": source}, "sink": {"format": "noop"}, "join": {"on": "k", **join}}
    return from_dict(data).pipeline.join


@pytest.mark.parametrize("operator", FAMILIES)
def test_without_an_operator_the_join_is_chosen(operator: str) -> None:
    said, meant = CHOSEN[operator]
    for given in ({}, {"operator": "auto"}):
        join = auto(**said, **given)
        explicit = auto(operator=operator, **meant)
        assert (join.wiring, join.options, join.given) == (explicit.wiring, explicit.options, explicit.given)
        assert join.choice is not None
        assert join.choice.value == operator
        assert explicit.choice is None


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"master": "b", "unique": "left"}, r"join\.unique: expected with a stream and a table no more than memory"),
        ({"within": "soon"}, r"join\.within(\.0)?: .*'soon' is not a duration"),
        ({"within": ["30 min", "0 s"]}, r"join\.within: expected within = \(low, high\).*ends before it begins"),
        ({"within": ["1 h", "1 h"]}, r"join\.within: .*an interval of one moment.*'30 min' for either way"),
        ({"time": "t"}, r"join\.time: means nothing to the progressive join, which fits the rest"),
        ({"window": "1 h"}, r"join\.window: unknown key; did you mean 'within'\?"),
        ({"lateness": "1 s"}, r"join\.lateness: unknown key"),
        ({"unique": "middle"}, r"join\.unique: "),
        ({"within": "1 h", "operator": "atuo"}, r"join\.operator: unknown operator 'atuo'; did you mean 'auto'\?"),
        ({"how": "sideways", "memry": 1}, r"join\.memry: unknown key; did you mean 'memory'\?"),
        ({"master": "b"}, r"join\.right: means nothing to the semi-stream join"),
    ],
)
def test_what_is_wrong_with_a_join_that_is_chosen(said: dict[str, object], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        auto(left="a", right="b", **said)


def test_a_wrong_option_of_a_wrongly_wired_join_is_found_too() -> None:
    data = {"name": "p", "sources": {"a": {"format": "rate"}}, "sink": {"format": "noop"}}
    with pytest.raises(PipelineError) as caught:
        from_dict({**data, "join": {"operator": "semi-stream", "stream": "a", "on": "k", "max_delay": 0}})
    assert "master_path" in str(caught.value)
    assert "join.max_delay" in str(caught.value)


@pytest.mark.parametrize(
    ("join", "message"),
    [
        ({"operator": "progressive", "left": "a", "right": "b", "how": "lefft"}, r"Did you mean 'left'\?"),
        ({"operator": "semi-stream", "stream": "a", "master": "b", "how": "right"}, "Find them with a batch query"),
        ({"left": "a", "right": "b", "how": "lefft"}, r"Did you mean 'left'\?"),
    ],
)
def test_a_type_and_a_key_that_no_join_has_are_found_with_the_rest(join: dict[str, object], message: str) -> None:
    data = {"name": "p", "sources": {"a": {"format": "rate"}, "b": {"format": "rate"}}, "sink": {"format": "noop"}}
    with pytest.raises(PipelineError, match=message) as caught:
        from_dict({**data, "join": {**join, "on": [], "memory": "lots"}})
    assert {dotted(problem.path) for problem in caught.value.problems} == {"join.how", "join.on", "join.memory"}


def test_a_type_that_no_join_has_does_not_hide_options_that_do_not_go_together() -> None:
    data = {"name": "p", "sources": {"a": {"format": "rate"}, "b": {"format": "rate"}}, "sink": {"format": "noop"}}
    join = {"operator": "window", "left": "a", "right": "b", "on": "k", "window": "1 s", "on_overload": "shrink"}
    with pytest.raises(PipelineError, match=r"Did you mean 'left'\?[\s\S]*'shrink' needs memory"):
        from_dict({**data, "join": {**join, "how": "lefft"}})


def test_nothing_hides_anything_else(good: Path) -> None:
    """A key twice, a reference that cannot be resolved, an unknown key, a wrong option, a source that is not there."""
    text = (
        GOOD.replace("  left: orders", "  left: ordrs").replace("256 MB", "1 X").replace("finish:", "finsh: x\nfinish:")
    )
    text = text.replace("{maxFilesPerTrigger: 1}", "{maxFilesPerTrigger: '${NOT_SET_ANYWHERE}'}")
    text = text.replace("    path: data/payments", "    path: data/payments\n    path: data/again")
    text = text.replace("{processing_time: 2 seconds}", "{processing_time: 2 seconds, once: true}")
    good.write_text(text.replace("    format: parquet\n    path: data/orders", "    format: rate\n    tabel: 1"))
    with pytest.raises(PipelineError) as caught:
        load(good)
    assert [(problem.line, dotted(problem.path)) for problem in caught.value.problems] == [
        (5, "sources.orders.tabel"),
        (7, "sources.orders.options.maxFilesPerTrigger"),
        (11, "sources.payments.path"),
        (15, "join.left"),
        (18, "join.memory"),
        (21, "trigger"),
        (22, "finsh"),
    ]
    loaded = draft(good)
    assert [str(problem) for problem in loaded.problems] == str(caught.value).splitlines()
    assert (dict(loaded.parts.sources), loaded.parts.join) == ({}, None)
    assert loaded.parts.wiring is not None
    assert loaded.parts.sink is not None


def test_a_source_is_checked_as_a_whole_although_a_key_is_unknown(good: Path) -> None:
    good.write_text(GOOD.replace("    path: data/orders", "    zzz: 1"))
    with pytest.raises(PipelineError) as caught:
        load(good)
    assert [problem.message.split(";")[0] for problem in caught.value.problems] == [
        "format parquet needs a path",
        "unknown key",
    ]


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_sink_with_results_of_another_query(good: Path, scheme: str) -> None:
    out, checkpoint = good.parent / "out", good.parent / "checkpoint"
    good.write_text(
        GOOD.replace("path: out/joined", f"path: '{scheme}{out}'") + f"checkpoint: '{scheme}{checkpoint}'\n"
    )
    check_sink(load(good))
    (out / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(PipelineError, match="has results of another query"):
        check_sink(load(good))
    checkpoint.mkdir()
    (checkpoint / "metadata").touch()
    check_sink(load(good))
