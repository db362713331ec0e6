"""The CPU kernels beside MLX's own, which are given the same BLAS.

products   linear layers of SmolLM2-135M and of a 1B llama, quantized and dense, 1 to 64 rows
attention  one decoding row over 1k to 16k keys and values; pomona's are paged, MLX's dense
threads    the same attention with two threads and with one, in two processes that take turns
rows       a model's decode step with more rows over that with one row

Every ratio comes from pairs measured by turns: median (lowest..highest), above 1 where pomona is better.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import asdict

import common
import mlx.core as mx

import attention
import products
from pairs import Goal, milliseconds, spread, table
from products import Format, Peaks, Product, Shape
from steps import BareRows, prompts, step_seconds

TITLE = "CPU kernels beside MLX's"
PARTS = ("products", "attention", "threads", "rows")
QUICK_SLICE_S, SLICE_S = 0.005, 0.1

SMOLLM2 = [Shape(576, 576), Shape(192, 576), Shape(1536, 576), Shape(576, 1536), Shape(49152, 576)]
LLAMA_1B = [Shape(2048, 2048), Shape(512, 2048), Shape(8192, 2048), Shape(2048, 8192)]
ROWS = [1, 2, 4, 8, 16, 32, 64]
# MLX's products in bfloat16 take eight times as long as in float32: few of them say as much.
FEW_SHAPES, FEW_ROWS = [*SMOLLM2[:4], LLAMA_1B[0]], [1, 8, 64]

Series = tuple[Format, list[Shape], list[int]]
QUANTIZED: list[Series] = [
    (Format(4, 32, mx.float32), SMOLLM2 + LLAMA_1B, ROWS),
    (Format(4, 64, mx.float32), SMOLLM2 + LLAMA_1B, ROWS),
    (Format(8, 64, mx.float32), SMOLLM2 + LLAMA_1B, ROWS),
    (Format(4, 64, mx.bfloat16), FEW_SHAPES, FEW_ROWS),
]
DENSE: list[Series] = [
    (Format(0, 0, mx.float32), SMOLLM2 + LLAMA_1B, ROWS),
    (Format(0, 0, mx.bfloat16), FEW_SHAPES, FEW_ROWS),
]
CONTEXTS = [1024, 4096, 16384]
LONG_CONTEXT = 8192
STEP_ROWS = [1, 2, 4, 8, 16, 32]
STEP_CONTEXT = 100

PRODUCT_GOAL, ERROR_GOAL = Goal(10), Goal(2e-6, at_most=True)
ATTENTION_GOAL, THREADS_GOAL = Goal(8), Goal(1.7)
STEP_GOALS = {8: Goal(4, at_most=True), 32: Goal(7, at_most=True)}


def product_part(args: argparse.Namespace, peaks: Peaks) -> dict[str, object]:
    quantized, dense = (_products(args, series) for series in (QUANTIZED, DENSE))
    for title, found in (("Quantized products", quantized), ("Dense products", dense)):
        print(f"\n## {title}\n\n{_product_table(found, peaks)}\n")
    print(f"quantized: {_lowest(quantized, PRODUCT_GOAL)}\ndense: {_lowest(dense, None)}")
    print(
        f"{_worst(quantized + dense)}\nrows whose bits depend on their number: {_unequal(quantized + dense)}"
    )
    return {"products": [asdict(product) for product in [*quantized, *dense]]}


def _products(args: argparse.Namespace, all_series: list[Series]) -> list[Product]:
    found: list[Product] = []
    for form, shapes, rows in all_series[:: 3 if args.quick else 1]:
        for shape in shapes[:1] if args.quick else shapes:
            found += products.measure(shape, form, rows[::3] if args.quick else rows, args.pairs, args.slice)
            common.progress(f"{form}: {shape}")
    return found


def _product_table(found: list[Product], peaks: Peaks) -> str:
    head = ["weights", "shape", "rows", "pomona, us", "MLX, us", "ratio", "error", "MLX's"]
    head += ["GF/s", "of sgemm", "GB/s", "of reading", "bits"]
    return table(head, [_product_row(product, peaks) for product in found])


def _product_row(product: Product, peaks: Peaks) -> list[str]:
    seconds = statistics.median(product.pairs.a)
    flops, read = product.flops / seconds, product.weight_bytes / seconds
    return [
        *(product.format, product.shape, str(product.rows)),
        *(f"{1e6 * statistics.median(times):.0f}" for times in (product.pairs.a, product.pairs.b)),
        spread(product.pairs.ratios),
        *(f"{error:.1e}" for error in (product.error, product.mlx_error)),
        *(f"{flops / 1e9:.1f}", f"{flops / peaks.flops:.0%}"),
        *(f"{read / 1e9:.1f}", f"{read / peaks.bytes:.0%}"),
        "same" if product.same_bits else "DIFFER",
    ]


def _lowest(found: list[Product], goal: Goal | None) -> str:
    slowest = min(found, key=lambda product: product.pairs.ratio)
    ratio = slowest.pairs.ratio
    return f"lowest ratio {ratio:.3g} x ({_name(slowest)}){f'; {goal.verdict(ratio)}' if goal else ''}"


def _worst(found: list[Product]) -> str:
    """Results in half precision are rounded to it; their error is not the sum's."""
    worst = max((p for p in found if p.format.endswith("f32")), key=lambda product: product.error)
    return f"largest error in f32: {worst.error:.1e} ({_name(worst)}); {ERROR_GOAL.verdict(worst.error)}"


