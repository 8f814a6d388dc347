"""A bounded memory forgets the oldest first."""

from api.storage.recent import Recent


def test_what_was_put_last_is_kept():
    recent = Recent(2)
    for key in ("a", "b", "a", "c"):
        recent.put(key, key.upper())
    assert [recent.get(key) for key in ("a", "b", "c")] == ["A", None, "C"]


def test_what_is_put_again_is_replaced():
    recent = Recent(1)
    recent.put("a", 1)
    recent.put("a", 2)
    assert recent.get("a") == 2
