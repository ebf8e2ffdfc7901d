"""Decisions of a join in words: what was done, and the numbers it was decided by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Event = Mapping[str, Any]


def number(value: float) -> str:
    """A number for people.

    >>> number(1234567), number(0.0375), number(2.5), number(1e-7)
    ('1,234,567', '0.037', '2.5', '1.0e-07')
    """
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1 else f"{value:.2g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def plural(count: float, what: str) -> str:
    """An amount of something.

    >>> plural(1, "row"), plural(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number(count)} {what}{'' if count == 1 else 's'}"


def percent(share: float) -> str:
    """A share for people.

    >>> percent(0.5), percent(0.034), percent(0.0004)
    ('50 %', '3.4 %', '0.04 %')
    """
    points = share * 100
    return f"{points:.0f} %" if points >= 10 else f"{points:.1f} %" if points >= 0.1 else f"{points:.2g} %"


def seconds(amount: float) -> str:
    """A length of time for people.

    >>> seconds(0.0421), seconds(3.2), seconds(95), seconds(4000), seconds(200_000)
    ('42 ms', '3.2 s', '1 min 35 s', '1 h 6 min', '2 d 7 h')
    """
    if amount < 1:
        return f"{amount * 1000:.0f} ms"
    if amount < 60:
        return f"{amount:.1f} s" if amount < 10 else f"{amount:.0f} s"
    for unit, part, length in (("min", "s", 60), ("h", "min", 3600), ("d", "h", 86400)):
        if amount < length * (60 if unit != "h" else 24) or unit == "d":
            rest = int(amount % length // {"s": 1, "min": 60, "h": 3600}[part])
            return f"{int(amount // length)} {unit}" + (f" {rest} {part}" if rest else "")
    raise AssertionError


def _flush(event: Event) -> str:
    if "bucket" in event:
        text = f"{plural(event['rows'], 'row')} of {event['input']}, bucket {event['bucket']}, moved to disk"
        if event.get("probability") is not None:
            text += f": the other input's next row falls there with probability {number(event['probability'])}"
        return text
    return f"{plural(event['rows'], 'row')} in {plural(event.get('buckets', 1), 'bucket')} moved to disk"


def _task(event: Event) -> str:
    how = "on disk joined and merged"
    if event["kind"] == "md_task":
        how = f"of {event['input']} in memory joined with the other input's on disk"
    return (
        f"Bucket {event['bucket']} {how}: {plural(event['results'], 'result')}, "
        f"{number(event['expected'])} expected, {plural(event['pages'], 'page')}"
    )


def _driver(event: Event) -> str:
    return (
        f"{event['input']} drove: its {plural(event['rows'], 'row')} probed "
        f"{', then '.join(map(str, event['probe_order']))}; {plural(event['results'], 'result')}"
    )


def _algorithm(event: Event) -> str:
    chosen, other = (event["method"], "loop" if event["method"] == "hash" else "hash")
    names = {"hash": "hash", "loop": "nested loops"}
    return (
        f"{event['input']} is probed by {names[chosen]} now: {number(round(event[chosen] / 1e3))} µs a batch expected "
        f"against {number(round(event[other] / 1e3))} µs by {names[other]}"
    )


_SENTENCES: dict[str, Callable[[Event], str]] = {
    "flush": _flush,
    "md_task": _task,
    "dd_task": _task,
    "driver": _driver,
    "algorithm": _algorithm,
    "choice": lambda e: f"{str(e['what']).replace('_', ' ').capitalize()}: {e['value']}, because {e['why']}",
    "hot_key": lambda e: (
        f"Key {e['key']} makes {percent(e['share'])} of the work: its rows of "
        f"{e['input'] if e['columns'] == 1 else 'both inputs'} go round to {plural(e['partitions'], 'partition')}"
    ),
    "cooled_key": lambda e: f"Key {e['key']} has cooled down: new rows of {e['input']} go to one partition again",
    "merge": lambda e: f"Bucket {e['bucket']} joined and merged; {plural(e['rows_spilled_again'], 'row')} kept on disk",
    "shed": lambda e: (
        f"Rows shed ({str(e['strategy']).replace('_', ' ')}): {number(round(sum(e['rates'])))} a second came, the join "
        f"serves {number(e['service_rate'])}; about {plural(round(e['expected_results_lost']), 'result')} lost"
    ),
    "shrink": lambda e: (
        f"The window of {e['input']} shortened by {plural(e['rows'], 'row')}: it had {number(e['bytes'])} bytes, and "
        f"{number(e['budget'])} fit"
    ),
    "index": lambda e: f"A run of {plural(e['rows'], 'row')} of {e['input']} sorted, after scans had cost as much",
    "fan_out": lambda e: f"Key {e['key']} has {plural(e['combinations'], 'combination')}",
    "purge": lambda e: f"{plural(e['rows'], 'row')} of {e['input']} purged by {plural(e['promises'], 'promise')}",
    "violation": lambda e: (
        f"{plural(e['rows'], 'row')} of {e['input']} broke the promise '{e['reason']}' ({e['mode']})"
    ),
    "quota_lifted": lambda e: f"Memory was full: {plural(e['rows'], 'waiting row')} processed",
    "admit": lambda e: f"{plural(e['keys'], 'key')} with {plural(e['rows'], 'master row')} taken into the cache",
    "evict": lambda e: (
        f"{plural(e['keys'], 'key')} dropped from the cache: not asked for in {number(e['stay'])} cycles"
    ),
    "overload": lambda e: f"Memory full: {plural(e['rows'], 'row')} waited, {number(e['rows_that_fit'])} fit",
    "refresh": lambda e: (
        f"Version {e['version']} of the master table is being warmed up with {plural(e['keys_to_warm'], 'key')}"
    ),
    "swap": lambda e: f"Version {e['version']} of the master table took over from version {e['before']}",
}


def sentence(event: Event) -> str:
    """One decision in words. A kind of another release is named, and no more."""
    try:
        return _SENTENCES[event["kind"]](event)
    except (KeyError, TypeError, ValueError):
        return str(event["kind"]).replace("_", " ")
