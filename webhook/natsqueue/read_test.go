package natsqueue

import (
	"testing"

	"github.com/nats-io/nats.go"
)

// A request without an answer is made again. The first complete answer counts. Answers
// that are late, or not complete, do no harm.
func TestReadAsksAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		nc := s.connect(t)
		r, err := newReader(nc)
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		message := func(to, seq string) {
			m := nats.NewMsg(to)
			m.Header = nats.Header{"Nats-Subject": {"s"}, "Nats-Sequence": {seq}, "Nats-Time-Stamp": {"2026-01-02T03:04:05Z"}}
			nc.PublishMsg(m)
		}
		end := func(to string) {
			m := nats.NewMsg(to)
			m.Header = nats.Header{"Status": {"204"}}
			nc.PublishMsg(m)
		}
		var replies []string
		server, err := nc.Subscribe("$JS.API.DIRECT.GET.SILENT", func(m *nats.Msg) {
			if replies = append(replies, m.Reply); len(replies) == 1 {
				message(m.Reply, "1") // and no end of the answer
				return
			}
			message(m.Reply, "1")
			message(m.Reply, "2")
			message(replies[0], "2")
			end(m.Reply)
			end(replies[0])
		})
		if err != nil {
			t.Fatal(err)
		}
		defer server.Unsubscribe()
		pages, err := r.read(t.Context(), "SILENT", request{Batch: 2, Next: "s"})
		if err != nil || len(pages) != 1 || len(pages[0]) != 2 || pages[0][0].seq != 1 || pages[0][1].seq != 2 {
			t.Errorf("read = %+v, %v; want the messages 1 and 2", pages, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.asked) != 0 {
			t.Errorf("%d requests are not forgotten", len(r.asked))
		}
	})
}
