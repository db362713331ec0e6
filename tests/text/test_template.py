import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pomona.conversation.errors import InvalidRequestError, ModelLoadError
from pomona.text.template import ChatTemplate

HELLO = [{"role": "user", "content": "Hello 42"}]
TEMPLATE_DIR = os.environ.get("POMONA_TEMPLATE_DIR")


def render(source: str, **tokens: str) -> str:
    return ChatTemplate(source, tokens).render(HELLO, add_generation_prompt=True)


def test_special_tokens_and_the_generation_prompt_are_given() -> None:
    source = "{{ bos_token }}{% if add_generation_prompt %}go{% endif %}{{ tools is none }}"
    assert render(source, bos_token="<s>") == "<s>goTrue"


def test_tojson_does_not_escape() -> None:
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert render("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": 2,\n "b": 1\n}'
    assert render("{{ [1, 2] | map('string') | tojson }}") == '["1", "2"]'


def test_loop_controls_and_the_generation_tag() -> None:
    source = "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(source + "{% generation %}mine{% endgeneration %}") == "1mine"


def test_the_clock_has_the_granularity_of_a_day() -> None:
    assert render("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}") == f"{date.today()} 00:00:00"


def test_a_refusal_is_an_invalid_request_with_the_template_s_words() -> None:
    with pytest.raises(InvalidRequestError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    ["{{ messages[5].content }}", "{{ 1 + 'a' }}", "{{ 1 / 0 }}", "{{ nothing.at.all }}", "{{ none.x() }}"],
)
def test_any_failure_inside_is_an_invalid_request(source: str) -> None:
    with pytest.raises(InvalidRequestError):
        render(source)


@pytest.mark.parametrize(
    "source",
    ["{{ ''.__class__.__mro__ }}", "{{ messages.clear() }}", "{{ messages[0].update(role='system') }}"],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(InvalidRequestError):
        render(source)


def test_lists_may_be_appended_to() -> None:
    assert render("{% set l = [] %}{% set _ = l.append(1) %}{{ l }}") == "[1]"


def test_a_template_that_loops_over_absent_tools_is_served() -> None:
    assert render("{% for tool in tools %}{{ tool }}{% endfor %}done") == "done"


def test_a_syntax_error_is_a_load_error() -> None:
    with pytest.raises(ModelLoadError, match="line 2"):
        ChatTemplate("\n{% if %}", {})


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def test_the_file_wins_over_the_json_files(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path, {}) is None
    write(tmp_path / "tokenizer_config.json", {"chat_template": "config"})
    assert loaded(tmp_path) == "config"
    write(tmp_path / "chat_template.json", {"chat_template": "json"})
    assert loaded(tmp_path) == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert loaded(tmp_path) == "jinja"


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}, "noise"]
    write(tmp_path / "tokenizer_config.json", {"chat_template": named})
    assert loaded(tmp_path) == "plain"
    write(tmp_path / "tokenizer_config.json", {"chat_template": named[:1]})
    assert loaded(tmp_path) == "tools"
    write(tmp_path / "tokenizer_config.json", {"chat_template": []})
    assert ChatTemplate.load(tmp_path, {}) is None


def loaded(folder: Path) -> str:
    template = ChatTemplate.load(folder, {})
    assert template is not None
    return template.source


def published() -> list[Path]:
    return sorted(Path(TEMPLATE_DIR).glob("*.jinja")) if TEMPLATE_DIR else []


@pytest.mark.skipif(not published(), reason="POMONA_TEMPLATE_DIR is not set")
@pytest.mark.parametrize("path", published(), ids=lambda path: path.stem)
def test_published_templates_render_a_plain_chat(path: Path) -> None:
    template = ChatTemplate(path.read_text(encoding="utf-8"), {"bos_token": "<s>", "eos_token": "</s>"})
    assert "Hello 42" in template.render(HELLO, add_generation_prompt=True)
