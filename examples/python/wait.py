"""Asks for a payment and waits for its end: wait.py ACCOUNT CENTS KEY.

The end is in the ledger, and the command line reads it there. The key makes it safe to call
this again after a crash: it waits for the execution that exists.
"""

import json
import subprocess
import sys

BELLWETHER = "bellwether"  # on PATH; it finds .bellwether/ here, or reads BELLWETHER_* variables


def pay_and_wait(account: str, cents: int, key: str, seconds: int) -> dict:
    payload = json.dumps({"account": account, "cents": cents})
    command = [BELLWETHER, "-o", "json", "submit", "default", "pay", payload]
    ended = subprocess.run(
        [*command, "--key", key, "--wait", f"{seconds}s"], stdout=subprocess.PIPE, text=True
    )
    # 0: it succeeded. 7: it ended otherwise. 6: not yet, or nobody could be reached.
    if ended.returncode not in (0, 7):
        sys.exit(ended.returncode)
    return json.loads(ended.stdout)


execution = pay_and_wait(sys.argv[1], int(sys.argv[2]), sys.argv[3], seconds=30)
print(execution["execution_id"], execution["state"], execution.get("output"))
