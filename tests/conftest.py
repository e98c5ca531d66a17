# SPDX-License-Identifier: Apache-2.0
"""Settings that have to stand before anything imports Triton."""

# Standard
import os

# Third Party
import torch

if not torch.cuda.is_available():
    # Kernels run in Triton's interpreter.
    os.environ["TRITON_INTERPRET"] = "1"
