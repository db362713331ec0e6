from pathlib import Path

import pytest
from tests import tiny_tokenizer

from pomona.text.model_text import ModelText


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer.build(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def text(folder: Path) -> ModelText:
    return ModelText.load(folder)
