"""What a window costs per batch in this implementation, with hash or nested loops.

The paper's model (`cost_model`) counts rows touched, one arrival at a time. Here a batch probes a window at
once, expired runs are dropped unread, and the kernels are vectorised; what decides is how much it costs to index the
rows that come against how much it costs to scan the window for a batch of probes. The structure of the model is the
paper's Eq. 1, cost = insert + probe of one window, with the costs of our kernels in it:

    hash    arrange_call + c merge_call
            + n (arrange + w merge)               +  f (R (call + t narrow) + s filter + s g (probe + t near))
    loop    n w append + x count                  +  f (G (scan_call + T narrow) + R scan_run + N filter + N h order
                                                        + min(N h, R m) (probe + T near) + m N / D split)

    n   rows inserted a batch          N   rows in the window        R   runs it is kept in
    m   probes a batch                 D   distinct keys in it       s = R min(m, N / R)   rows looked up
    f   share of batches with probes   w   times a row is merged     h = 1 - exp(-m / D)   share of rows probed
    G   scans: N in groups of a million                              g   share of the rows looked up that are there
    c   merges a batch                 t   1 if a key has many rows in a run, else 0; T the same of a scan
    x   rows of new runs, up to a sample of each, of which the keys are counted

To both comes what it takes to store a batch (`batch_cost`): store_call, slice_call for each slice of time that it
begins, and cut for its rows if it does. A choice needs the difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from watersmeet.state.layouts import FANOUT
from watersmeet.window.kernels import NARROW, SAMPLE

# Runs are bounded to this fraction of the time a window spans, so that they expire whole.
SLICES = 8
# Unsorted runs are scanned together up to this many rows.
SCAN_ROWS = 1 << 20


class KernelCosts(BaseModel):
    """Nanoseconds per row of the kernels (`..._call`: per run, or per batch of arriving rows).

    `watersmeet calibrate` measures them; the defaults are those of the machine that the published figures come from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    arrange: float = Field(default=65.0, ge=0)
    """Putting an arriving row in its place by (hash, time); 0 where rows arrive sorted."""
    index: float = Field(default=65.0, ge=0)
    """The same for a row of an unsorted run, when it is indexed later."""
    merge: float = Field(default=35.0, ge=0)
    """Merging a row of a sorted run into a larger one."""
    append: float = Field(default=2.2, ge=0)
    """Copying a row of an unsorted run into a larger one."""
    cut: float = Field(default=40.0, ge=0)
    """Taking an arriving row apart from those of another slice of time."""
    filter: float = Field(default=1.5, ge=0)
    """Testing a row against the filter of the keys that are looked for."""
    order: float = Field(default=35.0, ge=0)
    """Taking a row out of an unsorted run that passed the filter, and ordering it."""
    probe: float = Field(default=90.0, ge=0)
    """Looking a row up in the other side."""
    split: float = Field(default=15.0, ge=0)
    """Handing a result of a scan to the run that its row is in; a sorted run is probed by itself."""
    call: float = Field(default=110_000.0, ge=0)
    """Probing one sorted run, however few rows it has."""
    scan_call: float = Field(default=90_000.0, ge=0)
    """The same for all unsorted runs together."""
    scan_run: float = Field(default=50_000.0, ge=0)
    """And what each of these takes besides."""
    arrange_call: float = Field(default=90_000.0, ge=0)
    """Arranging one batch of arriving rows, however few."""
    merge_call: float = Field(default=100_000.0, ge=0)
    """What merging runs in order takes more than merging them as they came, per merge, however few rows."""
    narrow: float = Field(default=30_000.0, ge=0)
    """Finding those of a time among the many rows of a key, per probe of a run or a scan."""
    near: float = Field(default=15.0, ge=0)
    """The same for each row that is looked up."""
    count: float = Field(default=20.0, ge=0)
    """Counting the keys of a run as it came, for each row of the sample; in a sorted one they are seen in passing."""
    store_call: float = Field(default=300_000.0, ge=0)
    """Storing one batch, however few rows: the same for both structures, so that no choice depends on it."""
    slice_call: float = Field(default=200_000.0, ge=0)
    """Beginning a slice of time: the batch is cut, the slice before becomes one run, and an old one expires."""

    def for_sorted_arrivals(self) -> KernelCosts:
        """The costs where rows arrive in the order of their hashes, as on Spark: nothing is left to arrange."""
        return self.model_copy(update={"arrange": 0.0, "arrange_call": 0.0})


