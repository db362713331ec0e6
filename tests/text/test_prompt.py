import pytest
from tests import tiny_tokenizer

from pomona.conversation.conversation import Conversation, Message, Role, TextPart
from pomona.conversation.errors import InvalidRequestError
from pomona.text.model_text import ModelText
from pomona.text.prompt import LAST_MESSAGE_ENDS, PromptBuilder
from pomona.text.template import ChatTemplate


def conversation(*messages: tuple[str, str]) -> Conversation:
    return Conversation(tuple(Message(Role(role), (TextPart(text),)) for role, text in messages))


CHAT = conversation(
    ("system", "Be brief."),
    *(message for i in range(5) for message in [("user", f"Question {i}?"), ("assistant", f"Answer {i}.")]),
    ("user", "And 모델?"),
)


def builder(text: ModelText, source: str = tiny_tokenizer.CHAT_TEMPLATE) -> PromptBuilder:
    return PromptBuilder(text.tokenizer, ChatTemplate(source, text.tokenizer.named_tokens))


def decode(text: ModelText, ids: list[int]) -> str:
    return text.tokenizer.decode(ids)


def test_the_prompt_is_the_rendered_text(text: ModelText) -> None:
    prompt = builder(text).build(
        conversation(
            ("user", "Hi"),
        )
    )
    expected = text.tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.ids == expected.ids


def test_boundaries_are_where_messages_end(text: ModelText) -> None:
    prompt = builder(text).build(CHAT)
    heads = [decode(text, prompt.ids[:position]) for position in prompt.boundaries]
    assert len(heads) == 1 + LAST_MESSAGE_ENDS
    assert heads[0] == "system\nBe brief.\n"
    assert [head.rstrip().rpartition("\n")[2] for head in heads[1:]] == [
        "Answer 3.",
        "Question 4?",
        "Answer 4.",
        "And 모델?",
    ]


def test_the_next_turn_agrees_up_to_a_boundary(text: ModelText) -> None:
    prompt = builder(text).build(CHAT)
    more = Conversation((*CHAT.messages, *conversation(("assistant", "Yes."), ("user", "Thanks")).messages))
    following = builder(text).build(more)
    last = prompt.boundaries[-1]
    assert following.ids[:last] == prompt.ids[:last]
    assert last in following.boundaries


def test_a_token_across_a_boundary_belongs_to_what_follows(text: ModelText) -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    prompt = builder(text, source).build(conversation(("user", "serv"), ("user", "er answers")))
    whole = text.tokenizer.encode("server answers")
    assert prompt.ids == whole.ids
    assert all(whole.ends[position - 1] <= len("serv") for position in prompt.boundaries)


def test_a_template_that_rewrites_history_has_fewer_boundaries(text: ModelText) -> None:
    source = "{% for m in messages %}{{ m.content if loop.last else '-' }}{% endfor %}"
    assert builder(text, source).build(CHAT).boundaries == []


def test_a_template_that_refuses_part_of_the_messages(text: ModelText) -> None:
    source = (
        "{% if messages[-1].role != 'user' %}{{ raise_exception('no') }}{% endif %}"
        + tiny_tokenizer.CHAT_TEMPLATE
    )
    prompt = builder(text, source).build(CHAT)
    heads = [decode(text, prompt.ids[:position]).rstrip() for position in prompt.boundaries]
    assert [head.rpartition("\n")[2] for head in heads] == ["Question 4?", "And 모델?"]


def test_a_model_without_a_template_says_so(text: ModelText) -> None:
    with pytest.raises(InvalidRequestError, match="no chat template") as caught:
        PromptBuilder(text.tokenizer, None).build(CHAT)
    assert caught.value.param == "model"


def test_an_empty_prompt_is_refused(text: ModelText) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        builder(text, "{{ messages[0].content }}").build(conversation(("user", "")))
