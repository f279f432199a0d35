package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/signature"
)

func TestQueue(t *testing.T) {
	const secret = "passw0rd"
	for _, tt := range []struct {
		name, queue, rest string
		store             Store
		problems          []string // keys of the problems
	}{
		{name: "none", queue: "{}", store: Embedded},
		{name: "postgres", queue: `{url: "postgres://u:${SECRET}@db.example/app"}`, store: PostgreSQL},
		{name: "postgresql", queue: `{url: "postgresql:///?host=/run/pg&user=u", postgres: {schema: s, migrate: false, pooler: true, connections: 5, claim: 1s}}`, store: PostgreSQL},
		{name: "nats", queue: `{url: "nats://u:${SECRET}@a.example:4222,tls://b.example:4222", nats: {stream: A-1_b, replicas: 3, partitions: 1, claim: 1s, dedupWindow: 2h, maxBytes: 1GB, credentials: c}}`, store: JetStream},
		{name: "nats and another scheme", queue: `{url: "nats://u:${SECRET}@a.example,postgres://b.example"}`, problems: []string{"queue.url"}},
		{name: "nats with a path", queue: `{url: "nats://a.example/${SECRET}"}`, problems: []string{"queue.url"}},
		{name: "bounds of nats", queue: `{nats: {stream: "a.b", replicas: 6, partitions: 0, claim: 2h, dedupWindow: 169h, maxBytes: 0}}`, store: Embedded,
			problems: []string{"queue.nats.stream", "queue.nats.replicas", "queue.nats.partitions", "queue.nats.claim", "queue.nats.dedupWindow"}},
		{name: "a dedup window of nats that is too short", queue: `{nats: {dedupWindow: 59s}}`, store: Embedded, problems: []string{"queue.nats.dedupWindow"}},
		{name: "the shortest dedup window of nats", queue: `{nats: {dedupWindow: 1m}}`, store: Embedded},
		{name: "TLS of nats without a key", queue: `{url: "tls://a.example", nats: {tls: {ca: hookferry.yaml, certificate: hookferry.yaml}}}`, problems: []string{"queue.nats.tls.key", "queue.nats.tls.ca"}},
		{name: "authorities of nats that are no certificates", queue: `{url: "tls://a.example", nats: {tls: {ca: hookferry.yaml}}}`, problems: []string{"queue.nats.tls.ca"}},
		{name: "another database", queue: `{url: "mysql://u:${SECRET}@db.example/app"}`, problems: []string{"queue.url"}},
		{name: "no URL", queue: `{url: "host=h password=${SECRET}"}`, problems: []string{"queue.url"}},
		{name: "a wrong port", queue: `{url: "postgres://u:${SECRET}@db.example:x/app"}`, problems: []string{"queue.url"}},
		{name: "a wrong parameter", queue: `{url: "postgres://u:${SECRET}@db.example/app?sslmode=${SECRET}"}`, problems: []string{"queue.url"}},
		{name: "bounds of postgres", queue: `{postgres: {schema: "", connections: 4, claim: 999ms}}`, store: Embedded,
			problems: []string{"queue.postgres.schema", "queue.postgres.connections", "queue.postgres.claim"}},
		{name: "a bound of the data folder", queue: `{url: "postgres://db.example/app"}`, rest: "limits: {store: 1GB}\n", store: PostgreSQL,
			problems: []string{"limits.store"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := write(t, "queue: "+tt.queue+"\n"+tt.rest+minimal)
			s, err := Load(path, env(map[string]string{"SECRET": secret}), nil)
			var wrong *Error
			if errors.As(err, &wrong) {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error has the password: %v", err)
				}
				var keys []string
				for _, p := range wrong.Problems {
					keys = append(keys, p.Key)
				}
				if strings.Join(keys, " ") != strings.Join(tt.problems, " ") {
					t.Errorf("Load reports problems with %q, want %q", keys, tt.problems)
				}
				return
			}
			if err != nil || len(tt.problems) > 0 {
				t.Fatalf("Load = %v, want problems with %q", err, tt.problems)
			}
			if s.Queue.Store() != tt.store || s.Queue.Shared() != (tt.store != Embedded) {
				t.Errorf("Store() = %q, Shared() = %v, want %q", s.Queue.Store(), s.Queue.Shared(), tt.store)
			}
		})
	}
}

