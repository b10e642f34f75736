"""Sends one payment three times; it is made once: duplicate.py ACCOUNT CENTS KEY."""

import asyncio
import json
import os
import sys

import nats

NATS = os.environ.get("BELLWETHER_NATS_URL", "nats://127.0.0.1:4222")


async def main(account: str, cents: int, key: str) -> None:
    nc = await nats.connect(NATS)
    jetstream = nc.jetstream()
    body = json.dumps({"account": account, "cents": cents}).encode()
    # Nats-Msg-Id: the broker compares it over all jobs of the namespace, for a moment.
    # Bw-Key: the ledger compares it per job, until 7 days after the end.
    headers = {"Nats-Msg-Id": f"pay:{key}", "Bw-Key": key, "Content-Type": "application/json"}

    def publish():
        return jetstream.publish("bw.v1.submit.default.pay", body, headers=headers)

    acks = await asyncio.gather(publish(), publish())
    print("at once:    duplicate =", [bool(ack.duplicate) for ack in acks])
    await asyncio.sleep(2)
    # The broker has forgotten the id, and stores a message again. The ledger has not.
    ack = await publish()
    print("after 2 s:  duplicate =", bool(ack.duplicate))
    await nc.close()


asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
