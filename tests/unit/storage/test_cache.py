"""The cache of a host: bounded, least recently used out first, verified."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
import xxhash

from watersmeet.errors import StateDirError
from watersmeet.storage import cache as cache_module
from watersmeet.storage.cache import Entry, HostCache, open_cache


def entry(number: int, content: bytes) -> Entry:
    return Entry(f"s3a://lake/{number}", 0, len(content), xxhash.xxh3_64_hexdigest(content))


def content(number: int, length: int = 100) -> bytes:
    return bytes([number]) * length


def added(cache: HostCache, number: int, length: int = 100) -> Entry:
    made = entry(number, content(number, length))
    cache.add(made, content(number, length))
    return made


def test_what_is_added_is_there_for_every_process(tmp_path: Path) -> None:
    made = added(HostCache(tmp_path, 1000), 1)
    opened = HostCache(tmp_path, 1000).open(made)
    assert opened is not None
    assert opened.read() == content(1)
    assert HostCache(tmp_path, 1000).open(entry(2, content(2))) is None
    unmapped = HostCache(tmp_path, 1000).open(made, mapped=False)
    assert unmapped is not None
    assert unmapped.read() == content(1)


def test_empty_files(tmp_path: Path) -> None:
    made = added(HostCache(tmp_path, 1000), 1, 0)
    opened = HostCache(tmp_path, 1000).open(made)
    assert opened is not None
    assert opened.read() == b""


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, 1000)
    made = [added(cache, number) for number in range(10)]
    for age, each in enumerate(made):
        os.utime(tmp_path / each.file, (time.time() - 1000 + age,) * 2)
    assert cache.open(made[0]) is not None  # used again
    cache.shrink()
    added(cache, 10)
    assert cache.has(made[0])
    assert not cache.has(made[1])
    held = sum(path.stat().st_size for path in tmp_path.glob("[0-9a-f][0-9a-f]/*"))
    assert held <= 1000


def test_what_nobody_has_used_for_a_day_goes(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, 1000)
    old, new = added(cache, 1), added(cache, 2)
    os.utime(tmp_path / old.file, (time.time() - 90_000,) * 2)
    cache.shrink()
    assert (cache.has(old), cache.has(new)) == (False, True)


def test_an_open_entry_outlives_its_removal(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, 1000)
    made = added(cache, 1)
    opened = cache.open(made)
    cache.drop(made)
    assert opened is not None
    assert opened.read() == content(1)


@pytest.mark.parametrize("damage", [b"", b"x" * 99, b"x" * 100])
def test_a_damaged_entry_is_not_there(tmp_path: Path, damage: bytes) -> None:
    made = added(HostCache(tmp_path, 1000), 1)
    (tmp_path / made.file).unlink()
    (tmp_path / made.file).write_bytes(damage)
    cache = HostCache(tmp_path, 1000)
    assert cache.open(made) is None
    assert not cache.has(made)


@pytest.mark.parametrize("in_place", [True, False])
def test_damage_is_seen_by_a_process_that_has_used_the_entry(tmp_path: Path, *, in_place: bool) -> None:
    cache = HostCache(tmp_path, 1000)
    made = added(cache, 1)
    for _ in range(2):
        opened = cache.open(made)
        assert opened is not None
    damaged = tmp_path / made.file if in_place else tmp_path / "other"
    damaged.write_bytes(b"x" * 100)
    damaged.replace(tmp_path / made.file)
    assert cache.open(made) is None


def test_by_default_half_of_the_room_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda folder: Usage)
    assert HostCache(tmp_path).most(500) == 750


def test_what_a_dead_process_left_goes_after_a_day(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, 1000)
    old, new = cache.stage(), cache.stage()
    os.utime(old.path, (time.time() - 90_000,) * 2)
    cache.shrink()
    assert not old.path.exists()
    assert new.path.exists()


def test_there_is_never_more_than_the_limit(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, 1000)
    for number in range(20):
        made = added(cache, number, 400)
        assert cache.has(made)
        assert sum(path.stat().st_size for path in tmp_path.glob("[0-9a-f][0-9a-f]/*")) <= 1000
    assert not cache.has(added(cache, 20, 1001)), "larger than all there may be"
    assert cache.has(made), "and nothing had to go for it"


def test_a_folder_that_others_delete(tmp_path: Path) -> None:
    """Whoever deletes it takes names, and nothing from those who write."""
    cache = HostCache(tmp_path / "cache", 1000)
    staged = cache.stage()
    staged.write(b"one ")
    shutil.rmtree(cache.folder)
    staged.write(b"two ")
    staged.close()
    assert staged.content.to_pybytes() == b"one two "
    made = entry(1, b"one two ")
    cache.enter(made, staged)
    staged.discard()
    assert cache.open(made) is None
    assert cache.open(added(cache, 2)) is not None


def test_where_the_cache_is(tmp_path: Path) -> None:
    assert open_cache(str(tmp_path / "asked"), 5).folder == tmp_path / "asked"
    spark = open_cache(None, 5, f"{tmp_path}/local,/elsewhere")
    assert spark.folder == tmp_path / "local" / f"watersmeet-cache-{os.getuid()}"
    assert spark.folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDirError, match=r"cache directory .*expected a directory on a local disk.*cache_dir"):
        open_cache(str(tmp_path / "file" / "cache"), 5)
