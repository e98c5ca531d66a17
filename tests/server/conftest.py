# SPDX-License-Identifier: Apache-2.0
"""The path to the example's modules, which start the servers."""

# Standard
from pathlib import Path
import os
import sys

EXAMPLE = Path(__file__).parents[2] / "examples" / "serde" / "turboquant"

os.environ["LMCACHE_TRACK_USAGE"] = "false"
sys.path.insert(0, str(EXAMPLE))
