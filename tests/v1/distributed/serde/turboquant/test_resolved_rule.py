# SPDX-License-Identifier: Apache-2.0
"""What is declared fills in what a rule leaves open, and no more."""

# Standard
from dataclasses import replace

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.kv_content import KVContent, TensorFormat
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.config import TensorRule
from lmcache.v1.distributed.serde.turboquant.declared import (
    declared_layout,
    format_of,
    resolved_rule,
)
from lmcache.v1.distributed.serde.turboquant.kv_layout import geometry_of
from lmcache.v1.distributed.serde.turboquant.layout import layouts_of

FUSED = TensorFormat("NL_X_NB_NH_BS_CS", 4, 128, KVContent("fused", 4, 64, 64))


@pytest.mark.parametrize(
    "rule, resolved",
    [
        (TensorRule(), TensorRule(kv_layout="fused", head_dim=64)),
        (TensorRule(kv_layout="fused"), TensorRule(kv_layout="fused", head_dim=64)),
        (TensorRule(head_dim=32), TensorRule(kv_layout="fused", head_dim=32)),
        (TensorRule(kv_layout="opaque"), TensorRule(kv_layout="opaque")),
        (TensorRule(kv_layout="fused_planes"), TensorRule(kv_layout="fused_planes")),
    ],
    ids=str,
)
def test_what_is_configured_stays(rule: TensorRule, resolved: TensorRule) -> None:
    assert resolved_rule(rule, FUSED) == resolved
    assert resolved_rule(rule, None) == rule


def test_configured_groups_stay_and_leave_the_rest_to_lmcache() -> None:
    config = TurboQuantSerdeConfig.from_kwargs(
        {"groups": [{"preset": "turboquant_3bit_nc"}, {"kv_layout": "opaque"}]}
    )
    shape = torch.Size((1, 6, 16, 512))
    twice = MemoryLayoutDesc([shape] * 2, [torch.bfloat16] * 2, (FUSED, FUSED))
    first, second = layouts_of(twice, config)
    assert (first.preset, first.geometry.kv_layout) == ("turboquant_3bit_nc", "fused")
    assert second.geometry.is_opaque


def test_a_format_of_another_lmcache_declares_nothing() -> None:
    assert declared_layout(replace(FUSED, engine_kv_format="A_NEW_FORMAT")) is None


GEOMETRIES = {
    "split": ((2, 2, 5, 256), {"head_dim": 64}),
    "fused": ((1, 2, 5, 256), {"head_dim": 64}),
    "fused_planes": ((1, 2, 5, 256), {"head_dim": 64}),
    "diff": ((1, 2, 5, 192), {"head_dim": 64, "value_head_dim": 32}),
    "opaque": ((1, 2, 5, 192), {}),
}


@pytest.mark.parametrize("kv_layout", GEOMETRIES)
def test_a_geometry_has_a_format_that_declares_it(kv_layout: str) -> None:
    shape, settings = GEOMETRIES[kv_layout]
    rule = TensorRule(kv_layout=kv_layout, **settings)  # type: ignore[arg-type]
    geometry = geometry_of(torch.Size(shape), torch.bfloat16, rule)
    resolved = resolved_rule(TensorRule(), format_of(geometry))
    assert geometry_of(torch.Size(shape), torch.bfloat16, resolved) == geometry


@pytest.mark.parametrize("kv_layout", ["latent", "components"])
def test_some_layouts_are_never_declared(kv_layout: str) -> None:
    rule = TensorRule(kv_layout=kv_layout, head_dim=64)
    geometry = geometry_of(torch.Size((1, 2, 5, 128)), torch.bfloat16, rule)
    assert format_of(geometry) is None
