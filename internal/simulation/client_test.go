package simulation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hookferry/analytics"
)

// A sender is a program that tracks messages. It uses one client after another. Either all of them
// have the same spool, or none has one.
type sender struct {
	w    *world
	name string
	dir  string // the folder of the spool; empty if there is no spool
	rnd  *rand.Rand

	mu         sync.Mutex // not held during a wait, which would stop the clock of the bubble
	restarting bool       // the previous client has ended and the next one has not started
	client     *analytics.Client
	link       *link
	clients    int      // how many clients were started
	sent       []string // ids of the messages that the current client accepted
}

func newSender(w *world, name string, spooled bool) *sender {
	s := &sender{w: w, name: name, rnd: w.random(name)}
	if spooled {
		s.dir = filepath.Join(w.t.TempDir(), name)
	}
	s.startClient()
	return s
}

func (s *sender) startClient() {
	s.clients++
	s.sent = nil
	s.link = &link{w: s.w, name: s.name, rnd: s.w.random(fmt.Sprint(s.name, s.clients))}
	s.client = analytics.New("key")
	s.client.Endpoint = "http://collector.example"
	s.client.Transport = s.link
	s.client.FlushAt = 1 + s.rnd.IntN(10)
	s.client.SpoolDir = s.dir
	s.client.OnDelivery = s.onDelivery
	s.client.Logger = slog.New(slog.DiscardHandler)
}

// onDelivery tells the ledger that the messages which a client has dropped may be lost. It ignores
// messages dropped at the end of a process: crash and drain handle these.
func (s *sender) onDelivery(d analytics.Delivery) {
	if d.Reason == "" || d.Reason == analytics.ReasonShutdown {
		return
	}
	var ids []string
	for message := range d.Messages() {
		ids = append(ids, idOf(message))
	}
	s.w.ledger.allowLoss(ids, string(d.Reason))
}

func idOf(message []byte) string {
	var m struct {
		MessageID string `json:"messageId"`
	}
	if err := json.Unmarshal(message, &m); err != nil {
		panic(err)
	}
	return m.MessageID
}

// run tracks messages until ctx ends.
func (s *sender) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		id := fmt.Sprintf("%s-%d", s.name, n)
		s.w.turns.wait("track %s", id)
		s.mu.Lock()
		if !s.restarting {
			track := &analytics.Track{AnonymousId: "anonymous", Event: "Tick", MessageId: id,
				Properties: map[string]any{"text": string(bytes.Repeat([]byte("x"), s.rnd.IntN(2000)))}}
			if s.rnd.IntN(3) == 0 { // with the user id as key, its deliveries have an order
				track.UserId = fmt.Sprint("user-", s.rnd.IntN(3))
			}
			err := s.client.Track(track)
			if err == nil {
				s.sent = append(s.sent, id)
				s.w.ledger.track(id, "")
			}
		}
		wait := time.Duration(s.rnd.ExpFloat64() * float64(s.w.meanWait))
		s.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// crash ends the client as if its process ended, and starts another one. A client without a spool
// loses the messages in its memory.
func (s *sender) crash() error {
	s.mu.Lock()
	s.restarting = true
	s.mu.Unlock()
	s.w.turns.wait("crash %s", s.name)
	s.link.cut()
	if s.dir == "" {
		s.w.ledger.allowLoss(s.sent, "the process of a client without a spool ended")
	} else {
		s.w.turns.wait("copy the spool of %s", s.name) // so that no file changes during the copy
		next := filepath.Join(s.w.t.TempDir(), fmt.Sprint(s.name, "-", s.clients))
		if err := os.CopyFS(next, os.DirFS(s.dir)); err != nil {
			return err
		}
		s.dir = next
	}
	if err := s.shutdown(0); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startClient()
	s.restarting = false
	return nil
}

// drain sends the remaining messages. A client that cannot reach the collector leaves them in the
// spool, so drain tries again with further clients.
func (s *sender) drain() error {
	for range 10 {
		_ = s.client.Flush(context.Background()) // opens the spool; its error is that of Shutdown
		err := s.client.Shutdown(context.Background())
		if err == nil || s.dir == "" {
			return nil // onDelivery has allowed the loss of dropped messages
		}
		time.Sleep(time.Minute)
		s.startClient()
	}
	return fmt.Errorf("%s cannot send the messages in its spool", s.name)
}

// shutdown ends the client. The client may use the timeout to send its messages.
func (s *sender) shutdown(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var undelivered *analytics.UndeliveredError
	if err := s.client.Shutdown(ctx); err != nil && !errors.As(err, &undelivered) {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// A link is a client's connection to the collector.
type link struct {
	w    *world
	name string
	mu   sync.Mutex
	rnd  *rand.Rand
	off  bool
}

var errNetwork = errors.New("simulation: the network fails")

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.off = true
}

// draw returns how long a request takes, and whether it and its answer arrive.
func (l *link) draw() (delay time.Duration, request, answer bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delay = time.Duration(l.rnd.Int64N(int64(200 * time.Millisecond)))
	bad := l.w.networkFails.Load()
	return delay, !l.off && !(bad && l.rnd.IntN(2) == 0), !(bad && l.rnd.IntN(2) == 0)
}

func (l *link) RoundTrip(r *http.Request) (*http.Response, error) {
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	key := digest(body)
	l.w.turns.wait("upload %s %s", l.name, key)
	delay, request, answer := l.draw()
	time.Sleep(delay)
	l.w.turns.wait("arrive %s %s", l.name, key)
	server := l.w.server.Load()
	if !request || server == nil {
		return nil, errNetwork
	}
	r = r.Clone(context.WithoutCancel(r.Context()))
	r.Body = io.NopCloser(bytes.NewReader(body))
	rec := httptest.NewRecorder()
	server.handler.ServeHTTP(rec, r)
	l.w.turns.wait("result %s %s %d", l.name, key, rec.Code)
	if rec.Code == http.StatusOK {
		l.w.ledger.accept(acknowledged(body, rec.Body.Bytes()))
	}
	if !answer {
		return nil, errNetwork
	}
	return rec.Result(), nil
}

// acknowledged returns the ids of the calls of a batch that the collector has accepted.
func acknowledged(request, answer []byte) (ids []string) {
	var batch struct {
		Batch []struct {
			MessageID string `json:"messageId"`
		} `json:"batch"`
	}
	var result struct {
		Rejected []struct {
			Index int `json:"index"`
		} `json:"rejected"`
	}
	if err := errors.Join(json.Unmarshal(request, &batch), json.Unmarshal(answer, &result)); err != nil {
		panic(err)
	}
	rejected := make(map[int]bool)
	for _, r := range result.Rejected {
		rejected[r.Index] = true
	}
	for i, call := range batch.Batch {
		if !rejected[i] {
			ids = append(ids, call.MessageID)
		}
	}
	return ids
}
