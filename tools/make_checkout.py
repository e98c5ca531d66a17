# SPDX-License-Identifier: Apache-2.0
"""Make a git checkout of the pinned LMCache from its source distribution."""

# Standard
from pathlib import Path
import argparse
import shutil
import subprocess
import sys

sys.path.insert(0, str(Path(__file__).parent.parent / "patches"))

# First Party
from patchset.fetch import fetch_sdist, unpack_sdist  # noqa: E402
from patchset.release import load_release  # noqa: E402


def main() -> None:
    """Replace CHECKOUT by a repository whose one commit is the release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT")
    checkout = parser.parse_args().checkout.resolve()
    release = load_release()
    if checkout.exists():
        shutil.rmtree(checkout)
    checkout.parent.mkdir(parents=True, exist_ok=True)
    unpack_sdist(fetch_sdist(release), checkout.parent).rename(checkout)
    author = ["-c", f"user.name={release.project}", "-c", "user.email=lmcache@invalid"]
    message = f"{release.project} {release.version}"
    for command in (
        ["init", "--quiet", "--initial-branch=dev"],
        ["add", "--all", "--force"],
        [*author, "commit", "--quiet", f"--message={message}"],
    ):
        subprocess.run(["git", *command], cwd=checkout, check=True)
    print(f"{checkout}: {message}")


if __name__ == "__main__":
    main()
