//go:build unix

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/internal/pgtest"
	"github.com/hookferry/analytics/internal/testkit"
)

// password is in the URL of the store. It may be nowhere else.
const password = "s3cretpassw0rd"

// database starts a PostgreSQL server, and returns its URL.
func database(t *testing.T) string {
	t.Helper()
	db := pgtest.New(t, "fsync=off") // no test cuts the power
	socket := strings.TrimPrefix(strings.Fields(db.URL())[0], "host=")
	return "postgres://test:" + password + "@/postgres?host=" + socket
}

// jetStream starts a NATS server with a password, and returns its URL twice, as if it
// were two servers.
func jetStream(t *testing.T) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(),
		NoSigs: true, NoLog: true, Username: "test", Password: password,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	testkit.Until(t, "the NATS server is ready", func() bool { return s.ReadyForConnections(time.Second) })
	url := fmt.Sprintf("nats://test:%s@%s", password, s.Addr())
	return url + "," + url
}

// A node is a server in a process of its own. Each start uses the same addresses.
type node struct {
	*testkit.Child
	calls string // the address of its listener for calls
	admin *api.Client
	start func()
}

// nodes starts n servers that share a store.
func nodes(t *testing.T, n int, url string, args ...string) []*node {
	t.Helper()
	all := make([]*node, n)
	for i := range all {
		s := &node{calls: freeAddress(t)}
		control := freeAddress(t)
		var err error
		if s.admin, err = api.NewClient(control, "", nil); err != nil {
			t.Fatal(err)
		}
		s.start = func() {
			t.Helper()
			s.Child, _ = start(t, t.TempDir(), []string{"HOOKFERRY_QUEUE=" + url}, "msg=listening", "hookferry",
				append([]string{"serve", "--listen", s.calls, "--admin-listen", control, "--write-key", "key"}, args...)...)
			t.Cleanup(func() {
				if text := s.Output(); strings.Contains(text, password) {
					t.Errorf("the log has the password of the store:\n%s", text)
				}
			})
		}
		s.start()
		all[i] = s
	}
	return all
}

// track sends a call as a client does: it sends the call again after a 503, which says that the
// store was too slow.
func track(t *testing.T, address, id string) {
	t.Helper()
	testkit.Until(t, "the call is accepted", func() bool {
		req, err := http.NewRequest(http.MethodPost, "http://"+address+"/v1/track", strings.NewReader(`{"userId":"u","event":"Shared","messageId":"`+id+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth("key", "")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("the answer to a call is %s, want 200 or 503", resp.Status)
		}
		return resp.StatusCode == http.StatusOK
	})
}

// TestServersShareAStore shows that a pause on one server holds on all servers that share its
// store, and survives a restart.
func TestServersShareAStore(t *testing.T) {
	for _, store := range []struct {
		name  string
		start func(*testing.T) (url string)
	}{
		{"PostgreSQL", database},
		{"JetStream", jetStream},
	} {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			serversShareAStore(t, store.start(t))
		})
	}
}

