"""Everything the server needs of a model folder to talk to it in text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pomona.text.detokenize import Detokenizer
from pomona.text.model_files import SamplingDefaults, sampling_defaults
from pomona.text.prompt import PromptBuilder
from pomona.text.template import ChatTemplate
from pomona.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelText:
    tokenizer: Tokenizer
    prompts: PromptBuilder
    defaults: SamplingDefaults
    special_ids: frozenset[int]

    @staticmethod
    def load(folder: Path) -> ModelText:
        tokenizer = Tokenizer.load(folder)
        template = ChatTemplate.load(folder, tokenizer.named_tokens)
        return ModelText(
            tokenizer=tokenizer,
            prompts=PromptBuilder(tokenizer, template),
            defaults=sampling_defaults(folder),
            special_ids=tokenizer.codec.special_ids(),
        )

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.tokenizer.codec, self.special_ids)
