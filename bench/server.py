"""pomona over HTTP beside mlx-lm's own server and llama.cpp: the same weights, by turns (A B C A B C ...).

Every round measures on each: the decoding rate of one stream, several streams together, the prefill of a
prompt never seen before (its tokens over the time to the first visible text), and the first token of a second
turn.
mlx-lm's server runs with the BLAS that pomona's worker loads, and with --shipped once more as it is.
llama.cpp runs through node-llama-cpp, without HTTP. Only one works at a time; the others are up and idle.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import common

from pairs import Goal, spread, table
from peers import (
    LLAMA_CPP,
    POMONA,
    SHIPPED,
    WITH_BLAS,
    Answer,
    HttpPeer,
    Peer,
    llama_cpp,
    llama_problem,
    serving,
    user,
)
from pomona.cli.machine import cores
from pomona.models.embedded import embedded_gguf
from pomona.models.errors import ModelError

TITLE = "pomona beside mlx-lm's server and llama.cpp"
NOUNS = "time year people way day man thing woman life child world school state family student group country"
LONG_TASK = "Tell a very long story about the number {number}."
# What the chat template adds to a prompt, about; rates are by the tokens that the server counts.
TEMPLATE_TOKENS = 30
# Answer tokens where only the first counts.
FEW_TOKENS = 8

PREFILL, WARM, DECODE = "prefill", "second turn", "decode"
TOGETHER, TOGETHER_DECODE = "together", "together, decode"
LOWER_IS_BETTER = (WARM,)
# (figure, engine to be compared with, that engine's figure, what is wanted)
GOALS = [
    (DECODE, WITH_BLAS, DECODE, Goal(15)),
    (TOGETHER, WITH_BLAS, TOGETHER, Goal(60)),
    (PREFILL, WITH_BLAS, PREFILL, Goal(60)),
    (DECODE, LLAMA_CPP, DECODE, Goal(1.1)),
    (TOGETHER, LLAMA_CPP, DECODE, Goal(2.5)),
    (PREFILL, LLAMA_CPP, PREFILL, Goal(0.8)),
]

Figures = dict[str, list[float]]


# ---------------------------------------------------------------- one measurement on one engine


def measure_prefill(peer: Peer, seed: int, args: argparse.Namespace) -> dict[str, float]:
    prompt = unseen_prompt(seed, args.prompt_tokens - TEMPLATE_TOKENS)
    if not isinstance(peer, HttpPeer):
        return {PREFILL: peer.wave([prompt], FEW_TOKENS)[0].prefill_rate}
    cold = peer.ask(user(prompt), FEW_TOKENS)
    turns = [*user(prompt), {"role": "assistant", "content": cold.text}, *user("Go on.")]
    return {PREFILL: cold.prefill_rate, WARM: peer.ask(turns, FEW_TOKENS).first_s}


def measure_decode(peer: Peer, seed: int, args: argparse.Namespace) -> dict[str, float]:
    (answer,) = whole(peer, peer.wave([task(seed)], args.decode_tokens), args)
    return {DECODE: answer.rate}


def measure_together(peer: Peer, seed: int, args: argparse.Namespace) -> dict[str, float]:
    """All tokens from the first request to the last token; and those after the first of each stream, from the
    first token on."""
    tasks = [task(seed + 1 + i) for i in range(args.streams)]
    answers = whole(peer, peer.wave(tasks, args.decode_tokens), args)
    end = max(answer.last for answer in answers)
    tokens = sum(answer.tokens for answer in answers)
    return {
        TOGETHER: tokens / (end - min(answer.sent for answer in answers)),
        TOGETHER_DECODE: (tokens - len(answers)) / (end - min(answer.first for answer in answers)),
    }


MEASUREMENTS: list[Callable[[Peer, int, argparse.Namespace], dict[str, float]]] = [
    measure_decode,
    measure_together,
    measure_prefill,
]


def whole(peer: Peer, answers: list[Answer], args: argparse.Namespace) -> list[Answer]:
    """The answers, unless one ended early: then fewer streams than we think would have run."""
    shortest = min(answer.tokens for answer in answers)
    if shortest < args.decode_tokens:
        raise RuntimeError(f"{peer.name} ended an answer after {shortest} of {args.decode_tokens} tokens")
    return answers


def unseen_prompt(seed: int, words: int) -> str:
    choose = random.Random(seed)
    return " ".join(choose.choice(NOUNS.split()) for _ in range(max(8, words)))


def task(number: int) -> str:
    return LONG_TASK.format(number=number)


# ---------------------------------------------------------------- rounds


def run_rounds(peers: list[Peer], args: argparse.Namespace) -> dict[str, Figures]:
    found: dict[str, Figures] = {peer.name: {} for peer in peers}
    for round_ in range(args.rounds):
        for measure in MEASUREMENTS:
            for number, peer in enumerate(peers):
                # A seed of its own for each engine and round: nobody has seen the prompt.
                for name, value in measure(peer, 1000 * (round_ + 1) + 100 * number, args).items():
                    found[peer.name].setdefault(name, []).append(value)
                time.sleep(args.pause)
        print(f"round {round_ + 1} of {args.rounds} done", file=sys.stderr, flush=True)
    return found


def start(stack: contextlib.ExitStack, folder: str, args: argparse.Namespace) -> list[Peer]:
    logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    names = [POMONA, WITH_BLAS, *([SHIPPED] if args.shipped else [])]
    peers: list[Peer] = [
        stack.enter_context(serving(name, folder, logs / f"{i}.log")) for i, name in enumerate(names)
    ]
    gguf = args.gguf or _embedded()
    problem = llama_problem(args.llamacpp, gguf)
    if problem:
        print(problem, file=sys.stderr)
    else:
        peers.append(stack.enter_context(llama_cpp(args.llamacpp, gguf, cores(), logs / "llama.log")))
    return peers


def _embedded() -> Path:
    try:
        return embedded_gguf()
    except ModelError:
        return Path("MODEL.gguf")


# ---------------------------------------------------------------- the table


def figures_table(found: dict[str, Figures], args: argparse.Namespace) -> str:
    """Medians with their range; ratios are medians of the rounds' own, above 1 where pomona is better."""
    others = [name for name in found if name != POMONA]
    lines = []
    for name, label in labels(args).items():
        cells = [spread(found[peer][name]) if name in found[peer] else "" for peer in found]
        for other in others:
            known = name in found[other]
            cells.append(f"{statistics.median(ratios(found, name, other, name)):.2f} x" if known else "")
        lines.append([label, *cells])
    return table(["", *found, *(f"pomona : {other}" for other in others)], lines)


