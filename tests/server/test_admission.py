import asyncio

import pytest

from pomona.conversation.errors import OverloadedError, ShuttingDownError
from pomona.server.admission import Admission


def test_a_full_house_is_refused_and_room_comes_back() -> None:
    async def run() -> None:
        admission = Admission(limit=1)
        with admission.enter(), pytest.raises(OverloadedError), admission.enter():
            pass
        with admission.enter():
            pass

    asyncio.run(run())


def test_closing_refuses_new_ones_and_waits_for_the_last() -> None:
    async def run() -> None:
        admission = Admission()
        assert await admission.wait_idle(0.0)
        with admission.enter():
            admission.close()
            assert admission.closing
            with pytest.raises(ShuttingDownError), admission.enter():
                pass
            assert not await admission.wait_idle(0.0)
            waiting = asyncio.create_task(admission.wait_idle(60.0))
            await asyncio.sleep(0)
            assert not waiting.done()
        assert await waiting

    asyncio.run(run())
