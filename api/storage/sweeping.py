"""Rows that are too old, deleted a part at a time: a sweep keeps nobody waiting, and waits for nobody."""

from sqlalchemy import ColumnElement, Connection, Table, delete, select, tuple_


def sweep(connection: Connection, table: Table, is_old: ColumnElement[bool], *, most: int) -> int:
    """Delete some of the rows that are too old, within the transaction of `connection`; their number.

    Rows that others hold right now are left to a later sweep: who waits for them might wait for long, or be waited for.

    Args:
        connection: of a transaction that writes.
        table: one with a primary key.
        is_old: which of its rows.
        most: how many at a time; where fewer were deleted there were no more, but for those that others hold.
    """
    keys = tuple(table.primary_key)
    old = select(*keys).where(is_old).limit(most).with_for_update(skip_locked=True)
    found = [tuple(row) for row in connection.execute(old)]
    if found:
        connection.execute(delete(table).where(tuple_(*keys).in_(found)))
    return len(found)
