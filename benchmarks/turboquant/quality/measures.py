# SPDX-License-Identifier: Apache-2.0
"""Numbers that say how far a restored cache is from the exact one."""

# Third Party
import torch


def divergence(logits: torch.Tensor, exact_logits: torch.Tensor) -> float:
    """Kullback-Leibler divergence of predictions from those of the exact cache.

    Args:
        logits: ``[tokens, vocabulary]``.
        exact_logits: Of the same shape.

    Returns:
        The mean over tokens, in nats.
    """
    exact, restored = (x.log_softmax(dim=-1) for x in (exact_logits, logits))
    loss = torch.nn.functional.kl_div(
        restored, exact, reduction="batchmean", log_target=True
    )
    return float(loss)


def surprise(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """Mean negative log likelihood of what really follows, in nats."""
    loss = torch.nn.functional.cross_entropy(logits, targets.to(logits.device))
    return float(loss)


def layer_errors(
    exact: torch.Tensor, restored: torch.Tensor, yardstick: torch.Tensor
) -> list[float]:
    """Norm of the error over norm of a yardstick, layer by layer.

    Args:
        exact: ``[layers, tokens, hidden]``.
        restored: Of the same shape.
        yardstick: What the error is compared with, of the same shape.

    Returns:
        A number for each layer.
    """
    errors = torch.linalg.vector_norm(restored - exact, dim=(1, 2))
    return (errors / torch.linalg.vector_norm(yardstick, dim=(1, 2))).tolist()


def varying_part(keys: torch.Tensor) -> torch.Tensor:
    """What differs between tokens, which is all that attention sees of keys.

    Args:
        keys: ``[layers, tokens, hidden]``.

    Returns:
        The keys less each channel's mean.
    """
    return keys - keys.mean(dim=1, keepdim=True)
