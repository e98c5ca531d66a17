# SPDX-License-Identifier: Apache-2.0
"""Settings that have to stand before anything imports LMCache or Triton."""

# Standard
import os

os.environ["LMCACHE_TRACK_USAGE"] = "false"

# Third Party
import torch  # noqa: E402

if not torch.cuda.is_available():
    # Kernels run in Triton's interpreter.
    os.environ["TRITON_INTERPRET"] = "1"
