package natsqueue

import (
	"testing"

	"github.com/nats-io/nats.go"
)

// A message that was sent before, and that replicas are still storing, is sent again until
// it is stored.
func TestPublishInProcess(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		nc := s.connect(t)
		p, err := newPublisher(nc)
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		answers := []string{
			`{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"},"stream":"S","seq":0}`,
			`{"stream":"S","seq":7,"duplicate":true}`,
		}
		server, err := nc.Subscribe("in.process", func(m *nats.Msg) {
			m.Respond([]byte(answers[0]))
			answers = answers[1:]
		})
		if err != nil {
			t.Fatal(err)
		}
		defer server.Unsubscribe()
		m := &message{subject: "in.process", header: nats.Header{headerID: {"1"}}}
		if err := p.store(t.Context(), m); err != nil || m.seq != 7 || !m.duplicate {
			t.Errorf("store = %v; sequence %d, duplicate %v; want 7, true", err, m.seq, m.duplicate)
		}
	})
}
