package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/signature/inbox"
	"github.com/hookferry/analytics/signature/receivertest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(receiverEnv); text != "" {
		runReceiver(text)
	}
	os.Exit(m.Run())
}

// runReceiver is the process of receiverProcess. It runs until it is killed.
func runReceiver(text string) {
	fields := strings.SplitN(text, " ", 3)
	for _, d := range databases {
		if d.name == fields[0] {
			l := testkit.Must(net.Listen("tcp", "127.0.0.1:"+fields[1]))
			fmt.Println("listening")
			panic(http.Serve(l, d.receiver(fields[2], nil)))
		}
	}
}

// Each database, as the database of a receiver, passes all checks.
func TestReceivers(t *testing.T) {
	for _, d := range databases {
		t.Run(d.name, func(t *testing.T) {
			url := d.start(t)
			db := d.open(t, url)
			var failing atomic.Bool
			open := func() http.Handler {
				return d.receiver(url, func(signature.Event) error {
					if failing.Load() {
						return errors.New("the effect fails")
					}
					return nil
				})
			}
			receivertest.Run(t, open(), receivertest.Config{
				Scheme: signature.StandardWebhooks, Secrets: []signature.Secret{secret}, Batches: true,
				Restart: open, Fail: failing.Store,
				Applied: func(ctx context.Context, e signature.Event) (n int, err error) {
					err = db.QueryRowContext(ctx, "SELECT count(*) FROM effects WHERE id = '"+e.ID+"'").Scan(&n)
					return n, err
				},
			})
			t.Run("64 at once, the first of which fails", func(t *testing.T) { testAtOnce(t, d, url) })
			t.Run("killed", func(t *testing.T) { testKilled(t, d, url, db) })
			t.Run("old ids", func(t *testing.T) { testOldIDs(t, d, url, db) })
		})
	}
}

// post signs an event and sends it with a function.
func post(id string, send func(*http.Request) (int, error)) (int, error) {
	const body = `{"type":"test.order.paid","timestamp":"2026-01-31T12:00:00.000Z","data":{"price":19.5}}`
	now := time.Now()
	r := httptest.NewRequest(http.MethodPost, "/hook", strings.NewReader(body))
	r.Header.Set(signature.StandardID, id)
	r.Header.Set(signature.StandardTimestamp, strconv.FormatInt(now.Unix(), 10))
	r.Header.Set(signature.StandardSignature, testkit.Must(signature.SignStandard([]byte(body), id, now, secret)))
	return send(r)
}

func call(h http.Handler) func(*http.Request) (int, error) {
	return func(r *http.Request) (int, error) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, nil
	}
}

// testAtOnce sends one event 64 times at once. The first calls of the function fail while the
// others wait for their transactions. No other request fails. If the waiting transactions
// deadlocked, one would.
func testAtOnce(t *testing.T, d database, url string) {
	const failures = 3
	var calls atomic.Int32
	h := d.receiver(url, func(signature.Event) error {
		if calls.Add(1) <= failures {
			time.Sleep(50 * time.Millisecond) // lets others wait for the row
			return errors.New("the effect fails")
		}
		return nil
	})
	var statuses [600]atomic.Int32
	var sent sync.WaitGroup
	for range 64 {
		sent.Go(func() {
			status, _ := post("at-once", call(h))
			statuses[status].Add(1)
		})
	}
	sent.Wait()
	if good, failed, down := statuses[204].Load(), statuses[500].Load(), statuses[503].Load(); good != 64-failures || failed != failures || calls.Load() != failures+1 {
		t.Errorf("of 64 requests %d were answered 204, %d 500 and %d 503, after %d calls; want %d, %d, 0 and %d", good, failed, down, calls.Load(), 64-failures, failures, failures+1)
	}
}