def labels(args: argparse.Namespace) -> dict[str, str]:
    streams = f"{args.streams} streams"
    return {
        DECODE: "decode, 1 stream, tokens/s",
        TOGETHER: f"{streams}, all tokens over the whole time, tokens/s",
        TOGETHER_DECODE: f"{streams}, decode, tokens/s",
        PREFILL: f"prefill, {args.prompt_tokens} tokens, tokens/s",
        WARM: "first token, second turn, s",
    }


def ratios(found: dict[str, Figures], name: str, other: str, its: str) -> list[float]:
    pairs = zip(found[POMONA][name], found[other][its], strict=True)
    return [theirs / own if name in LOWER_IS_BETTER else own / theirs for own, theirs in pairs]


def goals(found: dict[str, Figures], args: argparse.Namespace) -> list[str]:
    lines = []
    for name, other, its, goal in GOALS:
        if other in found:
            over = ratios(found, name, other, its)
            compared = other if its == name else f"{other}, {labels(args)[its]}"
            verdict = goal.verdict(statistics.median(over))
            lines.append(f"{labels(args)[name]}: {spread(over)} x {compared}; {verdict}")
    return lines


def main() -> int:
    parser = common.arguments(__doc__)
    parser.add_argument("--rounds", type=int, help="default: 5")
    parser.add_argument("--prompt-tokens", type=int, help="of the prompt whose prefill is measured (512)")
    parser.add_argument("--decode-tokens", type=int, help="of an answer whose rate is measured (64)")
    parser.add_argument("--streams", type=int, help="answers at once (8)")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two measurements")
    parser.add_argument("--shipped", action="store_true", help="also mlx-lm's server without OpenBLAS")
    parser.add_argument("--llamacpp", type=Path, help="folder with node_modules/node-llama-cpp (3.21.1)")
    parser.add_argument("--gguf", type=Path, help="model for llama.cpp (default: the embedded model's)")
    args = parser.parse_args()
    sizes = (1, 64, 8, 2) if args.quick else (5, 512, 64, 8)
    for name, size in zip(("rounds", "prompt_tokens", "decode_tokens", "streams"), sizes, strict=True):
        setattr(args, name, getattr(args, name) or size)
    folder = common.model_folder(args.model)
    with contextlib.ExitStack() as stack:
        found = run_rounds(start(stack, folder, args), args)
    settings = {
        "model": Path(folder).name,
        "rounds": args.rounds,
        "tokens of the prefill": args.prompt_tokens,
        "tokens per answer": args.decode_tokens,
        "streams together": args.streams,
    }
    common.report(TITLE, settings, None)
    print(f"\nMedian (lowest..highest) of {args.rounds} rounds:\n\n{figures_table(found, args)}\n")
    print("\n".join(goals(found, args)))
    common.save(common.head(TITLE) | settings | {"figures": found}, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
