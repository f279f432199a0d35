// Package inbox tests signature/inbox with real databases, and measures it.
package inbox

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/hookferry/analytics/internal/pgtest"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/signature/inbox"
)

// A database is a kind of database, with the program that uses it.
type database struct {
	name, driver string
	dialect      inbox.Dialect
	start        func(testing.TB) (url string) // of a new one, which ends with the test
	insert       string                        // the effect of an event: a row with its id
}

var databases = []database{
	{"PostgreSQL", "pgx", inbox.PostgreSQL, func(t testing.TB) string { return pgtest.New(t).URL() }, "INSERT INTO effects (id) VALUES ($1)"},
	{"MariaDB", "mysql", inbox.MySQL, startMariaDB, "INSERT INTO effects (id) VALUES (?)"},
	{"SQLite", "sqlite", inbox.SQLite, func(t testing.TB) string {
		return "file:" + filepath.Join(t.TempDir(), "data.db") + "?_pragma=journal_mode(wal)&_pragma=busy_timeout(20000)"
	}, "INSERT INTO effects (id) VALUES (?)"},
}

// startMariaDB starts a server on a socket in a folder of its own.
func startMariaDB(t testing.TB) string {
	const install = "apt-get install mariadb-server"
	server := testkit.Program(t, "mariadbd", install, "/usr/sbin/mariadbd")
	setup := testkit.Program(t, "mariadb-install-db", install)
	dir, err := os.MkdirTemp("", "mariadb") // short, because the name of a socket has a limit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	data, socket := "--datadir="+filepath.Join(dir, "data"), filepath.Join(dir, "s")
	if out, err := exec.Command(setup, "--no-defaults", data, "--user="+me.Username, "--auth-root-authentication-method=normal", "--skip-test-db").CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", setup, err, out)
	}
	child := testkit.KillAtEnd(t, exec.Command(server, "--no-defaults", data, "--user="+me.Username, "--socket="+socket, "--skip-networking", "--max-connections=300"))
	url := "root@unix(" + socket + ")/test?clientFoundRows=true"
	db := testkit.Must(sql.Open("mysql", strings.Replace(url, "/test", "/", 1)))
	defer db.Close()
	testkit.Until(t, "MariaDB answers", func() bool {
		select {
		case <-child.Exited():
			t.Fatalf("MariaDB ended:\n%s", child.Output())
		default:
		}
		_, err = db.ExecContext(t.Context(), "CREATE DATABASE test")
		return err == nil
	})
	return url
}

// open connects to the database, and makes its tables.
func (d database) open(t testing.TB, url string) *sql.DB {
	db := testkit.Must(sql.Open(d.driver, url))
	t.Cleanup(func() { db.Close() })
	for _, statement := range append(d.dialect.Schema(inbox.DefaultTable), "CREATE TABLE effects (id varchar(100))") {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return db
}

// effects returns how often each event was applied.
func effects(t testing.TB, db *sql.DB) map[string]int {
	rows, err := db.QueryContext(t.Context(), "SELECT id, count(*) FROM effects GROUP BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	all := map[string]int{}
	for rows.Next() {
		var id string
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			t.Fatal(err)
		}
		all[id] = n
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// connections is how many connections to its database a receiver has.
const connections = 16

var secret = signature.Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")

// receiver returns an Inbox. before runs in the transaction before the effect, if it is not nil.
func (d database) receiver(url string, before func(signature.Event) error) http.Handler {
	if d.dialect == inbox.PostgreSQL {
		return newInbox(d, pgxDB(url), before)
	}
	return newInbox(d, d.sqlDB(url), before)
}

// plain returns the same receiver without an inbox: it applies an event as often as it comes.
func (d database) plain(url string) http.Handler {
	if d.dialect == inbox.PostgreSQL {
		return newPlain(d, pgxDB(url))
	}
	return newPlain(d, d.sqlDB(url))
}

func (d database) sqlDB(url string) inbox.DB[*sql.Tx] {
	db := testkit.Must(sql.Open(d.driver, url))
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return inbox.SQL(db)
}

func pgxDB(url string) inbox.DB[pgx.Tx] {
	settings := testkit.Must(pgxpool.ParseConfig(url))
	settings.MaxConns = connections
	return inbox.PGX(testkit.Must(pgxpool.NewWithConfig(context.Background(), settings)))
}

func newInbox[Tx any](d database, db inbox.DB[Tx], before func(signature.Event) error) http.Handler {
	c := inbox.Config{Dialect: d.dialect, Scheme: signature.StandardWebhooks, Secrets: []signature.Secret{secret}}
	return testkit.Must(inbox.New(db, c, func(ctx context.Context, tx Tx, e signature.Event) error {
		if before != nil {
			if err := before(e); err != nil {
				return err
			}
		}
		_, err := db.Exec(ctx, tx, d.insert, e.ID)
		return err
	}))
}

func newPlain[Tx any](d database, db inbox.DB[Tx]) http.Handler {
	return &signature.Handler{
		Scheme: signature.StandardWebhooks, Secrets: []signature.Secret{secret},
		Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx := context.WithoutCancel(r.Context())
			tx, err := db.Begin(ctx)
			if err == nil {
				if _, err = db.Exec(ctx, tx, d.insert, r.Header.Get(signature.StandardID)); err == nil {
					err = db.Commit(ctx, tx)
				}
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		}),
	}
}

const receiverEnv = "INBOX_RECEIVER"

// receiverProcess returns a command that runs a receiver on a port.
func (d database) receiverProcess(url string, port int) *exec.Cmd {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", receiverEnv, d.name, port, url))
	return c
}
