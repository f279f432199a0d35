package config

import (
	"context"
	"errors"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
)

type Store string

// The kinds of stores.
const (
	Embedded   Store = "embedded" // in the data folder
	PostgreSQL Store = "postgresql"
	JetStream  Store = "jetstream"
)

// Store returns the kind of store that the URL asks for, or "" if its scheme is unknown.
func (q *Queue) Store() Store {
	if q.URL == "" {
		return Embedded
	}
	scheme, _, _ := strings.Cut(q.URL.Reveal(), "://")
	switch scheme {
	case "postgres", "postgresql":
		return PostgreSQL
	case "nats", "tls":
		return JetStream
	}
	return ""
}

// connectTimeout is the time limit for connecting if the URL has no connect_timeout.
const connectTimeout = 10 * time.Second

// Pool returns the configuration of connections to PostgreSQL from the URL. Their application_name
// is the argument, unless the URL sets another. The errors may contain parts of the URL. Each new
// connection reads the file with the URL again, if there is one, and the files that the URL names:
// a password or a certificate may be new. Another database in the URL counts only after a restart.
func (q *Queue) Pool(name string) (*pgxpool.Config, error) {
	c, err := q.pool(name)
	if err != nil {
		return nil, err
	}
	c.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
		fresh := *q
		if q.File != "" {
			if text, err := ReadSecret("file:" + q.File); err == nil { // otherwise the URL from before may do
				fresh.URL = text
			}
		}
		if c, err := fresh.pool(name); err == nil && slices.Equal(databases(c.ConnConfig), databases(conn)) {
			*conn = *c.ConnConfig
		}
		return nil
	}
	return c, nil
}

// follows reports whether new connections of a store with the settings old use the URL of q.
func (q *Queue) follows(old *Queue) bool {
	c, err := q.pool("")
	before, failed := old.pool("")
	return q.File != "" && q.File == old.File && err == nil && failed == nil &&
		slices.Equal(databases(c.ConnConfig), databases(before.ConnConfig))
}

// databases returns the hosts and ports that a connection is tried with, and the database.
func databases(c *pgx.ConnConfig) []string {
	all := []string{c.Database, net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))}
	for _, f := range c.Fallbacks {
		all = append(all, net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))))
	}
	return slices.Compact(all) // a host may be tried twice, with TLS and without
}

// pool is Pool for the URL as it is now. Of several hosts, a connection goes to one that is not
// read-only, unless the URL has another target_session_attrs.
func (q *Queue) pool(name string) (*pgxpool.Config, error) {
	c, err := pgxpool.ParseConfig(q.URL.Reveal())
	if err != nil {
		return nil, err
	}
	if len(databases(c.ConnConfig)) > 2 && !strings.Contains(q.URL.Reveal(), "target_session_attrs") && c.ConnConfig.ValidateConnect == nil {
		c.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	c.MaxConns = int32(q.Postgres.Connections)
	if c.ConnConfig.ConnectTimeout == 0 {
		c.ConnConfig.ConnectTimeout = connectTimeout
	}
	if c.ConnConfig.RuntimeParams["application_name"] == "" {
		c.ConnConfig.RuntimeParams["application_name"] = name
	}
	if q.Postgres.Pooler {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	return c, nil
}

// Servers returns the URLs of the NATS servers without credentials. Errors contain no part of them.
func (q *Queue) Servers() (hosts []string, err error) {
	for text := range strings.SplitSeq(q.URL.Reveal(), ",") {
		u, err := webhook.ParseURL(strings.TrimSpace(text))
		if err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Hostname() == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
			return nil, errors.New("want nats://USER:PASSWORD@HOST:PORT, or tls://, and more of them after commas")
		}
		hosts = append(hosts, u.Scheme+"://"+u.Host)
	}
	return hosts, nil
}

// queue checks the settings of the store, and other settings that depend on the kind of store.
func (r *reader) queue(s *Settings) {
	q := &s.Queue
	if path := r.origins[&q.URL]; path != "" {
		q.File = path
	}
	switch q.Store() {
	case "":
		r.problem("queue.url", "want postgres://USER:PASSWORD@HOST:PORT/DATABASE, or nats://USER:PASSWORD@HOST:PORT")
	case PostgreSQL:
		_, err := q.Pool("") // the text of the error may have the password
		r.refuse(err != nil, "queue.url", "want postgres://USER:PASSWORD@HOST:PORT/DATABASE; a part of it, a parameter, or a PG variable of the environment is wrong")
	case JetStream:
		_, err := q.Servers()
		r.refuse(err != nil, "queue.url", "%v", err)
	}
	r.refuse(q.Shared() && s.Limits.Store != 0, "limits.store", "is for the store in the data folder; with queue.url the database has its own limits")
	r.refuse(q.Store() == JetStream && s.History.MaxAge != 0, "history.maxAge", "is for the store in the data folder and for PostgreSQL; with NATS servers nothing that was delivered is kept")
	schema := len(q.Postgres.Schema)
	r.refuse(schema == 0 || schema > 63, "queue.postgres.schema", "want 1 to 63 bytes")
	r.refuse(!isStream(q.NATS.Stream), "queue.nats.stream", "want 1 to 64 letters, digits, - and _")
	if q.NATS.TLS != nil {
		r.clientTLS("queue.nats.tls", q.NATS.TLS)
	}
}

var isStream = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`).MatchString
