"""Found by the workers of the cluster job when they start: every first commit of a version fails.

In even batches before the manifest is written, in odd ones after it, so that the retry meets either what a dead attempt
left or a version that exists already.
"""

from pathlib import Path
from typing import Any

from watersmeet.state.manifest import Manifest
from watersmeet.state.store import PartitionStore

commit = PartitionStore.commit


def flaky_commit(self: PartitionStore, manifest: Manifest, *rest: Any) -> Manifest:
    flag = Path(self.directory.root).parent / "failed" / f"{self.partition}-{manifest.version}"
    first = not flag.exists()
    flag.touch()
    if first and manifest.version % 2 == 0:
        raise OSError("injected before the commit")
    done = commit(self, manifest, *rest)
    if first:
        raise OSError("injected after the commit")
    return done


PartitionStore.commit = flaky_commit  # type: ignore[method-assign]