// testKilled sends events from 64 goroutines to a process that is killed again and again. Each event
// is sent by two of them at the same time, until it is accepted.
func testKilled(t *testing.T, d database, url string, db *sql.DB) {
	length, events := time.Duration(0), int64(150)
	if soakenv.On() {
		length, _ = soakenv.Long(t, "inbox")
		events = 1 << 40
	}
	port := testkit.Port(t)
	start := func() *testkit.Child {
		c := testkit.KillAtEnd(t, d.receiverProcess(url, port))
		if _, err := c.Await(listening); err != nil {
			t.Fatal(err)
		}
		return c
	}
	child := start()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 20 * time.Second}
	defer client.CloseIdleConnections()
	send := func(r *http.Request) (int, error) {
		r.RequestURI, r.URL.Scheme, r.URL.Host = "", "http", fmt.Sprint("127.0.0.1:", port)
		response, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, response.Body)
		return response.StatusCode, err
	}
	end := time.Now().Add(length)
	var next, again atomic.Int64
	var accepted sync.Map // has the ids
	var answers atomic.Int64
	var senders sync.WaitGroup
	for range 64 {
		senders.Go(func() {
			for n := next.Add(1); n <= 2*events && (!soakenv.On() || time.Now().Before(end)); n = next.Add(1) {
				id := fmt.Sprint("killed-", (n+1)/2)
				for {
					status, err := post(id, send)
					if err == nil && status == http.StatusNoContent {
						break
					}
					if again.Add(1); err == nil && status < 500 {
						t.Errorf("answered %d, want 204 or 503", status)
						return
					}
					time.Sleep(5 * time.Millisecond) // the process is not there
				}
				accepted.Store(id, true)
				answers.Add(1)
			}
		})
	}
	done := make(chan struct{})
	go func() { senders.Wait(); close(done) }()
	kills := 0
	for running := true; running; {
		before := answers.Load()
		testkit.Until(t, "more events are accepted", func() bool {
			select {
			case <-done:
				running = false
			default:
			}
			return !running || answers.Load() > before+50+rand.Int64N(50)
		})
		if running {
			kills++
			child.Kill()
			child = start()
		}
	}
	lost, twice, applied := 0, 0, effects(t, db)
	for id := range accepted.Range {
		if applied[id.(string)] == 0 {
			lost++
		}
	}
	for _, n := range applied {
		if n > 1 {
			twice++
		}
	}
	t.Logf("%d events applied, %d answers, %d attempts failed, %d kills: %d lost, %d applied twice", len(applied), answers.Load(), again.Load(), kills, lost, twice)
	if lost > 0 || twice > 0 || kills == 0 {
		t.Errorf("%d events are lost, and %d were applied twice, want none, after %d kills; want some", lost, twice, kills)
	}
}

var listening = regexp.MustCompile(`(listening)\n`)

// testOldIDs checks that old ids are removed by an index.
func testOldIDs(t *testing.T, d database, url string, db *sql.DB) {
	ctx := t.Context()
	if _, err := db.ExecContext(ctx, "UPDATE "+inbox.DefaultTable+" SET received = 1"); err != nil {
		t.Fatal(err)
	}
	h := d.receiver(url, nil)
	for i := range 201 {
		if status, _ := post(fmt.Sprint("new-", i), call(h)); status != http.StatusNoContent {
			t.Fatalf("event %d: answered %d, want 204", i, status)
		}
	}
	var before, now int
	if err := db.QueryRowContext(ctx, "SELECT count(*), sum(CASE WHEN received = 1 THEN 1 ELSE 0 END) FROM "+inbox.DefaultTable).Scan(&now, &before); err != nil {
		t.Fatal(err)
	}
	if before > 0 || now != 201 {
		t.Errorf("%d ids are there, %d of them old, want 201 and none", now, before)
	}
}

// BenchmarkInbox measures events a second with 64 requests at once, with an inbox and without.
func BenchmarkInbox(b *testing.B) {
	for _, d := range databases {
		url := d.start(b)
		d.open(b, url)
		for _, kind := range []struct {
			name string
			h    http.Handler
		}{{"plain", d.plain(url)}, {"inbox", d.receiver(url, nil)}} {
			send := call(kind.h)
			b.Run("database="+d.name+"/receiver="+kind.name, func(b *testing.B) {
				var sent atomic.Int64
				var senders sync.WaitGroup
				run := rand.Uint64()
				b.ResetTimer()
				for range 64 {
					senders.Go(func() {
						for n := sent.Add(1); n <= int64(b.N); n = sent.Add(1) {
							if status, _ := post(fmt.Sprintf("%x-%d", run, n), send); status != http.StatusNoContent {
								b.Errorf("answered %d, want 204", status)
							}
						}
					})
				}
				senders.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}
