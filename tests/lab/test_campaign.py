"""A run of experiments that is interrupted goes on where it was, and says how long it will take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from watersmeet.cli import app
from watersmeet.lab import parts, rpj, store
from watersmeet.lab.campaign import Campaign, due, weight
from watersmeet.lab.experiment import no_progress
from watersmeet.lab.registry import EXPERIMENTS, select

NAMES = ("rpj/example4.1", "rpj/fig2", "rpj/fig6")


def call(out: Path, *more: str) -> tuple[int, str]:
    arguments = ["lab", "run", *NAMES, "--scale", "tiny", "--out", str(out), *more]
    outcome = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    return outcome.exit_code, outcome.output


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run = store.run

    def interrupted(experiment, scale, folder, progress):  # type: ignore[no-untyped-def]
        ran.append(experiment.id)
        if experiment.id == "rpj/fig2" and ran.count("rpj/fig2") == 1:
            raise KeyboardInterrupt
        return run(experiment, scale, folder, progress)

    monkeypatch.setattr("watersmeet.lab.cli.run", interrupted)
    assert call(tmp_path)[0] != 0
    assert list(json.loads((tmp_path / "run/journal.json").read_text())["seconds"]) == ["rpj/example4.1"]
    code, said = call(tmp_path)
    assert code == 0
    assert "1 of 3 were done before the interruption" in said
    assert ran == ["rpj/example4.1", "rpj/fig2", "rpj/fig2", "rpj/fig6"]
    assert not (tmp_path / "run").exists()
    assert sorted(store.verdicts(tmp_path)) == sorted(NAMES)


def test_what_is_outdated_is_run_and_what_is_valid_at_a_larger_scale_is_kept(tmp_path: Path) -> None:
    chosen = select(list(NAMES))
    assert due(chosen, tmp_path, "small", outdated=True) == chosen
    assert call(tmp_path)[0] == 0
    assert due(chosen, tmp_path, "tiny", outdated=True) == []
    assert due(chosen, tmp_path, "tiny") == chosen
    assert due(chosen, tmp_path, "small", outdated=True) == chosen  # tiny is not enough
    _alter(tmp_path, "rpj/fig2", edition=store.EDITION - 1)
    _alter(tmp_path, "rpj/fig6", scale="paper")
    assert [one.id for one in due(chosen, tmp_path, "tiny", outdated=True)] == ["rpj/fig2"]
    assert [one.id for one in due(chosen, tmp_path, "tiny")] == ["rpj/example4.1", "rpj/fig2"]
    assert due(chosen, tmp_path, "tiny", replace=True) == chosen
    assert "1 kept that were run at a larger scale" in call(tmp_path)[1]
    code, said = call(tmp_path, "--outdated")
    assert (code, "nothing to run" in said) == (0, True)


def _alter(folder: Path, name: str, **values: object) -> None:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_run_can_leave_out_what_measures_cpu_time(tmp_path: Path) -> None:
    everything = list(EXPERIMENTS.values())
    alone, beside = (due(everything, tmp_path, "tiny", measured=measured) for measured in (True, False))
    assert sorted(one.id for one in (*alone, *beside)) == sorted(EXPERIMENTS)
    assert {one.clock for one in alone} == {"cpu", "mixed"}
    assert {one.clock for one in beside} == {"virtual", "model", "exact"}
    code, said = call(tmp_path, "--clock", "measured")
    assert (code, "nothing to run" in said) == (0, True)
    code, said = call(tmp_path, "--clock", "virtual")
    assert (code, "3 of 3 done, all done" in said) == (0, True)


def test_fewer_experiments_of_an_interrupted_run_go_on_with_it(tmp_path: Path) -> None:
    chosen = select(["rpj"])
    Campaign.of(tmp_path, "tiny", chosen).done("rpj/fig2", 3.0)
    rest = [one for one in chosen if one.id != "rpj/fig2"]  # what is still outdated
    resumed = Campaign.of(tmp_path, "tiny", rest)
    assert (resumed.seconds, resumed.left) == ({"rpj/fig2": 3.0}, [one.id for one in rest])
    assert resumed.told(2.0).startswith("2 s; 1 of 10 done, about ")
    assert Campaign.of(tmp_path, "tiny", select(["rpj/fig2"])).seconds == {}  # asked for by itself: once more


def test_another_run_or_a_fresh_one_begins_anew(tmp_path: Path) -> None:
    chosen = select(["rpj"])
    Campaign.of(tmp_path, "tiny", chosen).done("rpj/fig2", 3.0)
    assert Campaign.of(tmp_path, "tiny", chosen).seconds == {"rpj/fig2": 3.0}
    assert Campaign.of(tmp_path, "small", chosen).seconds == {}
    Campaign.of(tmp_path, "tiny", chosen).done("rpj/fig2", 3.0)
    assert Campaign.of(tmp_path, "tiny", chosen, fresh=True).seconds == {}


def test_the_time_left_goes_by_what_was_spent(tmp_path: Path) -> None:
    campaign = Campaign.of(tmp_path, "tiny", [EXPERIMENTS[name] for name in ("rpj/fig2", "rpj/fig8", "rpj/fig9")])
    assert campaign.seconds_left("rpj/fig2", 0.0, 0.0) is None
    campaign.done("rpj/fig2", 2.0)  # two seconds for a weight of one
    assert campaign.seconds_left("rpj/fig8", 0.0, 0.0) == pytest.approx(2.0 * (weight("rpj/fig8") + weight("rpj/fig9")))
    half = campaign.seconds_left("rpj/fig8", 0.5, weight("rpj/fig8"))
    assert half == pytest.approx(2.0 * (weight("rpj/fig8") / 2 + weight("rpj/fig9")), rel=0.05)


def test_weights_are_of_experiments_that_exist() -> None:
    from watersmeet.lab.campaign import WEIGHTS

    assert set(WEIGHTS) <= set(EXPERIMENTS)


def test_parts_survive_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[rpj.Key] = []
    curve = rpj._curve

    def counted(key: rpj.Key) -> rpj.Curve:
        made.append(key)
        return curve(key)

    monkeypatch.setattr(rpj, "_curve", counted)
    monkeypatch.setattr(rpj, "_known", {})
    with parts.kept_in(tmp_path):
        first = rpj.curves_of("reliable", {"XJoin": ("xjoin", None)}, "tiny", no_progress)
        monkeypatch.setattr(rpj, "_known", {})  # another process
        again = rpj.curves_of("reliable", {"XJoin": ("xjoin", None)}, "tiny", no_progress)
    assert len(made) == len(rpj.TINY_SETTINGS)
    assert first == again
    assert parts.known("rpj", made[0]) is None  # nowhere, outside
