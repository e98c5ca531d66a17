# SPDX-License-Identifier: Apache-2.0
"""Frozen payloads; see ``golden/cases.py``."""

# Third Party
import pytest
import torch

# First Party
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
    payload, restored_digest = case.load()
    tensor = case.tensor().to(device)
    assert torch.equal(encode(tensor, case.config).cpu(), payload)
    restored = decode(payload.to(device), tensor, case.config)
    assert digest(restored) == restored_digest


def test_every_frozen_file_belongs_to_a_case() -> None:
    names = {path.stem for path in FOLDER.glob("*.safetensors")}
    assert names == {case.name for case in CASES}
