package analytics

import (
	"bytes"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/hookferry/analytics/internal/uuid"
)

// A handoff is a client of a common design, with which the benchmarks compare. A call sends
// its message through a channel of 100 elements to a single goroutine. This goroutine
// encodes all messages with encoding/json and posts 250 at a time in the background. So a
// call is cheap until that goroutine is saturated. From then on each call waits for it. The
// messages refer to the callers' maps after the call.
type handoff struct {
	messages chan *jsonTrack
	done     sync.WaitGroup
}

func newHandoff() *handoff {
	h := &handoff{messages: make(chan *jsonTrack, 100)}
	h.done.Go(h.run)
	return h
}

func (h *handoff) track(m *Track) error {
	h.messages <- &jsonTrack{"track", string(uuid.Append(nil)), FormatTime(time.Now()), m.UserId, m.Event, m.Properties}
	return nil
}

func (h *handoff) run() {
	var batch []byte
	n := 0
	for m := range h.messages {
		text, err := json.Marshal(m)
		if err != nil {
			panic(err)
		}
		batch = append(append(batch, text...), ',')
		if n++; n == 250 {
			h.done.Go(func() { post(batch) })
			batch, n = make([]byte, 0, len(batch)), 0
		}
	}
	post(batch)
}

// close waits until all messages are posted.
func (h *handoff) close() error {
	close(h.messages)
	h.done.Wait()
	return nil
}

// post posts a batch to a transport that discards it.
func post(batch []byte) {
	req, err := http.NewRequest("POST", "http://localhost/", bytes.NewReader(batch))
	if err != nil {
		panic(err)
	}
	discard{}.RoundTrip(req)
}