func TestCredentialsAreRelativeToTheFile(t *testing.T) {
	path := write(t, "queue: {url: \"nats://a.example\", nats: {credentials: keys/user.creds}}\n"+minimal)
	s, err := Load(path, env(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(filepath.Dir(path), "keys", "user.creds"); s.Queue.NATS.Credentials != want {
		t.Errorf("credentials %q, want %q", s.Queue.NATS.Credentials, want)
	}
}

func TestPoolFollowsSettingsAndURL(t *testing.T) {
	q := Default().Queue
	q.URL = "postgres://u@db.example/app"
	c, err := q.Pool("me")
	if err != nil {
		t.Fatal(err)
	}
	if c.MaxConns != 10 || c.ConnConfig.ConnectTimeout != connectTimeout || c.ConnConfig.RuntimeParams["application_name"] != "me" ||
		c.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		t.Errorf("default pool: %d connections, timeout %v, parameters %q, mode %v, want 10, the default timeout, the name me and cached statements", c.MaxConns, c.ConnConfig.ConnectTimeout, c.ConnConfig.RuntimeParams, c.ConnConfig.DefaultQueryExecMode)
	}
	q.URL += "?connect_timeout=3&application_name=mine"
	q.Postgres.Pooler, q.Postgres.Connections = true, 7
	if c, err = q.Pool("me"); err != nil {
		t.Fatal(err)
	}
	if c.MaxConns != 7 || c.ConnConfig.ConnectTimeout != 3*time.Second || c.ConnConfig.RuntimeParams["application_name"] != "mine" ||
		c.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeExec {
		t.Errorf("pool with settings: %d connections, timeout %v, parameters %q, mode %v, want 7, 3s, the name mine and no cached statements", c.MaxConns, c.ConnConfig.ConnectTimeout, c.ConnConfig.RuntimeParams, c.ConnConfig.DefaultQueryExecMode)
	}
}

// New connections use the URL that is in its file at that time, but never another database.
func TestNewConnectionsReadTheURLAgain(t *testing.T) {
	const first = "postgres://u:first@a.example,b.example/app"
	path := write(t, "queue: {url: \"file:url\"}\n"+minimal)
	file := filepath.Join(filepath.Dir(path), "url")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(first)
	loaded, err := Load(path, env(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	set := Default()
	if err := set.Set("queue.url", "file:"+file); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Settings{loaded, set} {
		put(first)
		c, err := s.Queue.Pool("me")
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct{ name, text, password string }{
			{"as before", first, "first"},
			{"another password", "postgres://u:second@a.example,b.example/app\n", "second"},
			{"no URL", "", "first"},
			{"another host", "postgres://u:second@a.example,c.example/app", "first"},
			{"another database", "postgres://u:second@a.example,b.example/other", "first"},
		} {
			put(tt.text)
			conn := c.ConnConfig.Copy()
			if err := c.BeforeConnect(t.Context(), conn); err != nil || conn.Password != tt.password {
				t.Errorf("%s: a new connection has the password %q, %v; want %q", tt.name, conn.Password, err, tt.password)
			}
			if conn.RuntimeParams["application_name"] != "me" || conn.ConnectTimeout != connectTimeout || conn.Host != "a.example" || conn.Database != "app" {
				t.Errorf("%s: a new connection has other settings", tt.name)
			}
		}
		// A new password needs no restart, another database does.
		for text, restart := range map[string]bool{"postgres://u:second@a.example,b.example/app": false, "postgres://u@c.example/app": true} {
			next := *s
			next.Queue.URL = signature.Secret(text)
			if keys := next.AwaitRestart(s); (len(keys) > 0) != restart {
				t.Errorf("%s: %q wait for a restart; want some: %t", text, keys, restart)
			}
		}
	}
}

// Of several hosts, connections go to one that is not read-only, unless the URL says otherwise.
func TestSeveralHostsWantAWritableOne(t *testing.T) {
	for text, want := range map[string]bool{
		"postgres://a.example/app":                                             false, // tried with TLS and without
		"postgres://a.example,b.example/app":                                   true,
		"postgres://a.example:1,a.example:2/app":                               true,
		"postgres://a.example,b.example/app?target_session_attrs=any":          false,
		"postgres://a.example,b.example/app?target_session_attrs=read-write":   true,
		"postgres://a.example,b.example/app?sslmode=disable":                   true,
		"postgres://a.example/app?target_session_attrs=primary&sslmode=prefer": true,
	} {
		q := Default().Queue
		q.URL = signature.Secret(text)
		if c, err := q.Pool("me"); err != nil || (c.ConnConfig.ValidateConnect != nil) != want {
			t.Errorf("%s: the pool looks at the server: %t, %v; want %t", text, !want, err, want)
		}
	}
}
