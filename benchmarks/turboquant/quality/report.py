# SPDX-License-Identifier: Apache-2.0
"""A run as Markdown tables."""

# Standard
from collections.abc import Iterator

# First Party
from benchmarks.turboquant.quality.conditions import PLAIN
from benchmarks.turboquant.quality.intervals import Estimate
from benchmarks.turboquant.quality.markdown import table
from benchmarks.turboquant.quality.run import Results
from benchmarks.turboquant.quality.schemes import MISSING
from benchmarks.turboquant.quality.summary import Summary, found
from benchmarks.turboquant.quality.upstream import Agreement


def tables(
    results: Results, summaries: list[Summary], upstream: list[Agreement]
) -> Iterator[str]:
    """Lay a run out, a heading before each table.

    Args:
        results: What was measured.
        summaries: Its summaries.
        upstream: How LMCache 0.5.6's encoder did on the sample.

    Yields:
        Paragraphs of Markdown.
    """
    yield "### Plain keys"
    yield plain_table(summaries)
    yield "### Divergence under a key bias, in nats"
    yield bias_table(summaries)
    yield "### Numbers found in a restored cache"
    yield retrieval_table(results)
    if upstream:
        yield "### LMCache 0.5.6's own encoder on a sample of the same KV"
        yield upstream_table(upstream)
    for peer, remedy in MISSING.items():
        yield f"{peer} is not installed: `{remedy}`."


def plain_table(summaries: list[Summary]) -> str:
    """Everything that is measured under plain keys, a row for each scheme."""
    headers = (
        "scheme",
        "bits",
        "ratio",
        "K error",
        "of what varies",
        "V error",
        "logit error",
        "output error",
        "KL (95%)",
        "perplexity (95%)",
        "top-1 % (95%)",
    )
    rows = [
        (
            each.scheme.name,
            f"{each.bits:.2f}",
            f"{each.ratio:.2f}",
            *(f"{each.error(name):.4f}" for name in each.layer_errors),
            _text(each.divergence, ".4f"),
            _text(each.perplexity, ".2f"),
            _text(each.agreement, ".1f", 100),
        )
        for each in summaries
        if each.condition == PLAIN.name
    ]
    return table(headers, rows)


def bias_table(summaries: list[Summary]) -> str:
    """Divergence under every condition, a row for each scheme."""
    conditions = list(dict.fromkeys(each.condition for each in summaries))
    by_scheme: dict[str, list[Summary]] = {}
    for each in summaries:
        by_scheme.setdefault(each.scheme.name, []).append(each)
    rows = [
        (name, f"{row[0].bits:.2f}", *(_text(x.divergence, ".4f") for x in row))
        for name, row in by_scheme.items()
    ]
    return table(("scheme", "bits", *conditions), rows)


def retrieval_table(results: Results) -> str:
    """Right answers, and nats a token of them, a row for each scheme."""
    columns = list(
        dict.fromkeys((each.task, each.condition) for each in results.retrieved)
    )
    rows = []
    for scheme in results.schemes:
        row = [scheme.name]
        for task, condition in columns:
            answers = found(results.retrieved, scheme.name, condition, task)
            if answers is None:
                row.append("")
            else:
                share, nats = answers
                row.append(f"{_text(share, '.0f', 100)}, {nats:.2f}")
        rows.append(row)
    headers = [f"{task} %, nats, {condition}" for task, condition in columns]
    return table(("scheme", *headers), rows)


def upstream_table(upstream: list[Agreement]) -> str:
    """Both encoders side by side, a row for each preset and condition."""
    headers = (
        "preset",
        "keys",
        "head vectors",
        "equal bytes %",
        "K error ours / theirs",
        "V error ours / theirs",
    )
    rows = [
        (
            each.preset,
            each.condition,
            each.rows,
            f"{100 * each.equal_bytes:.3f}",
            f"{each.our_key_error:.5f} / {each.their_key_error:.5f}",
            f"{each.our_value_error:.5f} / {each.their_value_error:.5f}",
        )
        for each in upstream
    ]
    return table(headers, rows)


def _text(estimate: Estimate, spec: str, factor: float = 1) -> str:
    """Write a mean with its interval, which a single window does not have."""
    value, low, high = (
        format(factor * x, spec) for x in (estimate.value, estimate.low, estimate.high)
    )
    return value if low == "nan" else f"{value} ({low} to {high})"
