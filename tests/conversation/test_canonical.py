import itertools

from hypothesis import given
from hypothesis import strategies as st

from pomona.conversation.canonical import canonical
from pomona.conversation.conversation import Conversation, Message, Role, TextPart


def conversation(*parts: str) -> Conversation:
    return Conversation((Message(Role.USER, tuple(TextPart(part) for part in parts)),))


@given(st.text(max_size=20), st.lists(st.integers(0, 20), max_size=4))
def test_the_cut_of_a_text_into_parts_does_not_matter(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(text)]
    parts = [text[a:b] for a, b in itertools.pairwise(places)]
    assert canonical(conversation(*parts)) == canonical(conversation(text))


def test_messages_stay_apart() -> None:
    message = Message(Role.USER, (TextPart("a"),))
    assert canonical(Conversation((message, message))).messages == (message, message)


def test_an_empty_message_stays() -> None:
    assert canonical(conversation("")).messages == (Message(Role.USER, ()),)
    assert canonical(conversation("")).messages[0].text == ""
