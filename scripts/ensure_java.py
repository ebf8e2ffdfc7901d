"""Make sure that Spark finds a Java 17 or newer, and note where it is.

Looked at in this order: JAVA_HOME, every `java` on PATH, an earlier download in .jdk/, the places where
systems keep their Javas. If none is recent enough, one is installed: from the distribution when this runs as
root on Debian or Ubuntu, else downloaded into .jdk/ in the project's folder. The home of the Java chosen is
written to `java_home` in the virtual environment; the Makefile sets JAVA_HOME from it.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MINIMUM = 17
PREFERRED = 17
ROOT = Path(__file__).resolve().parent.parent
DOWNLOADS = ROOT / ".jdk"
NOTE = Path(sys.prefix) / "java_home"
SYSTEM_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*",
)


def major_version(banner: str) -> int | None:
    """The major version in what `java -version` prints.

    >>> major_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> major_version('java version "1.8.0_392"')
    8
    >>> major_version('openjdk version "26-ea" 2026-03-17')
    26
    >>> major_version("No Java runtime present, requesting install.")
    """
    found = re.search(r'version "(?:1\.)?(\d+)', banner)
    return int(found.group(1)) if found else None


def inspect(java: Path) -> tuple[int, Path] | None:
    """Major version and home of a `java` executable; None if it does not run or does not say."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    banner = done.stderr + done.stdout
    version = major_version(banner)
    if done.returncode != 0 or version is None:
        return None
    # On PATH `java` is often a link or a shim, so Java itself is asked where it lives.
    said = re.search(r"^\s*java\.home = (.+?)\s*$", banner, re.MULTILINE)
    home = Path(said.group(1)) if said else java.resolve().parent.parent
    return version, home


def candidates() -> Iterator[Path]:
    """Every `java` executable worth asking, best first."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    for folder in os.get_exec_path():
        yield Path(folder or ".") / "java"
    yield from sorted(DOWNLOADS.rglob("bin/java"))
    for pattern in SYSTEM_PLACES:
        yield from sorted(path / "bin" / "java" for path in Path("/").glob(pattern.lstrip("/")))


def find() -> Path | None:
    """The home of the first Java that is recent enough."""
    seen: set[Path] = set()
    for java in candidates():
        if java in seen or not os.access(java, os.X_OK):
            continue
        seen.add(java)
        answer = inspect(java)
        if answer is None:
            continue
        version, home = answer
        if version >= MINIMUM:
            print(f"java: {version} in {home}")
            return home
        print(f"java: {java} is version {version}, Spark needs {MINIMUM} or newer; looking on")
    return None


def newest_package(search_result: str) -> str | None:
    """The package to install out of `apt-cache search`: the preferred version, else the newest that will do.

    >>> newest_package("openjdk-21-jre-headless - x\\nopenjdk-25-jre-headless - x")
    'openjdk-25-jre-headless'
    >>> newest_package("openjdk-17-jre-headless - x\\nopenjdk-21-jre-headless - x")
    'openjdk-17-jre-headless'
    >>> newest_package("openjdk-11-jre-headless - x")
    """
    offered = {int(v) for v in re.findall(r"^openjdk-(\d+)-jre-headless\b", search_result, re.MULTILINE)}
    fitting = {v for v in offered if v >= MINIMUM}
    if not fitting:
        return None
    return f"openjdk-{PREFERRED if PREFERRED in fitting else max(fitting)}-jre-headless"


def install_from_distribution() -> bool:
    """Install with apt-get; False where that is not possible or does not work."""
    if os.name != "posix" or os.geteuid() != 0 or not shutil.which("apt-get"):
        return False
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        subprocess.run(["apt-get", "update", "-qq"], check=True, stdout=subprocess.DEVNULL, env=environment)
        search = ["apt-cache", "search", "--names-only", "^openjdk-[0-9]+-jre-headless$"]
        package = newest_package(subprocess.run(search, check=True, capture_output=True, text=True).stdout)
        if package is None:
            return False
        print(f"java: installing {package}")
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL, env=environment)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"java: the distribution's package could not be installed ({error}); downloading instead")
        return False
    return True


def download() -> bool:
    """Fetch a Java runtime into .jdk/; False if that does not work."""
    print(f"java: downloading version {PREFERRED} into {DOWNLOADS.name}/")
    DOWNLOADS.mkdir(exist_ok=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "install-jdk>=1.1,<2"]
    fetch = f"import jdk; jdk.install({str(PREFERRED)!r}, jre=True, path={str(DOWNLOADS)!r})"
    try:
        subprocess.run(pip, check=True)
        subprocess.run([sys.executable, "-c", fetch], check=True)
    except subprocess.CalledProcessError as error:
        print(f"java: the download failed ({error})")
        return False
    return True


def main() -> int:
    home = find()
    for install in (install_from_distribution, download):
        if home is None and install():
            home = find()
    if home is None:
        print(
            f"java: Spark needs Java {MINIMUM} or newer; none was found and none could be installed.\n"
            "java: Install one (on Debian and Ubuntu: sudo apt-get install openjdk-17-jre-headless)\n"
            "java: or set JAVA_HOME to one, and run `make setup` again.",
            file=sys.stderr,
        )
        return 1
    NOTE.write_text(f"{home}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
