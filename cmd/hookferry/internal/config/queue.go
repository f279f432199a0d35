package config

import (
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Store names the kinds of stores.
type Store string

// The kinds of stores.
const (
	Embedded   Store = "embedded" // in the data folder
	PostgreSQL Store = "postgresql"
	JetStream  Store = "jetstream"
)

// Store returns which store the URL is of, "" if there is none like that.
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

// connectTimeout is for a URL without connect_timeout.
const connectTimeout = 10 * time.Second

// Pool returns what the URL says of connections to PostgreSQL, of which name is told
// there. Its errors may have parts of the URL.
func (q *Queue) Pool(name string) (*pgxpool.Config, error) {
	c, err := pgxpool.ParseConfig(q.URL.Reveal())
	if err != nil {
		return nil, err
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

// Servers returns the URLs of the NATS servers, and their hosts for the log. Its
// errors have no parts of them.
func (q *Queue) Servers() (urls, hosts []string, err error) {
	for text := range strings.SplitSeq(q.URL.Reveal(), ",") {
		text = strings.TrimSpace(text)
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Hostname() == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
			return nil, nil, errors.New("want nats://USER:PASSWORD@HOST:PORT, or tls://, and more of them after commas")
		}
		urls, hosts = append(urls, text), append(hosts, u.Scheme+"://"+u.Host)
	}
	return urls, hosts, nil
}

func (c *checker) queue() {
	q := &c.s.Queue
	switch q.Store() {
	case "":
		c.problem("queue.url", "want postgres://USER:PASSWORD@HOST:PORT/DATABASE, or nats://USER:PASSWORD@HOST:PORT")
	case PostgreSQL:
		if _, err := q.Pool(""); err != nil { // whose text may have the password
			c.problem("queue.url", "want postgres://USER:PASSWORD@HOST:PORT/DATABASE; a part of it, a parameter, or a PG variable of the environment is wrong")
		}
	case JetStream:
		if _, _, err := q.Servers(); err != nil {
			c.problem("queue.url", "%v", err)
		}
	}
	if q.Shared() && c.s.Limits.Store != 0 {
		c.problem("limits.store", "is for the store in the data folder; with queue.url the database has its own limits")
	}
	p := &q.Postgres
	if p.Schema == "" || len(p.Schema) > 63 {
		c.problem("queue.postgres.schema", "want 1 to 63 bytes")
	}
	number(c, "queue.postgres.connections", p.Connections, 5, 1000)
	number(c, "queue.postgres.claim", p.Claim, time.Second, time.Hour)
	n := &q.NATS
	c.clientTLS("queue.nats.tls", n.TLS)
	if n.Stream == "" || len(n.Stream) > 64 || strings.Trim(n.Stream, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
		c.problem("queue.nats.stream", "want 1 to 64 letters, digits, - and _")
	}
	number(c, "queue.nats.replicas", n.Replicas, 0, 5)
	number(c, "queue.nats.partitions", n.Partitions, 1, 256)
	number(c, "queue.nats.claim", n.Claim, time.Second, time.Hour)
	number(c, "queue.nats.dedupWindow", n.DedupWindow, time.Minute, 7*24*time.Hour)
	number(c, "queue.nats.maxBytes", n.MaxBytes, 0, 1<<50)
}
