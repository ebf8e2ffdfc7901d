"""Every kind of decision has a sentence of its own."""

from watersmeet.plan.metrics import EVENTS
from watersmeet.view.sentences import sentence

VALUES = {
    "probe_order": ["a", "b"],
    "input": "orders",
    "method": "hash",
    "strategy": "equal",
    "rates": [300.4, 200.0],
    "mode": "drop",
    "reason": "ordered",
}


def test_every_kind_has_a_sentence() -> None:
    for kind, described in EVENTS.items():
        event = {"kind": kind, **{name: VALUES.get(name, 3) for name in described.fields}}
        assert sentence(event) != kind.replace("_", " "), kind


def test_a_kind_of_another_release_is_named() -> None:
    assert sentence({"kind": "new_thing", "rows": 1}) == "new thing"
    assert sentence({"kind": "flush"}) == "flush"


def test_the_numbers_it_was_made_from() -> None:
    event = {"kind": "flush", "input": "left", "bucket": 3, "rows": 1200, "rows_left": 0, "probability": 0.0125}
    assert sentence(event) == (
        "1,200 rows of left, bucket 3, moved to disk: the other input's next row falls there with probability 0.013"
    )
    shed = {"kind": "shed", "strategy": "inverse_rate", "rates": [300.4, 200.0], "service_rate": 300.0}
    assert sentence({**shed, "expected_results_lost": 1.2}) == (
        "Rows shed (inverse rate): 500 a second came, the join serves 300; about 1 result lost"
    )
    assert sentence({"kind": "admit", "keys": 1, "rows": 2}) == "1 key with 2 master rows taken into the cache"
