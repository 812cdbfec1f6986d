"""What Alembic runs: the migrations, inside the transaction of `timekeeper.store.engine.upgrade`, so that a
revision is there whole or not at all."""

from alembic import context

from timekeeper.store.engine.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, render_as_batch=True
)
context.run_migrations()
