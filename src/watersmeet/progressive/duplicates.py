"""Every pair once: how a pair of rows is known to have been reported already.

A row has an arrival time (`_ats`, its batch) and, once flushed, a departure time (`_dts`, the batch at whose end it
left memory). Both were in memory together, and so were joined, iff their intervals intersect. Otherwise one of them,
say t2, was on disk before the other came: t2._dts < t1._ats. Such a pair is owed by t1. It is reported

    by an md-task       that runs while t1 is in memory: it joins all of t2's side that is on disk (Lemma 2)
    by a dd-task        if no md-task ran during t1's stay

so all a row has to remember when it is flushed is whether an md-task ran since it came:

    _owed  =  _ats   no md-task ran: pairs with rows flushed before _ats are owed
              0      an md-task ran: nothing is owed (no row was flushed before batch 0)

    new(t1 in memory, t2 on disk)  =  t2._dts < t1._ats,  for rows t1 newer than the bucket's last md-task
    new(t1, t2 on disk)            =  t2._dts < t1._owed  or  t1._dts < t2._owed,  unless from matching runs

This is the rule of positions, `sbfr` and one bit with times instead of positions, and says the same as Fig. 5 and 7
with their arrays of md times. Arrivals and flushes of batch b happen before the tasks of batch b, and a batch with
tasks has no arrivals, so no two of them share a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.columns.arrow import numpy_of

ATS, OWED, DTS = "_ats", "_owed", "_dts"
TIME = pa.int32()

Times = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


def times(table: pa.Table, column: str) -> Times:
    """One of the columns above as an array."""
    found: Times = numpy_of(table.column(column))
    return found


def arriving(table: pa.Table, batch: int) -> pa.Table:
    """Rows as they enter memory."""
    return table.append_column(ATS, pa.array(np.full(table.num_rows, batch, np.int32)))


def departing(table: pa.Table, batch: int, last_md: int) -> pa.Table:
    """Rows as they leave memory at the end of `batch`; the last md-task of their bucket was in batch `last_md`."""
    ats = times(table, ATS)
    owed = np.where(ats > last_md, ats, np.int32(0))
    dts = np.full(table.num_rows, batch, np.int32)
    return table.drop_columns([ATS]).append_column(OWED, pa.array(owed)).append_column(DTS, pa.array(dts))


def resident_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of rows in memory."""
    return schema.append(pa.field(ATS, TIME))


def new_in_md_task(ats: Times, dts: Times) -> Mask:
    """For pairs of a row in memory, newer than the last md-task, and one on disk (Fig. 5)."""
    return np.asarray(dts < ats)


def new_in_dd_task(owed_1: Times, dts_1: Times, owed_2: Times, dts_2: Times) -> Mask:
    """For pairs of rows on disk that are not from matching runs (Fig. 7, its line 7 corrected)."""
    return np.asarray((dts_2 < owed_1) | (dts_1 < owed_2))
