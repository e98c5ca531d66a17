# SPDX-License-Identifier: Apache-2.0
"""What is recorded of attention is what the model computed, windows included."""

# Third Party
import pytest
import torch

# First Party
from benchmarks.turboquant.quality.attention import AttentionRecorder, LayerAttention
from kv_cache import KVCache
from language_model import LanguageModel
from tests.benchmarks.quality.conftest import HEAD_DIM, LAYERS, SLIDING_WINDOW

CACHED, READING = 96, 12


@pytest.fixture(scope="module")
def cache(model: LanguageModel) -> KVCache:
    return model.prefill(_tokens(CACHED))


@pytest.fixture(scope="module")
def layers(model: LanguageModel, cache: KVCache) -> list[LayerAttention]:
    return AttentionRecorder(model).read_on(cache, _tokens(READING))[1]


def _tokens(count: int) -> torch.Tensor:
    return torch.randint(128, (count,), generator=torch.Generator().manual_seed(count))


def _cached(layer: LayerAttention) -> tuple[torch.Tensor, torch.Tensor]:
    return layer.keys[:, :CACHED].clone(), layer.values[:, :CACHED].clone()


def test_recording_changes_no_prediction(model: LanguageModel, cache: KVCache) -> None:
    recorder = AttentionRecorder(model)
    logits, layers = recorder.read_on(cache, _tokens(READING))
    assert len(layers) == LAYERS
    assert torch.equal(logits, model.read_on(cache, _tokens(READING)))


def test_layers_hold_the_cache_and_what_is_read(
    layers: list[LayerAttention], cache: KVCache
) -> None:
    for index, layer in enumerate(layers):
        keys, values = _cached(layer)
        assert layer.keys.shape == (1, CACHED + READING, HEAD_DIM)
        assert torch.equal(keys[0], cache.kv[0, index])
        assert torch.equal(values[0], cache.kv[1, index])


def test_queries_see_the_past_and_sliding_layers_a_window_of_it(
    layers: list[LayerAttention],
) -> None:
    position = torch.arange(CACHED + READING)
    age = position[CACHED:, None] - position
    for index, layer in enumerate(layers):
        expected = age >= 0
        if index % 2 == 0:
            expected &= age < SLIDING_WINDOW
        assert torch.equal(layer.visible, expected)


def test_the_same_cache_has_no_error(layers: list[LayerAttention]) -> None:
    for layer in layers:
        logit, output = layer.errors(*_cached(layer))
        assert logit == 0
        assert output < 1e-5


def test_a_shift_of_all_keys_has_no_error(layers: list[LayerAttention]) -> None:
    full = layers[1]
    keys, values = _cached(full)
    shift = torch.full((HEAD_DIM,), 0.5)
    logit, _ = full.errors(keys + shift, values)
    assert logit < 1e-4


def test_errors_are_those_of_attention(layers: list[LayerAttention]) -> None:
    layer = layers[0]
    keys, values = _cached(layer)
    generator = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(keys.shape, generator=generator)
    logit, output = layer.errors(keys + noise, values)
    changes = []
    outputs = []
    for query in range(READING):
        visible = layer.visible[query]
        for head in layer.queries[:, query]:
            change = (noise[0] @ head * layer.scaling)[visible[:CACHED]]
            changes.append(change - change.mean())
            new = torch.cat([keys + noise, layer.keys[:, CACHED:]], dim=1)[0, visible]
            weights = (new @ head * layer.scaling).softmax(dim=0)
            outputs.append(weights @ layer.values[0, visible])
    expected = torch.stack(outputs).view(layer.output.shape)
    distance = torch.linalg.vector_norm(expected - layer.output)
    assert logit == pytest.approx(float(torch.cat(changes).square().mean().sqrt()))
    assert output == pytest.approx(
        float(distance / torch.linalg.vector_norm(layer.output)), rel=1e-3
    )


def test_values_outside_a_window_do_not_count(layers: list[LayerAttention]) -> None:
    sliding, full = layers[:2]
    for layer, counts in ((sliding, False), (full, True)):
        keys, values = _cached(layer)
        values[:, 0] += 100
        _, output = layer.errors(keys, values)
        assert (output > 0.1) == counts