def _unequal(found: list[Product]) -> str:
    return ", ".join(_name(product) for product in found if not product.same_bits) or "none"


def _name(product: Product) -> str:
    return f"{product.format}, {product.shape}, {product.rows} rows"


def attention_part(args: argparse.Namespace, peaks: Peaks) -> dict[str, object]:
    found = []
    for heads in (attention.SMOLLM2, attention.LARGER):
        for context in CONTEXTS[:1] if args.quick else CONTEXTS:
            found.append(attention.measure(heads, context, args.pairs, args.slice))
            common.progress(f"attention {heads}, {context} keys")
    rows = []
    for one in found:
        read = one.kv_bytes / statistics.median(one.pairs.a)
        rows.append(
            [
                *(one.heads, str(one.context)),
                *(f"{1e6 * statistics.median(times):.0f}" for times in (one.pairs.a, one.pairs.b)),
                *(spread(one.pairs.ratios), ATTENTION_GOAL.verdict(one.pairs.ratio)),
                *(f"{one.difference:.1e}", f"{read / 1e9:.1f}", f"{read / peaks.bytes:.0%}"),
            ]
        )
    head = ["heads", "keys", "pomona, us", "MLX, us", "ratio", "", "difference", "GB/s", "of reading"]
    print(f"\n## Decode attention, float32, one row\n\n{table(head, rows)}")
    return {"attention": [asdict(one) for one in found]}


def threads_part(args: argparse.Namespace, peaks: Peaks) -> dict[str, object]:
    context = CONTEXTS[0] if args.quick else LONG_CONTEXT
    found = attention.threads(context, 1, 2, args.pairs, args.slice)
    print(
        f"\n## Threads\n\none row over {context} keys, heads {attention.SMOLLM2}: "
        f"1 thread {_us(found.b)}, 2 threads {_us(found.a)}; "
        f"2 threads are {spread(found.ratios)} x as fast; {THREADS_GOAL.verdict(found.ratio)}"
    )
    return {"threads": {"context": context, **asdict(found)}}


def rows_part(args: argparse.Namespace, peaks: Peaks) -> dict[str, object]:
    counts = STEP_ROWS[:2] if args.quick else STEP_ROWS
    steps = 4 if args.quick else 24
    tokens = STEP_CONTEXT + steps * (args.pairs + 1) + 2
    pool = sum(counts) * (tokens + 64)
    folder = common.model_folder(args.model)
    loaded, _ = common.load_model(folder, pool_tokens=pool)
    measures = {}
    for count in counts:
        rows = BareRows(loaded, prompts(loaded, count, STEP_CONTEXT, 100 * count), tokens)
        measures[count] = step_seconds(rows, steps)
        measures[count]()
        common.progress(f"{count} rows ready")
    times: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(args.pairs):
        for count in counts:
            times[count].append(measures[count]())
    rows_of_table = []
    for count in counts:
        ratios = [t / one for t, one in zip(times[count], times[1], strict=True)]
        goal = STEP_GOALS.get(count)
        rows_of_table.append(
            [
                *(str(count), milliseconds(times[count]), f"{count / statistics.median(times[count]):.0f}"),
                *(spread(ratios), goal.verdict(statistics.median(ratios)) if goal else ""),
            ]
        )
    head = ["rows", "step, ms", "tokens/s", "over one row", ""]
    title = f"A decode step of {loaded.config['model_type']}, context {STEP_CONTEXT}, model call only"
    print(f"\n## {title}\n\n{table(head, rows_of_table)}")
    return {"rows": {"context": STEP_CONTEXT, "step_s": times}}


def _us(seconds: list[float]) -> str:
    return f"{spread([1e6 * s for s in seconds])} us"


def main() -> int:
    args = common.part_arguments(__doc__, PARTS)
    args.slice = QUICK_SLICE_S if args.quick else SLICE_S
    peaks = products.peaks()
    common.report(TITLE, {"pairs": args.pairs, "peaks of this run": str(peaks)}, None)
    parts = {"products": product_part, "attention": attention_part, "threads": threads_part}
    found: dict[str, object] = {"pairs": args.pairs, "peaks": asdict(peaks)}
    for name, part in {**parts, "rows": rows_part}.items():
        if name in args.only:
            found |= part(args, peaks)
    common.save({**common.head(TITLE), **found}, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
