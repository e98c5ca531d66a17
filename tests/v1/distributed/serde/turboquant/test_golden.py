# SPDX-License-Identifier: Apache-2.0
"""Frozen payloads; see ``golden/cases.py``."""

# Third Party
import pytest
import torch

# First Party
from tests.v1.distributed.serde.turboquant.closeness import (
    assert_payloads_alike,
    assert_restored_alike,
)
from tests.v1.distributed.serde.turboquant.golden.cases import (
    CASES,
    FOLDER,
    GoldenCase,
    digest,
)
from tests.v1.distributed.serde.turboquant.helpers import decode, encode


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_frozen_payload_is_written_and_read(
    case: GoldenCase, device: torch.device
) -> None:
    """On the CPU bit for bit, on an accelerator to the rounding of its kernels."""
    frozen, restored_digest = case.load()
    tensor = case.tensor()
    payload = encode(tensor.to(device), case.config).cpu()
    restored = decode(frozen.to(device), tensor, case.config).cpu()
    if device.type == "cpu":
        assert torch.equal(payload, frozen)
        assert digest(restored) == restored_digest
    else:
        assert_payloads_alike(payload, frozen, tensor, case.config)
        specified = decode(frozen, tensor, case.config)
        assert_restored_alike(restored, specified, case.head_dim)


def test_every_frozen_file_belongs_to_a_case() -> None:
    names = {path.stem for path in FOLDER.glob("*.safetensors")}
    assert names == {case.name for case in CASES}
