"""What routes work with: one object, made at start and handed down by the app."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from sanic import Config, Request, Sanic

from pomona.config import ServeSettings
from pomona.conversation.errors import ModelNotFoundError
from pomona.link.supervisor import Supervisor
from pomona.server.admission import Admission
from pomona.server.engine import Engine, Limits
from pomona.server.metrics import Metrics
from pomona.text.model_text import ModelText

App = Sanic[Config, SimpleNamespace]

# For clients that must name a model and should not care which.
DEFAULT_ALIAS = "default"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model's name, and the other names that clients may use for it."""

    name: str
    aliases: frozenset[str]
    created: int = field(default_factory=lambda: int(time.time()))

    @staticmethod
    def of(settings: ServeSettings) -> ServedModel:
        folder = Path(settings.worker.model).name
        return ServedModel(settings.model_name, frozenset({folder, DEFAULT_ALIAS}))

    def check(self, name: str) -> None:
        if name != self.name and name not in self.aliases:
            raise ModelNotFoundError(name, [self.name])


@dataclass(frozen=True, slots=True)
class Services:
    settings: ServeSettings
    text: ModelText
    model: ServedModel
    worker: Supervisor
    engine: Engine
    admission: Admission
    metrics: Metrics

    @staticmethod
    def of(settings: ServeSettings, worker: Supervisor, text: ModelText) -> Services:
        metrics = Metrics(settings.model_name)
        admission = Admission(settings.max_queue)
        metered = metrics.watch(worker, closing=lambda: admission.closing)
        return Services(
            settings=settings,
            text=text,
            model=ServedModel.of(settings),
            worker=worker,
            engine=Engine(text, metered, Limits.of(settings)),
            admission=admission,
            metrics=metrics,
        )


def services_of(request: Request) -> Services:
    return cast(Services, request.app.ctx.services)
