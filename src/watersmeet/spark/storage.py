"""Where a join's state and tables are, as the session that builds it can reach them.

Credentials come from `storage_options`, from the session's Hadoop settings or from the driver's environment. They go to
the tasks inside the function that Spark ships to them: a plan, the pages of Spark and its event log show a function's
name and no more of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyspark.sql import SparkSession

from watersmeet.errors import OptionError
from watersmeet.plan.options import checked_path, parse_size
from watersmeet.storage.access import is_known, remember
from watersmeet.storage.credentials import Lookup
from watersmeet.storage.uri import is_local

StorageOptions = Mapping[str, object]


def use_storage(
    who: str,
    session: SparkSession | None,
    place: str,
    storage_options: StorageOptions | None = None,
    cache: int | str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> None:
    """Find out how a place is reached, for whoever opens it in this process from now on."""
    given = {"storage_options": storage_options, "cache": cache, "cache_dir": cache_dir}
    if is_local(place):
        for name, value in given.items():
            if value is not None:
                raise OptionError(
                    who,
                    expected=f"{name} for a place in an object store",
                    found=f"it for {place}, which is used directly",
                    hint=f"Leave {name} out, or give a URI such as s3://bucket/path.",
                    option=name,
                )
        return
    if not isinstance(storage_options, Mapping | None):
        raise OptionError(
            who,
            expected="storage_options = a dictionary of names and values",
            found=type(storage_options).__name__,  # never the value, which may be a secret
            hint="Write for example storage_options={'endpoint': 'http://localhost:9000', 'region': 'eu-west-1'}.",
            option="storage_options",
        )
    remember(
        place,
        options=storage_options,
        hadoop=None if session is None else hadoop_settings(session),
        cache=None if cache is None else _size(who, cache),
        cache_dir=None if cache_dir is None else checked_path(who, "cache_dir", cache_dir),
        local_dirs=None if session is None else session.conf.get("spark.local.dir", None),
    )


def find_storage(who: str, place: str, storage_options: StorageOptions | None = None) -> None:
    """The same for whoever only looks at a place: what is known of it stays, unless options are given."""
    if storage_options is not None or not (is_local(place) or is_known(place)):
        use_storage(who, SparkSession.getActiveSession(), place, storage_options)


def stored_at(
    who: str,
    frame: object,
    state_dir: str | os.PathLike[str],
    storage_options: StorageOptions | None,
    cache: int | str | None,
    cache_dir: str | os.PathLike[str] | None,
) -> str:
    """A checked `state_dir`, which can be opened from now on. What `frame` is need not be known yet."""
    place = checked_path(who, "state_dir", state_dir)
    use_storage(who, getattr(frame, "sparkSession", None), place, storage_options, cache, cache_dir)
    return place


def hadoop_settings(session: SparkSession) -> Lookup:
    """A session's Hadoop settings, those in its credential files too; of a Connect session those that its server
    was given (`spark.hadoop.*`) and tells. It does not tell secrets."""
    try:
        settings = session._jsparkSession.sessionState().newHadoopConf()
    except AttributeError:  # a client of Spark Connect
        told = session.conf.getAll
        return lambda name: told.get(f"spark.hadoop.{name}")

    def value(name: str) -> str | None:
        found = settings.getPassword(name)
        return None if found is None else "".join(found)

    return value


def _size(who: str, value: int | str) -> int:
    try:
        found = parse_size(value)
    except ValueError as error:
        raise _wrong_size(who, f"{value!r} ({error})") from None
    if type(found) is not int or found < 0:
        raise _wrong_size(who, repr(value))
    return found


def _wrong_size(who: str, found: str) -> OptionError:
    return OptionError(
        who,
        expected="cache = a size such as '20 GB'",
        found=found,
        hint="Leave it out for half of the room in spark.local.dir.",
        option="cache",
    )
