"""CPU time in turns: who goes when, what counts, and what is kept out."""

from __future__ import annotations

import gc

import pytest

from watersmeet.lab.measuring import least_in_turns, uncollected


def test_works_take_turns_and_the_least_time_of_each_batch_counts() -> None:
    called: list[str] = []
    # A busy spell hits another batch of each work in every turn.
    spells = {"a": iter([[9.0, 1.0, 1.0], [1.0, 9.0, 1.0], [1.0, 1.0, 9.0]]), "b": iter([[2.0, 9.0, 2.0]] * 3)}

    def work(name: str) -> list[float]:
        called.append(name)
        assert not gc.isenabled()
        return next(spells[name])

    found = least_in_turns({name: lambda name=name: work(name) for name in spells}, turns=3)  # type: ignore[misc]
    assert called == ["a", "b", "b", "a", "a", "b"]
    assert {name: spent.tolist() for name, spent in found.items()} == {"a": [1.0, 1.0, 1.0], "b": [2.0, 9.0, 2.0]}
    assert gc.isenabled()


def test_the_collector_comes_back_after_an_error() -> None:
    with pytest.raises(RuntimeError), uncollected():
        raise RuntimeError
    assert gc.isenabled()
