"""A torchft lighthouse, as patient as suits a quick recovery; prints its address, ends with its standard input."""

import sys

from torchft.coordination import LighthouseServer

MIN_REPLICAS = 2


def main() -> None:
    heartbeat_timeout_ms, join_timeout_ms, quorum_tick_ms = map(int, sys.argv[1:4])
    server = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=MIN_REPLICAS,
        join_timeout_ms=join_timeout_ms,
        quorum_tick_ms=quorum_tick_ms,
        heartbeat_timeout_ms=heartbeat_timeout_ms,
    )
    print(server.address(), flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
