package client_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/soakenv"
)

// Environment variables with the settings of the process that the test kills.
const (
	killEndpoint = "CLIENT_SOAK_ENDPOINT"
	killFolder   = "CLIENT_SOAK_FOLDER"
	killFirst    = "CLIENT_SOAK_FIRST" // the number of its first message
	killNotes    = "CLIENT_SOAK_NOTES" // the file with the number of its last accepted message
)

// trackChild tracks numbered messages until it is killed. After each call has returned, it writes
// the number of its message to a file.
func trackChild() error {
	first, err := strconv.Atoi(os.Getenv(killFirst))
	if err != nil {
		return err
	}
	notes, err := os.OpenFile(os.Getenv(killNotes), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	c := analytics.New("k")
	c.Endpoint, c.SpoolDir = os.Getenv(killEndpoint), os.Getenv(killFolder)
	for n := first; ; n++ {
		for err = analytics.ErrQueueFull; err == analytics.ErrQueueFull; {
			err = c.Track(&analytics.Track{UserId: "u", Event: strconv.Itoa(n)})
		}
		if err != nil {
			return err
		}
		if _, err := notes.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(n)), 0); err != nil {
			return err
		}
		if n == first {
			fmt.Println("tracking")
		}
	}
}

// A ticker is a collector that records which numbered messages have arrived. It answers every third
// request with 503.
type ticker struct {
	mu       sync.Mutex
	requests int
	seen     []bool
	twice    int
}

func (k *ticker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.requests++; k.requests%3 == 0 || err != nil { // the process was killed while it sent the body
		w.WriteHeader(503)
		return
	}
	for {
		_, rest, ok := bytes.Cut(body, []byte(`"event":"`))
		if !ok {
			return
		}
		digits, rest, _ := bytes.Cut(rest, []byte(`"`))
		body = rest
		n, err := strconv.Atoi(string(digits))
		if err != nil {
			w.WriteHeader(400)
			return
		}
		for len(k.seen) <= n {
			k.seen = append(k.seen, false)
		}
		if k.seen[n] {
			k.twice++
		}
		k.seen[n] = true
	}
}

// TestKill starts processes that track, one after the other with the same spool folder, and kills
// each at a random moment. Every message whose call has returned arrives.
func TestKill(t *testing.T) {
	length, seed := soakenv.Long(t, "client-kill")
	random := rand.New(rand.NewPCG(seed, 0))
	k := new(ticker)
	server := httptest.NewServer(k)
	defer server.Close()
	dir, notes := t.TempDir(), filepath.Join(t.TempDir(), "notes")
	if err := os.WriteFile(notes, make([]byte, 8), 0o600); err != nil {
		t.Fatal(err)
	}
	next, rounds := 1, 0
	for end := time.Now().Add(length); time.Now().Before(end); rounds++ {
		child := start(t, "track", killEndpoint+"="+server.URL, killFolder+"="+dir, killNotes+"="+notes, killFirst+"="+strconv.Itoa(next))
		if _, err := child.Await(regexp.MustCompile("tracking\n")); err != nil {
			t.Fatal(err)
		}
		select {
		case <-time.After(time.Duration(random.Int64N(int64(40 * time.Millisecond)))):
			child.Kill()
		case <-child.Exited():
			t.Fatalf("the process ended by itself, want it to run until it is killed: %s", child.Output())
		}
		text, err := os.ReadFile(notes)
		if err != nil {
			t.Fatal(err)
		}
		next = int(binary.LittleEndian.Uint64(text)) + 1
	}
	c := analytics.New("k")
	c.Endpoint, c.SpoolDir = server.URL, dir
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	lost := 0
	for n := 1; n < next; n++ {
		if n >= len(k.seen) || !k.seen[n] {
			lost++
		}
	}
	if s := c.Stats(); lost > 0 || next <= rounds || !sums(s) {
		t.Errorf("%d of %d messages lost in %d kills, Stats() = %+v; want 0 lost, a message per kill, and counters that agree", lost, next-1, rounds, s)
	}
	t.Logf("%d kills: %d messages accepted, %d found by the last client, %d arrived twice", rounds, next-1, c.Stats().Recovered, k.twice)
}
