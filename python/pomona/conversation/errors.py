"""The one exception tree of the server process.

An error says what was wrong, where, and what to do. It knows nothing of HTTP: `protocols` chooses the
status and the body.
"""

from __future__ import annotations


class PomonaError(Exception):
    """Anything a client may be told in its own words."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequestError(PomonaError):
    """The request cannot be served as it is; sending it again would not help."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class UnsupportedParameterError(InvalidRequestError):
    """A known field with a value that has no effect here yet. Never silently ignored."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message, param, "unsupported_parameter")


class ContextLengthError(InvalidRequestError):
    """The prompt alone fills the room of one request, or is longer than the server takes."""

    def __init__(
        self,
        prompt_tokens: int,
        limit_tokens: int,
        remedy: str,
        param: str = "messages",
        limit_of: str = "prompt and answer together",
        counted: bool = True,
    ) -> None:
        super().__init__(
            f"The prompt has {'' if counted else 'at least '}{prompt_tokens:,} tokens, but a request can "
            f"hold {limit_tokens:,} tokens of {limit_of}. {remedy}",
            param,
            "context_length_exceeded",
        )
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens


class ModelNotFoundError(PomonaError):
    def __init__(self, model: str, available: list[str]) -> None:
        super().__init__(f"The model '{model}' does not exist here. Available: {', '.join(available)}.")
        self.model = model


class RequestTimeoutError(PomonaError):
    """The request's own deadline has passed; with the same one it would pass again."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"The answer was not complete after {timeout_s:g} seconds, the longest time for this request. "
            "Ask for fewer tokens, or allow more time (header x-request-timeout, setting request_timeout_s)."
        )
        self.timeout_s = timeout_s


class RowFailedError(PomonaError):
    """This request failed in the engine; others go on. The same request would most likely fail again."""


class UnavailableError(PomonaError):
    """Not now: the same request may succeed after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: int = 5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class OverloadedError(UnavailableError):
    """The queue is full."""


class ShuttingDownError(UnavailableError):
    def __init__(self) -> None:
        super().__init__("The server is shutting down and takes no new requests.")


class WorkerLostError(UnavailableError):
    """The worker process is gone, and with it what it was computing."""


class ModelLoadError(PomonaError):
    """The worker could not load its model."""
