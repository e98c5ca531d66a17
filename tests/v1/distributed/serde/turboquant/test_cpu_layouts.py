# SPDX-License-Identifier: Apache-2.0
"""Every layout on the CPU: the reference's bytes, without the reference's help."""

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import payload as payload_module
from lmcache.v1.distributed.serde.turboquant import reference
from lmcache.v1.distributed.serde.turboquant.kernels import cpu
from lmcache.v1.distributed.serde.turboquant.payload import (
    read_payload,
    write_payload,
)
from lmcache.v1.distributed.serde.turboquant.slot import KeyField, SlotLayout
from tests.v1.distributed.serde.turboquant.cpu_helpers import (
    SHAPES,
    assert_same_numbers,
    cpu_decode,
    cpu_encode,
    layout_of,
    reference_decode,
    reference_encode,
)
from tests.v1.distributed.serde.turboquant.helpers import (
    KV_DTYPES,
    POISONS,
    PRESET_NAMES,
    gaussian,
)

WIDTHS = {
    "split": [(128, 0)],
    "fused": [(64, 0), (80, 0)],
    "fused_planes": [(64, 0), (24, 0)],
    "diff": [(192, 128), (64, 80), (128, 0)],
    "latent": [(512, 64), (576, 0), (1024, 8)],
    "components": [(128, 0)],
}
CASES = [(name, *dims) for name, pairs in WIDTHS.items() for dims in pairs]


def tensor_of(kv_layout: str, key_dim: int, value_dim: int) -> torch.Tensor:
    """Four layers of 21 tokens, three heads where there are heads."""
    shape = SHAPES[kv_layout](4, 21, 3, key_dim, value_dim)
    return gaussian(*shape, seed=key_dim)


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("kv_layout,key_dim,value_dim", CASES)
def test_every_layout(
    kv_layout: str, key_dim: int, value_dim: int, preset: str
) -> None:
    for dtype in KV_DTYPES:
        tensor = tensor_of(kv_layout, key_dim, value_dim).to(dtype)
        layout = layout_of(
            tensor,
            preset,
            key_dim,
            kv_layout=kv_layout,
            value_head_dim=value_dim,
            skip_first_layers=1,
        )
        specified = reference_encode(tensor, layout)
        for threads, poison in enumerate(POISONS, start=1):
            slots = cpu_encode(tensor, layout, threads, poison)
            assert torch.equal(slots, specified)
            restored = cpu_decode(slots, layout, threads)
            assert_same_numbers(restored, reference_decode(slots, layout))


@pytest.mark.parametrize("kv_layout,key_dim,value_dim", CASES)
def test_the_reference_has_nothing_to_do(
    kv_layout: str, key_dim: int, value_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_module, "reference", None)
    tensor = tensor_of(kv_layout, key_dim, value_dim)
    layout = layout_of(
        tensor,
        PRESET_NAMES[1],
        key_dim,
        kv_layout=kv_layout,
        value_head_dim=value_dim,
        skip_last_layers=2,
    )
    payload = torch.full((layout.payload_bytes,), POISONS[0], dtype=torch.uint8)
    restored = torch.full_like(tensor, float("nan"))
    write_payload(tensor, payload, layout)
    read_payload(payload, restored, layout)
    error = (restored - tensor).square().mean() / tensor.square().mean()
    assert 0 < error < 0.02


def test_values_that_are_coded_as_keys() -> None:
    """Both fields may be of keys whatever the layout, and of unequal bits."""
    tensor = gaussian(2, 3, 30, 2, 80)
    slot = SlotLayout(key=KeyField(bits=3, dim=80), value=KeyField(bits=2, dim=80))
    shape = (3, 30, 2, slot.slot_bytes)
    slots, specified = (torch.full(shape, p, dtype=torch.uint8) for p in POISONS)
    cpu.encode_layers((tensor[0], tensor[1]), slots, slot, 5, 2)
    reference.encode_layers((tensor[0], tensor[1]), specified, slot, 5)
    assert torch.equal(slots, specified)
    restored, exact = torch.zeros_like(tensor), torch.ones_like(tensor)
    cpu.decode_layers(slots, (restored[0], restored[1]), slot, 5, 2)
    reference.decode_layers(slots, (exact[0], exact[1]), slot, 5)
    assert torch.equal(restored, exact)
