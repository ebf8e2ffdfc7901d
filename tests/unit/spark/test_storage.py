"""Options for places in object stores, as the public functions check them."""

from __future__ import annotations

import pytest

from watersmeet.errors import OptionError
from watersmeet.spark.storage import find_storage, use_storage
from watersmeet.storage.access import access_to, packed_access, remember_packed


@pytest.mark.parametrize("option", ["storage_options", "cache", "cache_dir"])
def test_options_without_effect_are_refused(option: str) -> None:
    with pytest.raises(OptionError) as error:
        use_storage("window_join", None, "/local/state", **{option: "1 GB"})  # type: ignore[arg-type]
    assert str(error.value) == (
        f"window_join: expected {option} for a place in an object store, found it for /local/state, which is used "
        f"directly. Leave {option} out, or give a URI such as s3://bucket/path."
    )


def test_wrong_options_are_refused_without_showing_them() -> None:
    with pytest.raises(OptionError, match=r"storage_options = a dictionary of names and values, found str") as error:
        use_storage("window_join", None, "s3://lake/x", "canary-12")  # type: ignore[arg-type]
    assert "canary-12" not in str(error.value)
    for wrong in ("much", -1, 1.5):
        with pytest.raises(OptionError, match=r"expected cache = a size such as '20 GB', found"):
            use_storage("window_join", None, "s3://lake/x", cache=wrong)  # type: ignore[arg-type]


def test_what_is_known_of_a_place_goes_for_what_is_in_it() -> None:
    use_storage("window_join", None, "s3a://lake/known", {"region": "here"}, cache="2 GB", cache_dir="there")
    assert access_to("s3://lake/known/master").credentials.settings["region"] == "here"
    assert "region" not in access_to("s3://pond/unknown").credentials.settings
    find_storage("end_input", "s3://lake/known")
    assert access_to("s3://lake/known").cache == 2_000_000_000
    packed = packed_access("s3://lake/known", "/local")
    assert list(packed) == ["s3a://lake/known"]
    remember_packed({"s3a://lake/task": packed["s3a://lake/known"]})
    assert access_to("s3a://lake/task") == access_to("s3://lake/known")
