"""Fields that both generation endpoints of the OpenAI API have, and how they are read.

Beyond OpenAI's own these are the extensions that local servers share. `n` is bounded by a setting of the
server, and token ids by the model's vocabulary; the engine checks both.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from pomona.conversation.conversation import SamplingOptions, StopOptions
from pomona.conversation.errors import InvalidRequestError

MAX_STOP_STRINGS = 4
MAX_STOP_CHARACTERS = 4096
MAX_BIAS = 100
MAX_TOKEN_ID = 2**31 - 1

Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TokenLimit = Annotated[int, Field(ge=1)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


def wrong_type(text: str) -> PydanticCustomError:
    return PydanticCustomError("value_type", "{text}", {"text": text})


def is_token_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_TOKEN_ID


def _check_stop(value: Any) -> tuple[str, ...]:
    strings = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(string, str) for string in strings):
        raise wrong_type("it must be a string or a list of strings.")
    if len(strings) > MAX_STOP_STRINGS:
        raise ValueError(f"at most {MAX_STOP_STRINGS} stop strings are allowed.")
    if "" in strings:
        raise ValueError("a stop string must not be empty.")
    if any(len(string) > MAX_STOP_CHARACTERS for string in strings):
        raise ValueError(f"a stop string may have {MAX_STOP_CHARACTERS:,} characters at most.")
    return tuple(dict.fromkeys(strings))


def _check_bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type("it must be an object of token ids and numbers.")
    return {_bias_id(key): _bias(number) for key, number in value.items()}


def _bias_id(key: str) -> int:
    # Python would also read "+1", "1_0" and digits of other scripts.
    if key.isascii() and key.isdigit() and len(key) <= len(str(MAX_TOKEN_ID)) and int(key) <= MAX_TOKEN_ID:
        return int(key)
    raise ValueError(f"its keys must be token ids, and {key[:40]!r} is none.")


def _bias(number: Any) -> float:
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise wrong_type("its values must be numbers.")
    if not -MAX_BIAS <= number <= MAX_BIAS:
        raise ValueError(f"its values must be numbers from -{MAX_BIAS} to {MAX_BIAS}.")
    return float(number)


STOP_SCHEMA = {
    "anyOf": [
        {"type": "null"},
        {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS},
        {
            "type": "array",
            "maxItems": MAX_STOP_STRINGS,
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS},
        },
    ]
}
BIAS_SCHEMA = {
    "anyOf": [
        {"type": "null"},
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
        },
    ]
}
StopStrings = Annotated[Any, AfterValidator(_check_stop), WithJsonSchema(STOP_SCHEMA)]
LogitBias = Annotated[Any, AfterValidator(_check_bias), WithJsonSchema(BIAS_SCHEMA)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None


class GenerationBody(BaseModel):
    """Other fields are kept only to refuse the known ones among them."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKEN_ID, description="0 or -1: all")] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.1, le=10, allow_inf_nan=False)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias = None
    seed: Int64 | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stop: StopStrings = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check_stream_options(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError(
                "'stream_options' is only allowed when 'stream' is true.", "stream_options", "invalid_value"
            )

    def sampling(self) -> SamplingOptions:
        return SamplingOptions(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=None if self.top_k is None else max(0, self.top_k),
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=self.logit_bias or {},
            seed=self.seed,
        )

    def stop_options(self, max_tokens: int | None) -> StopOptions:
        min_tokens = self.min_tokens or 0
        if max_tokens is not None and min_tokens > max_tokens:
            raise InvalidRequestError(
                f"Invalid value for 'min_tokens': {min_tokens} is more than the {max_tokens} tokens that the "
                "answer may have.",
                "min_tokens",
                "invalid_value",
            )
        return StopOptions(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            strings=self.stop or (),
            ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
        )
