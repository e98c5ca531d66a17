# SPDX-License-Identifier: Apache-2.0
"""LMCache's own serde tests, unchanged, against the installed fork."""

# Standard
from pathlib import Path
from xml.etree import ElementTree
import os
import shutil
import subprocess
import sys

# First Party
from lmcache import torch_dev
from patchset.fetch import fetch_sdist, unpack_sdist
from patchset.release import load_release

SUITE = "tests/v1/distributed/serde"
TESTS_WITHOUT_ACCELERATOR = 79
NEEDS_ACCELERATOR = ("Requires torch_device_type", "Requires available cpu runtime")


def run_suite(folder: Path) -> ElementTree.Element:
    """Run the suite in ``folder``, apart from LMCache's source; return its report."""
    tree = unpack_sdist(fetch_sdist(load_release()), folder)
    shutil.copytree(tree / "tests", folder / "suite" / "tests")
    shutil.copy(tree / "pytest.ini", folder / "suite")
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-o", "log_cli=false"]
    command += ["-p", "no:cacheprovider", f"--junitxml={report}", SUITE]
    done = subprocess.run(
        command,
        cwd=folder / "suite",
        env={**os.environ, "LMCACHE_TRACK_USAGE": "false"},
        text=True,
        capture_output=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return ElementTree.parse(report).getroot()


def test_lmcaches_serde_suite_passes(tmp_path: Path) -> None:
    report = run_suite(tmp_path)
    skips = [skip.attrib["message"] + str(skip.text) for skip in report.iter("skipped")]
    num_passed = len(list(report.iter("testcase"))) - len(skips)
    if torch_dev.is_available():
        assert not skips
        assert num_passed > TESTS_WITHOUT_ACCELERATOR
    else:
        assert num_passed == TESTS_WITHOUT_ACCELERATOR
        for skip in skips:
            assert any(reason in skip for reason in NEEDS_ACCELERATOR), skip
