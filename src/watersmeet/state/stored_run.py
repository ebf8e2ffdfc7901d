"""A run's rows in a file.

resident    mapped as a whole: the system has the pages anyway, and they are there again after a restart
spilled     read a page at a time, so that memory holds no more of the file than is being looked at
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from watersmeet.errors import CorruptStateError
from watersmeet.state.directory import StateDir, corrupt


class PageReaders:
    """The files of spilled runs that are open, those used last: each takes a file descriptor."""

    def __init__(self, most: int = 128) -> None:
        self.most = most
        self._open: OrderedDict[str, pa.ipc.RecordBatchFileReader] = OrderedDict()

    def get(self, name: str, open_file: Callable[[], pa.ipc.RecordBatchFileReader]) -> pa.ipc.RecordBatchFileReader:
        """The reader of a file, opened if it is not."""
        reader = self._open.pop(name, None) or open_file()
        self._open[name] = reader
        if len(self._open) > self.most:
            self._open.popitem(last=False)
        return reader


@dataclass
class StoredRun:
    """A run's rows in a file, opened when they are first wanted: mapped as a whole, or read a page at a time."""

    directory: StateDir
    name: str
    length: int
    checksum: str
    rows: int
    verify: bool
    readers: PageReaders

    def _reader(self, *, mapped: bool) -> pa.ipc.RecordBatchFileReader:
        opened = self.directory.open_verified(self.name, self.length, self.checksum, verify=self.verify, mapped=mapped)
        self.verify = False
        try:
            return pa.ipc.open_file(opened)
        except (pa.ArrowException, OSError) as error:
            raise self._corrupt("an Arrow IPC file", str(error)) from error

    @cached_property
    def _table(self) -> pa.Table:
        reader = self._reader(mapped=True)
        try:
            table = reader.read_all()
        except (pa.ArrowException, OSError) as error:
            raise self._corrupt("readable rows", str(error)) from error
        if table.num_rows != self.rows:
            raise self._corrupt(f"{self.rows} rows", f"{table.num_rows} rows")
        return table

    def table(self) -> pa.Table:
        """All rows."""
        return self._table

    def page(self, index: int) -> pa.Table:
        """One page, read and decompressed alone."""
        try:
            return pa.Table.from_batches([self.open_pages().get_batch(index)])
        except (pa.ArrowException, OSError) as error:
            raise self._corrupt(f"a readable page {index}", str(error)) from error

    def open_pages(self) -> pa.ipc.RecordBatchFileReader:
        """The file, open: its pages can be read even if its name should be gone."""
        return self.readers.get(self.name, lambda: self._reader(mapped=False))

    def check_length(self) -> None:
        """Fail early when the file is gone or has another length than its manifest says."""
        self.directory.check_length(self.name, self.length)

    def _corrupt(self, expected: str, found: str) -> CorruptStateError:
        return corrupt(self.directory.path(self.name), expected, found)
