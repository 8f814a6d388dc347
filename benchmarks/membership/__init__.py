"""The ring's membership protocol: every reachable state of its model, and how long it takes over real sockets."""
