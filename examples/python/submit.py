"""Asks for a payment from Python: submit.py ACCOUNT CENTS KEY. Needs nats-py."""

import asyncio
import json
import os
import sys

import nats

NATS = os.environ.get("BELLWETHER_NATS_URL", "nats://127.0.0.1:4222")


async def submit(account: str, cents: int, key: str) -> None:
    nc = await nats.connect(NATS)
    # A JetStream publish: it returns when the message is stored, or raises.
    ack = await nc.jetstream().publish(
        "bw.v1.submit.default.pay",  # <namespace>.v1.submit.<queue>.<job>
        json.dumps({"account": account, "cents": cents}).encode(),
        headers={"Bw-Key": key, "Content-Type": "application/json"},
    )
    print(f"{key} is stored in {ack.stream} as number {ack.seq}")
    await nc.close()


asyncio.run(submit(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
