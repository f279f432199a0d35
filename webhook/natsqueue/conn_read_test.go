package natsqueue

import (
	"bytes"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook/store"
)

// serveWithoutJetStream starts a server whose clients can answer the requests to JetStream.
func serveWithoutJetStream(t *testing.T) *testServer {
	t.Helper()
	time.Sleep(time.Until(began()))
	s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { stop(s) })
	return &testServer{Server: s}
}

// A tapConn passes what the client sends through a function.
type tapConn struct {
	net.Conn
	tap func([]byte) []byte
}

func (c *tapConn) Write(b []byte) (int, error) {
	if sent := c.tap(b); len(sent) > 0 {
		if _, err := c.Conn.Write(sent); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// A laggard is true while a server has no messages yet, and finds none that it is asked for. Only
// the leader, which is asked by other subjects, has them, unless leader is true.
type laggard struct {
	atomic.Bool
	leader atomic.Bool
}

// lag makes s behave as the laggard says.
func lag(t *testing.T, s *testServer) *laggard {
	t.Helper()
	lags := new(laggard)
	s.wrap = func(conn net.Conn) (net.Conn, error) {
		return &tapConn{conn, func(b []byte) []byte {
			if lags.Load() {
				b = bytes.ReplaceAll(b, []byte("$JS.API.DIRECT."), []byte("LAGGING.DIRECT."))
			}
			if lags.leader.Load() {
				b = bytes.ReplaceAll(b, []byte("$JS.API.STREAM."), []byte("LAGGING.STREAM."))
			}
			return b
		}}, nil
	}
	nc := s.connect(t)
	for subject, answer := range map[string]*nats.Msg{
		"LAGGING.DIRECT.GET.*":     {Header: nats.Header{"Status": {"404"}, "Description": {"Message Not Found"}}},
		"LAGGING.STREAM.MSG.GET.*": {Data: []byte(`{"error":{"code":404,"err_code":10037}}`)},
		"LAGGING.STREAM.INFO.*":    {Data: []byte(`{"config":{"allow_direct":true},"state":{"last_seq":1}}`)},
	} {
		if _, err := nc.Subscribe(subject, func(m *nats.Msg) { m.RespondMsg(answer) }); err != nil {
			t.Fatal(err)
		}
	}
	return lags
}

// A replica that lags behind the leader does not have the latest messages. Their deliveries are not
// lost: Fetch gets them from the leader.
func TestFetchFromLaggingReplica(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		lags := lag(t, s)
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		q.index.cacheRoom = 0
		mustPut(t, q, deliveries("d", 0, 3)...)
		lags.Store(true)
		ds := fetch(t, q, 3, "d")
		lags.Store(false)
		settle(t, q, store.Done, ds...)
	})
}

// A leader that was replaced without knowing it has neither the latest messages nor the right to say
// that they are lost: Fetch returns an error, and the deliveries wait.
func TestFetchFromReplacedLeader(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		lags := lag(t, s)
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		q.index.cacheRoom = 0
		mustPut(t, q, deliveries("d", 0, 3)...)
		lags.leader.Store(true)
		lags.Store(true)
		if ds, err := q.tryFetch(t.Context(), 3, "d"); err == nil {
			t.Errorf("Fetch = %d deliveries, nil; want an error", len(ds))
		}
		lags.Store(false)
		lags.leader.Store(false)
		settle(t, q, store.Done, fetch(t, q, 3, "d")...)
	})
}

// Nor does such a leader make the cleaner purge a damaged message before its bytes are set aside.
func TestDamagedMessageOutlivesReplacedLeader(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		lags := lag(t, s)
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		p := partitionOf(q)
		if err := q.conn.store(t.Context(), one(p.prefix+kindPut, []byte("?"))); err != nil {
			t.Fatal(err)
		}
		var damaged []*block
		until(t, "the message was read", func() bool {
			q.index.mu.Lock()
			defer q.index.mu.Unlock()
			damaged = slices.DeleteFunc(slices.Clone(p.order), func(b *block) bool { return !b.damaged })
			return len(damaged) > 0
		})
		lags.leader.Store(true)
		lags.Store(true)
		if err := q.cleaner.keep(t.Context(), p, damaged); err == nil {
			t.Error("keep = nil without the damaged message, want an error, so that the message is not purged")
		}
		lags.Store(false)
		lags.leader.Store(false)
	})
}

