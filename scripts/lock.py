"""Resolve pyproject.toml into requirements.lock: every package, direct or not, at one exact version.

pip does the resolving (a dry run, nothing is installed) and reports what it would install. Only names and
versions are written, so the lock works with any package index or mirror. Run it with the oldest supported
Python: what installs there installs on the newer ones too.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from watersmeet.pipeline.connectors import complete_release

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEADER = """\
# Every dependency of watersmeet[dev,lab] at one exact version. Refresh with `make lock`.
# Spark is the newest release that has all connectors.
"""


def resolve() -> dict[str, str]:
    """Name and version of every package that `watersmeet[dev,lab]` needs."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--dry-run", "--ignore-installed", "--report", "-", f"{ROOT}[dev,lab]"]
    command.append(f"pyspark=={complete_release()}.*")
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = (item["metadata"] for item in report["install"])
    return {normalised(p["name"]): p["version"] for p in packages if p["name"] != "watersmeet"}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    if sys.version_info[:2] != (3, 11):
        print("lock: note that this is not Python 3.11, the oldest supported")
    pins = resolve()
    LOCK.write_text(HEADER + "".join(f"{name}=={version}\n" for name, version in sorted(pins.items())))
    print(f"lock: {len(pins)} packages pinned in {LOCK.name}")


if __name__ == "__main__":
    main()
