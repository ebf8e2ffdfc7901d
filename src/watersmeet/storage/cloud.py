"""S3, Google Cloud Storage and Azure through `obstore`, one round trip per request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import obstore
from obstore import exceptions as refused
from obstore.store import AzureStore, GCSStore, S3Store

from watersmeet.errors import StateDirError
from watersmeet.storage.blobs import Blob, Listed, RefusedError, TransientError
from watersmeet.storage.credentials import Credentials
from watersmeet.storage.uri import Location

# Above this size an object is written in parts: a part that fails is sent again, the rest is not.
MULTIPART = 64 << 20
PART = 16 << 20
_STORES: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "azure": AzureStore}
# What names the content of an object in a condition: a hash of it, at Google the number of the write.
_TAGS: dict[str, Literal["e_tag", "version"]] = {"s3": "e_tag", "gs": "version", "azure": "e_tag"}
# Statuses that mean "not now"; everything else from 400 to 499 means "not ever".
_STATUS = re.compile(r"status code: (\d{3})")
_PASSING = {408, 409, 425, 429}
# Retries are ours (see `retrying`), so that there is one limit, and requests can be counted.
_NO_RETRIES = {"max_retries": 0}


class CloudBlobs:
    """The objects below one root."""

    def __init__(self, location: Location, credentials: Credentials) -> None:
        self.location, self.credentials = location, credentials
        self._tag = _TAGS[location.store]
        plain = credentials.settings.get("endpoint", credentials.settings.get("base_url", "")).startswith("http://")
        client = {"allow_http": plain, "connect_timeout": "5s", "timeout": "60s"}
        settings, who = _identity(location, credentials.settings)
        try:
            self.store = _STORES[location.store](
                location.bucket,
                prefix=location.path or None,
                client_options=client,
                retry_config=_NO_RETRIES,
                config=settings,
                **who,
            )
        except (refused.BaseError, ValueError, TypeError) as error:
            raise StateDirError(
                f"state directory {location.uri}",
                expected="settings that its client knows",
                found=self._said(error),
                hint="Give storage_options as names and values, such as endpoint, region, access_key_id and "
                "secret_access_key, or by their names in Hadoop.",
                option="storage_options",
            ) from None

    def get(self, name: str) -> Blob:
        """An object."""
        with _Translated(self):
            found = obstore.get(self.store, name)
            return Blob(bytes(found.bytes()), str(found.meta[self._tag]))

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """A part of one."""
        with _Translated(self):
            return bytes(obstore.get_range(self.store, name, start=start, length=length)) if length else b""

    def put(self, name: str, pieces: Sequence[memoryview]) -> None:
        """Write an object: in one request, or in parts if it is large."""
        with _Translated(self):
            if sum(len(piece) for piece in pieces) > MULTIPART:
                obstore.put(self.store, name, iter(pieces), chunk_size=PART, max_concurrency=4)
            else:
                obstore.put(self.store, name, b"".join(pieces), use_multipart=False)

    def put_new(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one of that name."""
        try:
            with _Translated(self):
                obstore.put(self.store, name, content, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def replace(self, name: str, content: bytes, tag: str) -> bool:
        """Write an object if what is there is still what `tag` names."""
        try:
            with _Translated(self):
                condition: Any = {self._tag: tag}
                obstore.put(self.store, name, content, mode=condition, use_multipart=False)
        except FileExistsError:
            return False
        return True

    def list(self, folder: str, *, recursive: bool = False) -> list[Listed]:
        """The objects in a folder."""
        with _Translated(self):
            if recursive:
                objects = [each for chunk in obstore.list(self.store, folder or None) for each in chunk]
                folders: Sequence[str] = []
            else:
                listed = obstore.list_with_delimiter(self.store, folder or None)
                objects, folders = list(listed["objects"]), listed["common_prefixes"]
        start = len(folder) + 1 if folder else 0
        found = [Listed(each["path"][start:], each["last_modified"].timestamp()) for each in objects]
        return [*found, *(Listed(path[start:]) for path in folders)]

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, in requests of up to 1000 where the store has that."""
        if gone := list(names):
            with _Translated(self):
                try:
                    obstore.delete(self.store, gone)
                except FileNotFoundError:
                    for name in gone:
                        self._delete_one(name)

    def _delete_one(self, name: str) -> None:
        try:
            obstore.delete(self.store, name)
        except FileNotFoundError:
            return

    def _said(self, error: Exception) -> str:
        """What an error says, in a line and without secrets."""
        text = str(error).partition("\n\nDebug source")[0]
        return self.credentials.redact(" ".join(text.split()))[:500]


def _identity(location: Location, settings: dict[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Keys that are known go to the client as they are: to settings it would add a token from its environment."""
    if location.store != "s3" or not {"access_key_id", "secret_access_key"} <= settings.keys():
        return settings, {}
    names = {"access_key_id": "access_key_id", "secret_access_key": "secret_access_key", "session_token": "token"}
    keys = {ours: settings.get(name) for name, ours in names.items()} | {"expires_at": None}
    rest = {name: value for name, value in settings.items() if name not in names}
    return rest, {"credential_provider": lambda: keys}


class _Translated:
    """Errors of the client as those of `blobs`."""

    def __init__(self, blobs: CloudBlobs) -> None:
        self.blobs = blobs

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, (refused.BaseError, FileNotFoundError)):
            return
        said = self.blobs._said(error)
        # The original is not chained: its text may hold what `_said` leaves out.
        if isinstance(error, FileNotFoundError):
            if "NoSuchBucket" in said or "ContainerNotFound" in said:
                raise RefusedError(said) from None
            raise FileNotFoundError(said) from None
        if isinstance(error, (refused.AlreadyExistsError, refused.PreconditionError)):
            raise FileExistsError(said) from None
        status = _STATUS.search(said)
        if status is not None and status[1] == "416":
            raise EOFError(said) from None
        final = status is not None and 400 <= int(status[1]) < 500 and int(status[1]) not in _PASSING
        if final or not isinstance(error, refused.GenericError):
            raise RefusedError(said) from None
        raise TransientError(said) from None
