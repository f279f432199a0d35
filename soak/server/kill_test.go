package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

// TestKill runs the server under load from a client, kills it with SIGKILL at random moments, and
// starts it again on the same data. Every call that was answered with 200 must arrive. Only calls
// that were in flight at a kill may arrive twice.
func TestKill(t *testing.T) {
	length, seed := soakenv.Long(t, "kill")
	const secret = "s3cret"
	random := newDice(seed)

	arrived := newArrivals(secret, random)
	receiver := httptest.NewServer(arrived)
	defer receiver.Close()
	address, data := freeAddress(t), t.TempDir()
	launches := 0
	launch := func() *testkit.Child {
		launches++
		cmd := hookferry(t, "serve", "--listen", address, "--admin-listen", "127.0.0.1:0", "--data", data,
			"--write-key", "key", "--webhook", receiver.URL, "--header", fmt.Sprintf("%s: %d", launchHeader, launches))
		cmd.Env = []string{"HOOKFERRY_SECRET=" + secret}
		c, _ := start(t, cmd, listening)
		return c
	}
	server := launch()

	var mu sync.Mutex
	acknowledged := map[string]bool{}
	client := analytics.New("key")
	client.Endpoint = "http://" + address
	client.OnDelivery = func(d analytics.Delivery) {
		mu.Lock()
		defer mu.Unlock()
		for message, err := range d.Messages() {
			var m struct{ MessageID string }
			if uerr := json.Unmarshal(message, &m); uerr != nil {
				t.Error(uerr)
			}
			if err != nil {
				t.Errorf("OnDelivery of message %s = %v, want nil", m.MessageID, err)
			}
			acknowledged[m.MessageID] = true
		}
	}
	load, unload := context.WithCancel(t.Context())
	var loading sync.WaitGroup
	for worker := range 4 {
		loading.Go(func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for n := 0; load.Err() == nil; n++ {
				err := client.Track(&analytics.Track{UserId: strconv.Itoa(worker), Event: "Killed", Properties: map[string]any{"n": n}})
				if err != nil {
					t.Errorf("Track = %v, want nil", err)
					return
				}
				<-tick.C
			}
		})
	}

	slowest := watchSync(t)
	killed := map[int]time.Time{} // the time of the kill, by launch
	for end := time.Now().Add(length); len(killed) == 0 || time.Now().Before(end); {
		pause(t, random.below(2*time.Second))
		killed[launches] = time.Now()
		server.Kill()
		server = launch()
	}
	unload()
	loading.Wait()
	if err := client.Shutdown(t.Context()); err != nil {
		t.Fatalf("Shutdown of the client = %v, want nil", err)
	}
	if len(acknowledged) < 100 {
		t.Fatalf("got %d acknowledged calls, want at least 100", len(acknowledged))
	}
	until(t, "acknowledged calls that have arrived", len(acknowledged), func() (int, error) { return arrived.of(acknowledged), nil })
	stop(t, server)
	// A settlement is durable at the latest with the commit after the one in progress. A commit
	// takes two syncs. They take milliseconds, unless other processes keep the disk or the
	// processors busy.
	arrived.check(t, acknowledged, killed, time.Second+4*slowest())
}

// watchSync syncs a file again and again until ended is called. ended returns the longest time that
// a sync took.
func watchSync(t *testing.T) (ended func() time.Duration) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "synced"))
	if err != nil {
		t.Fatal(err)
	}
	stop, most := make(chan struct{}), make(chan time.Duration, 1)
	go func() { // ended by stop, or with the test
		defer file.Close()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for longest := time.Duration(0); ; {
			select {
			case at := <-tick.C:
				if _, err := file.WriteAt([]byte{1}, 0); err != nil {
					t.Error(err)
				}
				if err := file.Sync(); err != nil {
					t.Error(err)
				}
				longest = max(longest, time.Since(at))
			case <-stop:
				most <- longest
				return
			case <-t.Context().Done():
				return
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-most
	}
}

// launchHeader tells the receiver which launch of the server sent a webhook.
const launchHeader = "X-Launch"

type arrival struct {
	launch   int
	came     time.Time
	answered time.Time // zero: not yet
}

// arrivals is a receiver that records which message arrives when. Its answers take a moment, so
// that deliveries are in flight whenever the server dies.
type arrivals struct {
	http.Handler
	random *dice

	mu       sync.Mutex
	byID     map[string][]*arrival
	problems []string
}

func newArrivals(secret signature.Secret, random *dice) *arrivals {
	a := &arrivals{byID: map[string][]*arrival{}, random: random}
	a.Handler = &signature.Handler{Secrets: []signature.Secret{secret}, Next: http.HandlerFunc(a.take)}
	return a
}

func (a *arrivals) take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var m struct{ MessageID string }
	if err == nil {
		err = json.Unmarshal(body, &m)
	}
	launch, lerr := strconv.Atoi(r.Header.Get(launchHeader))
	this := &arrival{launch: launch, came: time.Now()}
	a.mu.Lock()
	if err != nil || lerr != nil || m.MessageID == "" {
		a.problems = append(a.problems, fmt.Sprintf("bad webhook %q: %v, %v", body, err, lerr))
	}
	a.byID[m.MessageID] = append(a.byID[m.MessageID], this)
	a.mu.Unlock()
	select {
	case <-time.After(a.random.below(5 * time.Millisecond)):
		a.mu.Lock()
		this.answered = time.Now()
		a.mu.Unlock()
	case <-r.Context().Done():
	}
}

// of returns how many of ids have arrived.
func (a *arrivals) of(ids map[string]bool) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id := range ids {
		if len(a.byID[id]) > 0 {
			n++
		}
	}
	return n
}

// check checks the messages that arrived more than once. The server may repeat a message that it
// was delivering when it was killed. It may also repeat one that it had delivered but not yet
// recorded: recording takes at most recorded.
func (a *arrivals) check(t *testing.T, acknowledged map[string]bool, killed map[int]time.Time, recorded time.Duration) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.problems {
		t.Error(p)
	}
	delivering, unrecorded := map[int]int{}, map[int]int{} // by launch
	for id, as := range a.byID {
		if !acknowledged[id] {
			t.Errorf("message %q arrived, but was never acknowledged", id)
		}
		for i, again := range as[1:] {
			first := as[i]
			switch lived := killed[first.launch].Sub(first.answered); {
			case first.launch == again.launch:
				t.Errorf("message %s arrived twice from launch %d, want once: again %v after the first, which was answered after %v",
					id, first.launch, again.came.Sub(first.came), first.answered.Sub(first.came))
			case first.answered.IsZero():
				delivering[first.launch]++
			case lived > recorded:
				t.Errorf("message %s arrived again, although launch %d lived for %v after its answer, longer than the %v to record it", id, first.launch, lived, recorded)
			default:
				unrecorded[first.launch]++
			}
		}
	}
	for launch, n := range delivering {
		if n > webhook.DefaultMaxConcurrent {
			t.Errorf("launch %d was delivering %d messages, want at most %d", launch, n, webhook.DefaultMaxConcurrent)
		}
	}
	t.Logf("%d calls acknowledged, %d arrived, %d kills; arrived again, by launch: delivering %v, not yet recorded %v",
		len(acknowledged), len(a.byID), len(killed), delivering, unrecorded)
}