func serversShareAStore(t *testing.T, url string) {
	var arrived atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived.Add(1) }))
	defer receiver.Close()
	servers := nodes(t, 2, url, "--webhook", receiver.URL)
	a, b := servers[0], servers[1]
	ctx := t.Context()

	names := map[string]bool{}
	for i, s := range servers {
		var list api.Nodes
		testkit.Until(t, "both servers list both nodes as ready, with their versions", func() bool {
			var err error
			list, err = api.Do[api.Nodes](ctx, s.admin, api.Request{Path: api.NodesPath})
			return err == nil && len(list.Nodes) == 2 && !slices.ContainsFunc(list.Nodes, func(n api.Node) bool { return n.Version == "" || !n.Ready })
		})
		for j, n := range list.Nodes {
			names[n.Name] = true
			if !list.Shared || n.Self != (i == j) || n.Seen.IsZero() || n.Started.IsZero() {
				t.Errorf("server %d lists the node %+v, want a shared store, both times, and itself at number %d", i, n, i)
			}
		}
	}
	if len(names) != 2 {
		t.Errorf("the servers list the nodes %v, want 2", names)
	}

	post := func(s *node, path string) {
		t.Helper()
		if _, err := api.Do[api.Destination](ctx, s.admin, api.Request{Method: http.MethodPost, Path: api.Path(path, onlyName)}); err != nil {
			t.Fatal(err)
		}
	}
	post(a, api.PausePath)
	paused := func(s *node) bool {
		d, err := api.Do[api.Destination](ctx, s.admin, api.Request{Path: api.Path(api.DestinationPath, onlyName)})
		return err == nil && d.Paused
	}
	testkit.Until(t, "the pause holds on the other server", func() bool { return paused(b) })
	for i, s := range servers {
		track(t, s.calls, fmt.Sprint("paused-", i))
	}
	stop(t, a.Child)
	testkit.Until(t, "the stopped server is not listed", func() bool {
		list, err := api.Do[api.Nodes](ctx, b.admin, api.Request{Path: api.NodesPath})
		return err == nil && len(list.Nodes) == 1
	})
	a.start()
	testkit.Until(t, "the pause holds after the restart", func() bool { return paused(a) })
	for _, s := range servers {
		if status, err := api.Do[api.Status](ctx, s.admin, api.Request{Path: api.StatusPath}); err != nil || status.Waiting != 2 {
			t.Errorf("status: %d deliveries wait, %v, want the 2 that the servers accepted", status.Waiting, err)
		}
	}
	if n := arrived.Load(); n != 0 {
		t.Errorf("%d webhooks arrived during the pause, want none", n)
	}
	post(b, api.ResumePath)
	testkit.Until(t, "the waiting deliveries arrive", func() bool { return arrived.Load() == 2 })
	testkit.Until(t, "no server reports the destination as paused", func() bool { return !paused(a) && !paused(b) })
}

func TestServeRefusesQueueURLs(t *testing.T) {
	missing := "postgres://test:" + password + "@127.0.0.1:1/none?connect_timeout=2"
	for _, tt := range []struct {
		name, url string
		args      []string
		status    int
		says      string
	}{
		{"another kind", "mysql://test:" + password + "@h/db", []string{"--write-key", "k"}, 2, "HOOKFERRY_QUEUE: want postgres://"},
		{"no URL", "host=h password=" + password, []string{"--write-key", "k"}, 2, "HOOKFERRY_QUEUE: want postgres://"},
		{"a parameter", "postgres://test:" + password + "@h/db?sslmode=maybe", []string{"--write-key", "k"}, 2, "HOOKFERRY_QUEUE: want postgres://"},
		{"no write key", missing, nil, 2, "--write-key: is required with --queue"},
		{"no such file", "file:/no/such/file", []string{"--write-key", "k"}, 2, "reading the file: no such file"},
		{"NATS, with a path", "nats://test:" + password + "@h,nats://h/" + password, []string{"--write-key", "k"}, 2, "HOOKFERRY_QUEUE: want nats://"},
		{"NATS, no server", "nats://test:" + password + "@127.0.0.1:1", []string{"--write-key", "k"}, 1, "HOOKFERRY_QUEUE: "},
		{"PostgreSQL, no server", missing, []string{"--write-key", "k"}, 1, "HOOKFERRY_QUEUE: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--webhook", "http://127.0.0.1:9/", "--data", t.TempDir()}, tt.args...)
			_, text, status := runCommand(t.Context(), "", map[string]string{"HOOKFERRY_QUEUE": tt.url}, args...)
			if status != tt.status || !strings.Contains(text, tt.says) || strings.Contains(text, password) {
				t.Errorf("exit status %d, want %d, with %q and without the password in the text:\n%s", status, tt.status, tt.says, text)
			}
		})
	}
}
