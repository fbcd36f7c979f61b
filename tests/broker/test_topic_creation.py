"""Creating an internal topic: one request for all callers, and no complaint if they have gone when it fails."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from kpybroker.broker.topic_creation import TopicCreation
from kpybroker.config import parse_config
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import Image
from kpybroker.topics import OFFSETS_TOPIC


def test_a_failure_reaches_the_callers_that_are_left_and_nobody_else() -> None:
    complaints: list[dict[str, Any]] = []

    async def scenario(leavers: int, stayers: int) -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        asked = 0

        async def ask(name: str, request: Any, timeout_ms: int) -> Any:
            nonlocal asked
            asked += 1
            return await failed

        config = parse_config({"listeners": "PLAINTEXT://127.0.0.1:0"})
        creation = TopicCreation(ask, lambda: config, Image, lambda: ())
        leaving, staying = (
            [asyncio.create_task(creation.internal(OFFSETS_TOPIC)) for _ in range(count)]
            for count in (leavers, stayers)
        )
        await asyncio.sleep(0)
        for each in leaving:
            each.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        failed.set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
        for each in staying:
            with pytest.raises(KafkaError):
                await each
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return asked

    for leavers, stayers in ((1, 0), (2, 0), (1, 1), (0, 2)):
        assert asyncio.run(scenario(leavers, stayers)) == 1
        gc.collect()
        assert complaints == []
