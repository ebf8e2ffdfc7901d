"""What a windowed semi or anti join keeps of its right input: two times per key and cell.

A left row asks whether its key has a right row in a stretch of time as long as both windows together, W. Time is cut
into cells no longer than that, and of each key only the first and the last time of a cell are kept:

    cells        |   a   b     b  c |         |         b lies between a and c, which are less than W apart
    left rows       [------ W ------]                   a stretch of length W that contains b contains a or c

So a row that is not late finds a match if and only if there is one. A late row's stretch is cut off at the horizon of
the right rows, and a stretch that begins between a and b could end before c. So the horizon is moved only to the starts
of cells: a stretch that is cut off begins with a cell, and one that contains b then contains a. What is kept beside
first and last times (rows of one cell lie in several runs until these are merged) is never decisive, so no answer
depends on when runs are merged.

Right rows of a cell stay until all of it is behind the horizon. The shorter the cells, the fewer rows are held for
that; the longer, the fewer times are kept of a key that comes often.
"""

from __future__ import annotations

from watersmeet.columns.saturating import saturated

# In the time for which right rows are kept. So a quarter more is held at most, as of any window, and of a key that
# comes often up to twelve times.
CELLS = 4


def cell_length(window: int, kept: int) -> int:
    """The length of cells, for windows of a total length and right rows that are kept for some time."""
    return max(1, min(window, kept // CELLS))


def cell_start(time: int, cell: int) -> int:
    """The start of the cell that a time is in.

    >>> cell_start(17, 10), cell_start(-3, 10), cell_start(20, 10)
    (10, -10, 20)
    """
    return saturated(time - time % cell)
