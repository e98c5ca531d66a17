# SPDX-License-Identifier: Apache-2.0
"""Give the decoder very many changed payloads; exit with 1 if it took a wrong one."""

# Standard
from argparse import ArgumentParser
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
import multiprocessing
import os
import sys
import time

# Third Party
from tqdm import tqdm
import torch

# First Party
from tests.v1.distributed.serde.turboquant.fuzz.batches import (
    Batch,
    Counts,
    run_batch,
)
from tests.v1.distributed.serde.turboquant.fuzz.mutations import MUTATIONS
from tests.v1.distributed.serde.turboquant.fuzz.subjects import Outcome, all_subjects

BATCH = 2000
SEED_STRIDE = 1_000_003
"""Batches of neighbouring seeds differ, up to this many."""


def run(count: int, seed: int, processes: int) -> Batch:
    """Give ``count`` changed payloads to the decoders, with a progress bar."""
    sizes = [BATCH] * (count // BATCH) + [count % BATCH] * (count % BATCH > 0)
    total = Batch(Counter(), [])
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        processes, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        futures = [
            pool.submit(run_batch, seed * SEED_STRIDE + index, size)
            for index, size in enumerate(sizes)
        ]
        with tqdm(total=count, unit=" payloads", unit_scale=True) as bar:
            for future in as_completed(futures):
                batch = future.result()
                total.counts.update(batch.counts)
                total.failures.extend(batch.failures)
                bar.update(batch.counts.total())
    return total


def print_table(counts: Counts) -> None:
    """Print payloads by mutation and outcome."""
    outcomes = [outcome.value for outcome in Outcome]
    print(f"{'mutation':18}" + "".join(f"{name:>17}" for name in outcomes))
    for kind in [*MUTATIONS, "all"]:
        kinds = list(MUTATIONS) if kind == "all" else [kind]
        cells = (sum(counts[k, outcome] for k in kinds) for outcome in outcomes)
        print(f"{kind:18}" + "".join(f"{cell:>17,}" for cell in cells))


def main() -> int:
    """Run, report, and return the exit code."""
    parser = ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1_050_000, help="payloads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    start = time.monotonic()
    result = run(options.count, options.seed, options.processes)
    seconds = time.monotonic() - start
    print_table(result.counts)
    count = result.counts.total()
    print(
        f"{count:,} changed payloads of {len(all_subjects())} subjects, "
        f"seed {options.seed}, {seconds:.0f} s, {count / seconds:,.0f} payloads/s"
    )
    for failure in result.failures[:20]:
        print(f"WRONG: {failure}", file=sys.stderr)
    print(f"{len(result.failures)} wrong")
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
