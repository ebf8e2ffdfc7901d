"""A run of experiments that is interrupted goes on where it was, and says how long it will take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from watersmeet.cli import app
from watersmeet.lab import code, parts, rpj, store
from watersmeet.lab.campaign import DURATIONS, GROWTH, WEIGHTS, Campaign, due, durations_in, expected
from watersmeet.lab.experiment import no_progress
from watersmeet.lab.registry import EXPERIMENTS, select

LAB = Path(code.__file__).parent
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
    assert resumed.told(2.0).startswith("2 s; 1 of 11 done, about ")
    assert Campaign.of(tmp_path, "tiny", select(["rpj/fig2"])).seconds == {}  # asked for by itself: once more


def test_another_run_or_a_fresh_one_begins_anew(tmp_path: Path) -> None:
    chosen = select(["rpj"])
    Campaign.of(tmp_path, "tiny", chosen).done("rpj/fig2", 3.0)
    assert Campaign.of(tmp_path, "tiny", chosen).seconds == {"rpj/fig2": 3.0}
    assert Campaign.of(tmp_path, "small", chosen).seconds == {}
    Campaign.of(tmp_path, "tiny", chosen).done("rpj/fig2", 3.0)
    assert Campaign.of(tmp_path, "tiny", chosen, fresh=True).seconds == {}


def test_what_an_older_edition_of_the_code_did_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = select(["rpj/fig2", "rpj/fig8", "rpj/fig9"])
    Campaign.of(tmp_path, "tiny", chosen).done("rpj/fig2", 3.0)
    Campaign.of(tmp_path, "tiny", chosen).done("rpj/fig8", 3.0)
    editions = {"watersmeet.lab.rpj_examples": "changed"}
    monkeypatch.setattr("watersmeet.lab.campaign.edition", lambda module: editions.get(module, code.edition(module)))
    assert Campaign.of(tmp_path, "tiny", chosen).left == ["rpj/fig2", "rpj/fig9"]
    monkeypatch.setattr(parts, "edition", lambda module: editions.get(module, "as it was"))
    with parts.kept_in(tmp_path):
        parts.keep({"a": 1}, "watersmeet.lab.rpj", "key")
        assert parts.known("watersmeet.lab.rpj", "key") == {"a": 1}
        editions["watersmeet.lab.rpj"] = "changed"
        assert parts.known("watersmeet.lab.rpj", "key") is None


def test_the_edition_is_of_the_module_and_of_what_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in {"above": "from within import below\n", "below": "import json\n", "beside": "1\n"}.items():
        (tmp_path / "within").mkdir(exist_ok=True)
        (tmp_path / f"within/{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(code, "PACKAGE", "within")

    def edition(text: str = "", name: str = "beside") -> str:
        with (tmp_path / f"within/{name}.py").open("a") as file:
            file.write(text)
        return code.edition.__wrapped__("within.above")

    first = edition()
    assert edition("2\n", "beside") == first
    second = edition("2\n", "below")
    assert second != first
    assert edition("2\n", "above") not in (first, second)


def test_every_experiment_has_the_code_of_its_run() -> None:
    assert {one.module for one in EXPERIMENTS.values()} <= {f"watersmeet.lab.{path.stem}" for path in LAB.glob("*.py")}
    assert EXPERIMENTS["rpj/long-run"].module == "watersmeet.lab.rpj_long_run"
    assert EXPERIMENTS["rpj/fig8"].module == "watersmeet.lab.rpj"


def test_the_time_left_is_what_is_expected_at_the_pace_so_far(tmp_path: Path) -> None:
    (tmp_path / DURATIONS).write_text(json.dumps({"small": {"rpj/fig2": 0.1, "rpj/fig8": 100.0, "rpj/fig9": 10.0}}))
    campaign = Campaign.of(tmp_path, "small", select(["rpj/fig2", "rpj/fig8", "rpj/fig9"]))
    assert campaign.seconds_left("rpj/fig2", 0.0, 0.0) == pytest.approx(110.1)
    campaign.done("rpj/fig2", 0.01)  # ten times as fast as before: no reason to expect that of the others
    assert campaign.seconds_left("rpj/fig8", 0.0, 0.0) == pytest.approx(110, rel=0.02)
    slow = campaign.seconds_left("rpj/fig8", 0.5, 100.0)  # half of it in twice the time
    assert 1.6 * 60 < slow < 2 * 60
    campaign.done("rpj/fig8", 200.0)
    assert durations_in(tmp_path)["small"]["rpj/fig8"] == 200.0


def test_what_is_taken_up_half_done_tells_no_duration(tmp_path: Path) -> None:
    chosen = select(["rpj/fig2", "rpj/fig8", "rpj/fig9"])
    Campaign.of(tmp_path, "small", chosen).done("rpj/fig2", 0.1)
    resumed = Campaign.of(tmp_path, "small", chosen)
    resumed.done("rpj/fig8", 2.0)
    resumed.done("rpj/fig9", 3.0)
    assert durations_in(tmp_path)["small"] == {"rpj/fig2": 0.1, "rpj/fig9": 3.0}


def test_a_duration_is_expected_from_the_nearest_scale_that_is_known() -> None:
    assert expected("rpj/fig8", "paper", {}) == WEIGHTS["rpj/fig8"] * GROWTH["paper"]
    assert expected("rpj/fig8", "paper", {"small": {"rpj/fig8": 7.0}}) == 7.0 * GROWTH["paper"]
    assert expected("rpj/fig8", "paper", {"paper": {"rpj/fig8": 5.0}, "small": {"rpj/fig8": 7.0}}) == 5.0
    assert expected("rpj/fig2", "paper", {}) == 1.0


def test_weights_are_of_experiments_that_exist() -> None:
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
    assert parts.known(rpj.__name__, made[0]) is None  # nowhere, outside


def test_experiments_that_take_no_time_do_not_spoil_the_time_left(tmp_path: Path) -> None:
    chosen = select(list(NAMES))
    campaign = Campaign.of(tmp_path, "tiny", chosen)
    for name in NAMES:
        campaign.done(name, 0.0)
    again = Campaign.of(tmp_path, "tiny", chosen)
    assert again.seconds_left(NAMES[0], 0.0, 0.0) == pytest.approx(0.3)
