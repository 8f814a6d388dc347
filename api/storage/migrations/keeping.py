"""What migrations do to tables whose rows stay as they are."""

from alembic import op


def keep(table: str) -> None:
    """Refuse every statement that would change or delete rows of `table`."""
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_keeps_its_rows_from_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed or deleted'); END"
            )
        return
    op.execute(
        f"CREATE FUNCTION {table}_keeps_its_rows() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION 'rows of {table} are never changed or deleted'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_keeps_its_rows BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_keeps_its_rows()"
    )