// A list waits until the replica that answers has all messages that the leader has. Erase misses no
// dead letter, because it asks the leader for what the replica does not have.
func TestListsWaitForLaggingReplica(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		lags := lag(t, s)
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		d := deliveries("d", 0, 1)[0]
		d.User = "ann"
		mustPut(t, q, d)
		settle(t, q, store.Bury, fetch(t, q, 1, "d")...)
		if _, err := q.SetDocument(t.Context(), store.Document{Folder: "a", Name: "b", Value: []byte("c")}); err != nil {
			t.Fatal(err)
		}
		lags.Store(true)
		if erased, _, err := q.Erase(t.Context(), "ann"); erased != 1 || err != nil {
			t.Errorf("Erase = %d, %v; want 1, the dead letter", erased, err)
		}
		for _, err := range q.Documents(t.Context(), "a", "") {
			if err == nil {
				t.Error("Documents of a replica that never catches up yields a document, want an error")
			}
		}
		time.AfterFunc(300*time.Millisecond, func() { lags.Store(false) })
		n := 0
		for _, err := range q.Documents(t.Context(), "a", "") {
			if n++; err != nil {
				t.Error(err)
			}
		}
		if n != 1 {
			t.Errorf("Documents of a replica that catches up yields %d documents, want 1", n)
		}
	})
}

// A message whose deliveries were moved and that was purged while Fetch was about to read it is not
// lost: Fetch reads the deliveries at their new place at once.
func TestFetchWhileMessageIsPurged(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		var drop atomic.Bool
		s.wrap = func(conn net.Conn) (net.Conn, error) {
			return &tapConn{conn, func(b []byte) []byte {
				if bytes.Contains(b, []byte("$JS.API.DIRECT.GET.")) && drop.CompareAndSwap(true, false) {
					return nil
				}
				return b
			}}, nil
		}
		log := new(lines)
		q := ready(s.open(t, Config{Partitions: 1, Logger: slog.New(slog.NewTextHandler(log, nil))}))
		defer q.Close()
		q.index.cacheRoom = 0
		ds := deliveries("d", 0, 20)
		for i := range ds {
			ds[i].Body = bytes.Repeat([]byte("x"), 1000)
		}
		mustPut(t, q, ds...)
		all := fetch(t, q, len(ds), "d")
		settle(t, q, store.Done, all[5:]...)
		settle(t, q, store.Return, all[:5]...)
		drop.Store(true) // the first request of Fetch is lost, so that it has to ask again
		begin := time.Now()
		fetched := make(chan int)
		go func() {
			ds, _ := q.tryFetch(t.Context(), 10, "d")
			fetched <- len(ds)
		}()
		synctest.Wait()
		if err := q.cleaner.clean(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if n := len(logMessages(t, q)); n != 1 {
			t.Fatalf("the log has %d messages, want only the record with the moved deliveries", n)
		}
		n := <-fetched
		if took := time.Since(begin); n != 5 || took > time.Second || log.count("level=ERROR") > 0 {
			t.Errorf("Fetch = %d deliveries after %v, log %s; want 5 within a second, and no error", n, took, &log.text)
		}
	})
}

// A request to the leader gets the answer of the new leader after servers have answered that there is
// none.
func TestLeaderAnswersAfterElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nc := serveWithoutJetStream(t).connect(t)
		answers := []string{`{"error":{"code":503,"err_code":10008}}`, `{"message":{"subject":"S.a","seq":7,"data":"aGk="}}`}
		if _, err := nc.Subscribe("$JS.API.STREAM.MSG.GET.S", func(m *nats.Msg) {
			m.Respond([]byte(answers[0]))
			answers = answers[len(answers)-1:]
		}); err != nil {
			t.Fatal(err)
		}
		c := &conn{config: &Config{Stream: "S"}, nc: nc}
		if m, err := c.last(t.Context(), "S.a"); m.Sequence != 7 || string(m.Data) != "hi" || err != nil {
			t.Errorf("last = %+v, %v; want message 7", m, err)
		}
	})
}
