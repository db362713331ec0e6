"""What is measured and in which order: warm-up, then rounds, two servers taking turns (A, B, A, B ...)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from pomona.cli.bench.measure import Sample, Target, decode_tokens_per_s
from pomona.cli.bench.prompts import Prompts
from pomona.cli.errors import CommandError

# Long enough that decoding is measured, not the prompt.
SHORT_PROMPT_TOKENS = 32

TTFT_COLD, TTFT_WARM, PREFILL = "ttft cold", "ttft warm", "prefill"

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    prompt_tokens: int
    max_tokens: int
    streams: tuple[int, ...]
    seed: int

    @property
    def steps(self) -> int:
        """How often `step` is called for one server in one round."""
        return 2 + len(self.streams)


@dataclass(slots=True)
class Round:
    """The figures of one round, by name, and the answers they come from."""

    figures: dict[str, float] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class Side:
    """One of the servers, with prompts of its own."""

    def __init__(self, name: str, target: Target, plan: Plan) -> None:
        self.name = name
        self.target = target
        self.rounds: list[Round] = []
        self._plan = plan
        # Two sides never share a prompt: they may be the same server.
        self._prompts = Prompts(plan.seed * 2 + (name == "B"))

    async def warm_up(self, step: Step) -> None:
        """Every shape once, untimed: kernels are compiled and prompts get the wished length."""
        wanted = self._plan.prompt_tokens
        sample = await self.target.prepare(self._prompts.make(wanted))
        self._prompts.calibrate(wanted, sample.usage.prompt_tokens)
        discarded = await self._measure(step)
        if discarded.failures:
            raise CommandError(discarded.failures[0])

    async def round(self, step: Step) -> None:
        self.rounds.append(await self._measure(step))

    async def _measure(self, step: Step) -> Round:
        found = Round()
        prompt = self._prompts.make(self._plan.prompt_tokens)
        for name in (TTFT_COLD, TTFT_WARM):
            step(f"{self.name}: {name}")
            if wave := await self._wave(found, name, [prompt]):
                found.figures[name] = wave[0].ttft_s
                if name == TTFT_COLD:
                    found.figures[PREFILL] = wave[0].prefill_tokens_per_s
        for streams in self._plan.streams:
            name = decode_name(streams)
            step(f"{self.name}: {name}")
            prompts = [self._prompts.make(SHORT_PROMPT_TOKENS) for _ in range(streams)]
            wave = await self._wave(found, name, prompts)
            if wave and (rate := decode_tokens_per_s(wave)):
                found.figures[name] = rate
        return found

    async def _wave(self, found: Round, name: str, prompts: list[str]) -> list[Sample]:
        """The answers, all or none: a wave with a failure measures something else."""
        tasks = [self.target.ask(prompt, self._plan.max_tokens) for prompt in prompts]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        samples = [result for result in results if isinstance(result, Sample)]
        for result in results:
            if isinstance(result, CommandError):
                found.failures.append(str(result))
            elif isinstance(result, BaseException):
                raise result
        found.samples[name] = samples
        return samples if len(samples) == len(prompts) else []


async def run_rounds(sides: list[Side], plan: Plan, step: Step) -> None:
    for side in sides:
        await side.warm_up(step)
    for _ in range(plan.rounds):
        for side in sides:
            await side.round(step)


def decode_name(streams: int) -> str:
    return f"decode x{streams}"


def figure_names(plan: Plan) -> list[str]:
    return [TTFT_COLD, TTFT_WARM, PREFILL, *map(decode_name, plan.streams)]
