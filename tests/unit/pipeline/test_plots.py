"""Pictures of metrics: what is written at their axes."""

from collections import Counter

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from watersmeet.pipeline.history import BatchRecord
from watersmeet.pipeline.plots import plot_metrics


@pytest.mark.parametrize("rows", [1, 2, 3_000])
def test_no_two_marks_of_an_axis_read_the_same(rows: int) -> None:
    records = [BatchRecord(n, rows_in=Counter(a=rows, b=n % 2), rows_out=rows) for n in range(6)]
    figure = plot_metrics(records, "a join")
    FigureCanvasAgg(figure).draw()
    for axis in figure.axes:
        low, high = axis.get_ylim()
        marks = [text.get_text() for text in axis.get_yticklabels() if low <= text.get_position()[1] <= high]
        assert len(set(marks)) == len(marks), axis.get_title("left")


def test_units_stand_below_each_other() -> None:
    figure = plot_metrics([BatchRecord(n, rows_in=Counter(a=10**6, b=1), rows_out=20) for n in range(6)], "a join")
    FigureCanvasAgg(figure).draw()
    places = {round(axis.yaxis.get_label().get_window_extent().x0) for axis in figure.axes[:-1]}
    assert len(places) == 1
