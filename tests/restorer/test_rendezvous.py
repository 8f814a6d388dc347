"""Where members of groups tell each other their addresses."""

import pytest

from restorer.rendezvous import Rendezvous


def test_the_rendezvous_gives_what_was_delivered_and_frees_who_waits():
    published = []
    rendezvous = Rendezvous(lambda key, value: published.append((key, value)))
    rendezvous.set("a", "text")
    assert published == [("a", b"text")]
    assert not rendezvous.check(["a"])
    rendezvous.deliver("a", b"text")
    assert rendezvous.check(["a"])
    assert rendezvous.get("a") == b"text"
    rendezvous.close()
    with pytest.raises(RuntimeError, match="called off"):
        rendezvous.wait(["b"])
