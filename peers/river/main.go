//go:build unix

// Command river compares a webhook.Forwarder on pgqueue with a worker of River that uses a
// plain http.Client. Both deliver the same webhooks, in one run on the same PostgreSQL server.
//
//	cd peers/river; GOWORK=off go run .
//
// Rounds alternate between the two and a bare http.Transport. The table shows medians.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/pgtest"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/pgqueue"
)

const (
	secret       = "shh"
	concurrency  = 64 // requests at once
	destinations = 10
	batch        = 100 // events of a call
	producers    = 4
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "receive" {
		receive()
		return
	}
	n := flag.Int("n", 20_000, "events of a measurement")
	rounds := flag.Int("rounds", 3, "measurements of each kind")
	flag.Parse()
	if err := run(context.Background(), *n, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "river:", err)
		os.Exit(1)
	}
}

// receive runs the receiver in a process of its own. The receiver answers 200 to every
// request, until its standard input ends.
func receive() {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	fmt.Println(s.URL)
	io.Copy(io.Discard, os.Stdin)
}

func run(ctx context.Context, n, rounds int) error {
	receiver := exec.Command(os.Args[0], "receive")
	in, err := receiver.StdinPipe()
	if err != nil {
		return err
	}
	out, err := receiver.StdoutPipe()
	if err != nil {
		return err
	}
	if err := receiver.Start(); err != nil {
		return err
	}
	defer receiver.Wait()
	defer in.Close()
	line := make([]byte, 100)
	k, err := out.Read(line)
	if err != nil {
		return err
	}
	url := strings.TrimSpace(string(line[:k]))
	db, err := pgtest.Start()
	if err != nil {
		return err
	}
	defer db.Close()
	pool, err := pgxpool.New(ctx, db.URL()+" pool_max_conns=10")
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	body := []byte(`{"type":"track","userId":"user-1","event":"Order Completed","properties":{"note":"` + strings.Repeat("x", 366) + `"}}`)
	kinds := []struct {
		name    string
		measure func(context.Context, *pgxpool.Pool, string, []byte, int) (time.Duration, error)
	}{{"bare `http.Transport`", bare}, {"Hookferry on `pgqueue`", hookferry}, {"River, `http.Client`", riverJobs}}
	rates := make([][]float64, len(kinds))
	for range rounds {
		for i, kind := range kinds {
			took, err := kind.measure(ctx, pool, url, body, n)
			if err != nil {
				return fmt.Errorf("%s: %w", kind.name, err)
			}
			rates[i] = append(rates[i], float64(n)/took.Seconds())
		}
	}
	fmt.Println("| | deliveries/s | to the bare requests |\n|---|---|---|")
	median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	for i, kind := range kinds {
		fmt.Printf("| %s | %.0f | %.2f x |\n", kind.name, median(rates[i]), median(rates[i])/median(rates[0]))
	}
	return nil
}

// post is one signed request.
func post(ctx context.Context, client *http.Client, url string, body []byte) error {
	sign, err := signature.Sign(body, secret)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(signature.Header, sign)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("answered %s", resp.Status)
	}
	return nil
}

func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: concurrency}, Timeout: 10 * time.Second}
}

func bare(ctx context.Context, _ *pgxpool.Pool, url string, body []byte, n int) (time.Duration, error) {
	client := newClient()
	defer client.CloseIdleConnections()
	var left atomic.Int64
	var failed atomic.Value
	left.Store(int64(n))
	began := time.Now()
	var wg sync.WaitGroup
	for range concurrency {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := post(ctx, client, url, body); err != nil {
					failed.Store(err)
				}
			}
		})
	}
	wg.Wait()
	err, _ := failed.Load().(error)
	return time.Since(began), err
}

// produce calls put for n events, batch by batch, from several goroutines.
func produce(n int, put func(first int) error) error {
	var next atomic.Int64
	var failed atomic.Value
	var wg sync.WaitGroup
	for range producers {
		wg.Go(func() {
			for {
				first := int(next.Add(batch)) - batch
				if first >= n {
					return
				}
				if err := put(first); err != nil {
					failed.Store(err)
					return
				}
			}
		})
	}
	wg.Wait()
	err, _ := failed.Load().(error)
	return err
}

func hookferry(ctx context.Context, pool *pgxpool.Pool, url string, body []byte, n int) (time.Duration, error) {
	store, err := pgqueue.Open(ctx, pool, pgqueue.Config{Schema: "hookferry"})
	if err != nil {
		return 0, err
	}
	defer store.Close()
	config := webhook.Config{Store: store, MaxInFlight: concurrency, Logger: slog.New(slog.DiscardHandler)}
	for i := range destinations {
		config.Destinations = append(config.Destinations, webhook.Destination{ID: fmt.Sprint("d", i), Secret: secret, Endpoints: []webhook.Endpoint{{URL: url}}})
	}
	f, err := webhook.New(config)
	if err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }() // ended below
	round := time.Now().UnixNano()
	began := time.Now()
	if err := produce(n, func(first int) error {
		events := make([]event.Event, batch)
		for i := range events {
			events[i] = event.Event{ID: fmt.Sprint(round, "-", first+i), Type: "track", Body: body, Received: time.Now()}
		}
		return f.ForwardEvents(ctx, []string{fmt.Sprint("d", first/batch%destinations)}, events...)
	}); err != nil {
		return 0, err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for int(f.Stats().Delivered) < n {
		<-tick.C
	}
	took := time.Since(began)
	if err := f.Shutdown(ctx); err != nil {
		return 0, err
	}
	return took, <-ended
}

// A delivery is a job of River.
type delivery struct {
	URL  string `json:"url"`
	Body string `json:"body"`
}

func (delivery) Kind() string { return "delivery" }

type worker struct {
	river.WorkerDefaults[delivery]
	client *http.Client
	left   *atomic.Int64
	done   chan struct{}
}

func (w *worker) Work(ctx context.Context, job *river.Job[delivery]) error {
	if err := post(ctx, w.client, job.Args.URL, []byte(job.Args.Body)); err != nil {
		return err
	}
	if w.left.Add(-1) == 0 {
		close(w.done)
	}
	return nil
}

// riverJobs delivers n jobs with River. It changes only two of River's defaults: the number of
// workers, and the time between two fetches, which it sets to the shortest that River allows.
func riverJobs(ctx context.Context, pool *pgxpool.Pool, url string, body []byte, n int) (time.Duration, error) {
	w := &worker{client: newClient(), left: new(atomic.Int64), done: make(chan struct{})}
	defer w.client.CloseIdleConnections()
	w.left.Store(int64(n))
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: concurrency}},
		FetchCooldown: time.Millisecond, FetchPollInterval: 100 * time.Millisecond,
		Workers: workers, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return 0, err
	}
	if err := client.Start(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := produce(n, func(int) error {
		jobs := make([]river.InsertManyParams, batch)
		for i := range jobs {
			jobs[i].Args = delivery{url, string(body)}
		}
		_, err := client.InsertManyFast(ctx, jobs)
		return err
	}); err != nil {
		return 0, err
	}
	<-w.done
	took := time.Since(began)
	if err := client.Stop(ctx); err != nil {
		return 0, err
	}
	_, err = pool.Exec(ctx, "TRUNCATE river_job")
	return took, err
}
