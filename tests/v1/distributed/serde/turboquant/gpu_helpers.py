# SPDX-License-Identifier: Apache-2.0
"""Where Triton kernels run in tests: on a GPU, else in Triton's interpreter.

Import this before anything that defines a kernel.
"""

# Standard
import os

# Third Party
import pytest
import torch

HAS_CUDA = torch.cuda.is_available()
if not HAS_CUDA:
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="the GPU backend needs Triton")

DEVICE = torch.device("cuda" if HAS_CUDA else "cpu")

needs_gpu = pytest.mark.skipif(not HAS_CUDA, reason="PTX needs an NVIDIA GPU")
