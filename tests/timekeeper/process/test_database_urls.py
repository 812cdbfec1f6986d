"""Which databases can be used, and what is said of those that cannot: a sentence, without the password."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.postgresql import EMPTY, PASSWORD, fresh_postgresql, server
from tests.timekeeper.processes import Process
from timekeeper.process.supervisor import prepare
from timekeeper.settings import UnusableError, read
from timekeeper.store.engine.engine import UnavailableError, open_store
from timekeeper.store.engine.postgresql import connection_arguments, hosts_of
from timekeeper.store.engine.sqlite import file_of, network_file_system
from timekeeper.store.engine.upgrade import upgrade

pytestmark = pytest.mark.make_all("PostgreSQL")

# Lines of /proc/self/mountinfo as machines have them: proc_pid_mountinfo(5).
MOUNTS = r"""22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
31 22 0:25 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw
40 22 0:41 / /mnt/nfs rw,relatime shared:5 master:1 - nfs4 filer:/export rw,vers=4.2
41 22 0:42 / /mnt/win rw - cifs //server/share rw
42 22 0:43 / /mnt/with\040blank rw - fuse.sshfs me@host:/ rw
43 22 0:44 / /mnt/rootless rw - fuse.fuse-overlayfs fuse-overlayfs rw
44 22 0:45 / /mnt/host rw - 9p host rw,trans=virtio
45 40 254:2 / /mnt/nfs/disk rw - xfs /dev/vdb rw
46 22 0:46 / /mnt/twice rw - ext4 /dev/vdc rw
47 22 0:47 / /mnt/twice rw - ceph 10.0.0.1:/ rw
"""


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("/var/lib/bursar/bursar.db", ""),
        ("/dev/shm/bursar.db", ""),
        ("/mnt/nfs/bursar.db", "nfs4"),
        ("/mnt/nfsx/bursar.db", ""),
        ("/mnt/nfs/disk/bursar.db", ""),
        ("/mnt/win/a/b/bursar.db", "cifs"),
        ("/mnt/with blank/bursar.db", "fuse.sshfs"),
        ("/mnt/rootless/bursar.db", ""),
        ("/mnt/host/bursar.db", "9p"),
        ("/mnt/twice/bursar.db", "ceph"),
        ("/mnt/x/../nfs/bursar.db", "nfs4"),
    ],
)
def test_a_file_on_a_network_file_system_is_known_by_its_mount(file: str, kind: str) -> None:
    assert network_file_system(Path(file), MOUNTS) == kind


def test_a_sandbox_whose_root_is_9p_has_its_files_on_this_machine() -> None:
    sandbox = "1 0 0:1 / / rw - 9p none rw\n2 1 0:2 / /data rw - 9p none rw\n"

    assert network_file_system(Path("/tmp/bursar.db"), sandbox) == ""
    assert network_file_system(Path("/data/bursar.db"), sandbox) == "9p"


def test_a_link_is_followed_to_where_the_file_lies(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    mounts = f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / {tmp_path}/there rw - nfs filer:/ rw\n"

    assert network_file_system(tmp_path / "link" / "bursar.db", mounts) == "nfs"


@pytest.mark.parametrize(
    "url",
    ["sqlite:////data/a.db", "sqlite:////data/a.db?timeout=3", "sqlite:///file:/data/a.db?mode=ro&uri=true"],
)
def test_the_file_of_a_url_is_found_in_every_form(url: str) -> None:
    assert file_of(make_url(url)) == Path("/data/a.db")


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_postgresql_may_be_named_as_operators_secrets_name_it(scheme: str) -> None:
    with fresh_postgresql() as url:
        store = open_store(url.replace("postgresql+psycopg", scheme))
        assert upgrade(store) == ()
        store.close()


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:secret@h/d",
        "postgresql+asyncpg://u:secret@h/d",
        "postgresql+psycopg2://u:secret@h/d",
        "sqlite+aiosqlite://u:secret@/x.db",
        "postgresql://u:secret@h:port/d",
        "secret",
    ],
)
def test_another_database_or_driver_is_a_sentence_without_the_password(url: str) -> None:
    with pytest.raises(UnusableError, match="--database: ") as refused:
        open_store(url)

    assert "secret" not in str(refused.value)


def test_where_a_store_is_can_be_shown_without_secrets() -> None:
    store = open_store("postgresql://me:secret@db.example:5433/ledger?password=secret&sslmode=require")

    assert store.shown == "postgresql://db.example:5433/ledger"


def test_of_several_hosts_all_are_shown_and_the_one_that_may_write_is_taken() -> None:
    store = open_store("postgresql://me:secret@/ledger?host=a:5432&host=b:5433")

    assert store.shown == "postgresql://a:5432,b:5433/ledger"


@pytest.mark.parametrize(
    ("url", "attribute", "shown"),
    [
        ("postgresql://db/ledger", None, ""),
        ("postgresql://db:5432/ledger?sslmode=require", None, ""),
        ("postgresql://a,b/ledger", "read-write", "read-write"),
        ("postgresql:///ledger?host=a:5432&host=b:5432", "read-write", "read-write"),
        ("postgresql:///ledger?host=a,b&port=1,2", "read-write", "read-write"),
        ("postgresql:///ledger?host=a&host=b&target_session_attrs=any", None, "any"),
        ("postgresql:///ledger?host=/run/postgresql", None, ""),
    ],
)
def test_only_an_address_of_several_hosts_asks_which_of_them_may_write(
    url: str, attribute: str | None, shown: str
) -> None:
    read = make_url(url)

    assert connection_arguments(read.query, hosts_of(read), "me").get("target_session_attrs") == attribute
    assert open_store(url).session_attributes == shown


@pytest.mark.parametrize("hosts", ["a:5432,b:5432", "[::1],[::2]:5432"])
def test_several_hosts_with_ports_in_the_place_of_one_are_a_sentence(hosts: str) -> None:
    with pytest.raises(UnusableError) as refused:
        open_store(f"postgresql://me:secret@{hosts}/ledger")

    assert str(refused.value) == (
        "--database: not a database URL; several hosts with ports are written"
        " postgresql://USER:PASSWORD@/NAME?host=a:5432&host=b:5432"
    )


def unreachable(_: str) -> str:
    return "postgresql://bursar:hush-hush@127.0.0.1:1/ledger"


def wrong_password(url: str) -> str:
    return url.replace(f":{PASSWORD}@", ":hush-hush@")


def no_such_database(url: str) -> str:
    return server().url("nowhere")


def others_tables(url: str) -> str:
    store = open_store(url)
    with store.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE entries (what INTEGER)")
    store.close()
    return url


def read_only(url: str) -> str:
    server().as_admin(f"ALTER DATABASE {url.rpartition('/')[2]} SET default_transaction_read_only = on")
    return url


def no_right_to_create(url: str) -> str:
    """A database of somebody else, into which our user may come."""
    server().as_admin(f"ALTER DATABASE {url.rpartition('/')[2]} OWNER TO postgres")
    return url


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (unreachable, "Connection refused"),
        (wrong_password, 'password authentication failed for user "bursar"'),
        (no_such_database, 'database "nowhere" does not exist'),
        (no_right_to_create, "permission denied for schema public"),
        (others_tables, 'relation "entries" already exists'),
        (read_only, "cannot execute"),
    ],
    ids=["away", "password", "database", "rights", "tables", "read only"],
)
def test_a_postgresql_that_cannot_be_used_is_one_sentence(
    process: Process, make: Callable[[str], str], sentence: str
) -> None:
    with fresh_postgresql(EMPTY) as url:
        process.url = make(url)
        with pytest.raises(UnusableError) as caught:
            prepare(read(process.command()[3:], {}))

    said = str(caught.value)
    assert said.startswith("--database: postgresql://127.0.0.1:"), said
    assert "\n" not in said, said
    assert sentence in said
    assert (
        "the database must exist and be running, and allow this user to connect and to create tables" in said
    )
    assert "hush-hush" not in said
    assert f":{PASSWORD}@" not in said


def test_what_the_migrations_must_not_touch_stays_as_it_was() -> None:
    with fresh_postgresql(EMPTY) as url:
        store = open_store(others_tables(url))
        with pytest.raises(UnavailableError, match="already exists"):
            upgrade(store)
        with store.reading() as connection:
            found = connection.exec_driver_sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            assert found.scalars().all() == ["entries"]
        store.close()
