"""The workers' own membership: a ring over their own sockets that mends itself and agrees on who is left (docs/membership.md)."""