@dataclass(frozen=True)
class Load:
    """One window and those who probe it, per batch."""

    inserted: float
    probes: float
    rows: float
    keys: float
    runs: float
    probing: float = 1.0

    @property
    def hit_share(self) -> float:
        """The share of the window's rows whose key is among a batch's probes."""
        return -math.expm1(-self.probes / self.keys) if self.keys else 0.0

    @property
    def rewrites(self) -> float:
        """How often a row is merged into a larger run while it is in the window: once when its slice of time ends, if
        rows of another batch are in it, too, and before if there are many."""
        batches = 1 / self.slices if self.slices else 0.0
        return min(batches, 1.0) + (math.floor(math.log(batches, FANOUT)) if batches > 1 else 0.0)

    @property
    def slices(self) -> float:
        """How many slices of time a batch begins; where there would be more than two, slices are made wider."""
        begun = SLICES * self.inserted / self.rows if self.rows else 0.0
        return begun / 2 ** math.ceil(math.log2(begun / 2)) if begun > 2 else begun

    @property
    def merges(self) -> float:
        """How many merges a batch makes: of each slice one when it ends, and others before if there are many runs."""
        within = 1 / (FANOUT - 1) if 0 < self.slices < 1 / FANOUT else 0.0
        return self.slices + within

    def narrows(self, groups: float) -> bool:
        """Whether a key has so many rows in one of so many groups that those of a time are looked for."""
        return bool(self.keys) and self.rows / groups / self.keys > NARROW


def hash_cost(load: Load, costs: KernelCosts) -> float:
    """Nanoseconds per batch for a window of sorted runs."""
    runs = max(load.runs, 1.0)
    looked_up = runs * min(load.probes, load.rows / runs)
    # Either the probes are looked up, and most keys of the window are in each of its runs, or the run's rows are.
    there = -math.expm1(-load.rows / runs / load.keys) if load.keys else 0.0
    found = looked_up * (there if load.probes <= load.rows / runs else load.hit_share)
    calls = costs.arrange_call + load.merges * costs.merge_call
    insert = calls + load.inserted * (costs.arrange + load.rewrites * costs.merge)
    narrows = load.narrows(runs)
    call = costs.call + narrows * costs.narrow
    probe = runs * call + looked_up * costs.filter + found * (costs.probe + narrows * costs.near)
    return insert + load.probing * probe


def loop_cost(load: Load, costs: KernelCosts) -> float:
    """Nanoseconds per batch for a window of runs as they came, scanned by every batch of probes."""
    scans = max(1.0, load.rows / SCAN_ROWS)
    candidates = load.rows * load.hit_share
    looked_up = scans * min(load.probes, candidates / scans)
    sample = min(load.inserted / (1 + load.slices), SAMPLE) * (1 + load.slices)
    sample += min(load.inserted * load.rewrites / load.merges, SAMPLE) * load.merges if load.merges else 0.0
    insert = load.inserted * load.rewrites * costs.append + sample * costs.count
    narrows = load.narrows(scans)
    scan = costs.scan_call + narrows * costs.narrow
    calls = scans * scan + max(load.runs, 1.0) * costs.scan_run
    probe = calls + load.rows * costs.filter + candidates * costs.order
    probe += looked_up * (costs.probe + narrows * costs.near)
    results = load.probes * load.rows / load.keys if load.keys and load.runs > 1 else 0.0
    return insert + load.probing * (probe + results * costs.split)


def batch_cost(structure: str, load: Load, costs: KernelCosts) -> float:
    """Nanoseconds per batch for a window, all in all; H or N is its structure."""
    cut = min(load.slices, 1.0) * load.inserted * costs.cut
    store = costs.store_call + load.slices * costs.slice_call + cut
    return store + (hash_cost if structure == "H" else loop_cost)(load, costs)


def index_cost(rows: int, costs: KernelCosts) -> float:
    """Nanoseconds to index a run that has been scanned so far."""
    return rows * costs.index


def scan_cost(rows: int, candidates: int, costs: KernelCosts) -> float:
    """Nanoseconds that one scan of an unsorted run took more than probing an indexed one."""
    return rows * costs.filter + candidates * costs.order
