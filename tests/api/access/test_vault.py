"""What a vault remembers of tokens, beside those who change them."""

import hmac

import pytest

from api.access.tokens import NewToken
from api.access.vault import Vault
from api.storage.database import Database


def test_a_token_that_is_revoked_while_it_is_looked_up_is_not_remembered_as_usable(database_url):
    database = Database(database_url)
    vault, compare = Vault(database), hmac.compare_digest
    issued = vault.issue(NewToken(name="looker"))

    def late(*digests):
        vault.revoke(issued.token.id)
        return compare(*digests)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("api.access.vault.hmac.compare_digest", late)
            assert vault.find(issued.secret) is not None
        assert vault.recent(issued.secret) is None
        assert vault.find(issued.secret) is None
    finally:
        database.close()
