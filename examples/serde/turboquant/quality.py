# SPDX-License-Identifier: Apache-2.0
"""What a lossy KV cache costs: reconstruction error and prediction quality."""

# Third Party
import torch


def relative_error(exact: torch.Tensor, restored: torch.Tensor) -> float:
    """Norm of the difference over norm of the original, over all elements.

    Args:
        exact: What was stored.
        restored: What came back, of the same shape.

    Returns:
        ``||exact - restored|| / ||exact||``; 0 when nothing was lost.

    Raises:
        ValueError: If the shapes differ or ``exact`` is all zero.
    """
    if exact.shape != restored.shape:
        raise ValueError(
            f"expected a tensor of {tuple(exact.shape)}, got {tuple(restored.shape)}"
        )
    original = exact.double()
    norm = torch.linalg.vector_norm(original)
    if norm == 0:
        raise ValueError("expected a tensor that is not all zero")
    return float(torch.linalg.vector_norm(restored.double() - original) / norm)


def perplexity(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """How surprised the predictions are by what really follows.

    Args:
        logits: ``[tokens, vocabulary]``.
        targets: The token that follows each position, ``[tokens]``.

    Returns:
        The exponential of the mean negative log likelihood.
    """
    loss = torch.nn.functional.cross_entropy(logits, targets.to(logits.device))
    return float(loss.double().exp())


def agreement(logits: torch.Tensor, exact_logits: torch.Tensor) -> float:
    """How often two predictions name the same most likely next token.

    Args:
        logits: ``[tokens, vocabulary]``.
        exact_logits: The same with the exact cache.

    Returns:
        A share between 0 and 1.
    """
    same = logits.argmax(dim=-1) == exact_logits.argmax(dim=-1)
    return float(same.double().mean())
