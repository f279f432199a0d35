package webhook

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/store"
)

// A Forwarder accepts events, keeps them in a Store, and delivers them to the endpoints of their
// destinations while Run runs. Its methods may be called concurrently.
//
//	put ──▶ store ──▶ fetcher ──▶ scheduler ──▶ workers ──▶ settler ──▶ store
type Forwarder struct {
	config    Config
	directory directory
	recorder  recorder
	pauses    *pauses
	schedule  *scheduler
	fetcher   *fetcher
	settler   *settler
	clients   *clients
	workers   sync.WaitGroup // the workers, and the requests that outlast their attempt

	open          context.Context    // done after Shutdown: nothing more is accepted
	close         context.CancelFunc // ends open
	attempts      context.Context    // parent of every request
	abortAttempts context.CancelCauseFunc
	running       atomic.Bool   // Run was called
	ended         chan struct{} // closed at the end of Run
}

// New returns a Forwarder, which delivers nothing until Run is called, or *ConfigErrors.
func New(c Config) (*Forwarder, error) {
	c, wrong := c.withDefaults()
	f := &Forwarder{config: c, ended: make(chan struct{})}
	f.open, f.close = context.WithCancel(context.Background())
	f.attempts, f.abortAttempts = context.WithCancelCause(context.Background())
	f.directory = directory{
		config: &f.config, static: make(map[string]*target), tenants: make(map[string][]Destination),
		nothing: &target{limits: schedule.Limits{Slots: c.MaxConcurrent, Window: c.Window}},
	}
	f.recorder.config = &f.config
	f.recorder.failures = slices.ContainsFunc(c.Observers, func(o Observer) bool { _, ok := o.(FailureObserver); return ok })
	f.directory.answers.config = &f.config
	f.clients = newClients(&f.config, f.attempts)
	for i := range c.Destinations {
		d, field := c.Destinations[i], fmt.Sprintf("Destinations[%d]", i)
		d.Filter = Filter{Include: slices.Clone(d.Filter.Include), Exclude: slices.Clone(d.Filter.Exclude)}
		d.Trusted = true
		t, faults := makeTarget(&d, &f.config, nil)
		wrong = append(wrong, faults.Under(field)...)
		wrong.Refuse(f.directory.static[d.ID] != nil, field+".ID", "%q is given twice", d.ID)
		f.directory.static[d.ID] = t
		f.directory.tenants[d.Tenant] = append(f.directory.tenants[d.Tenant], d)
	}
	if wrong != nil {
		wrong.Sort(c)
		return nil, configError(wrong)
	}
	worker := worker{
		config: &f.config, directory: &f.directory, recorder: &f.recorder,
		senders: newSenders(f.clients), attempts: f.attempts, requests: &f.workers,
	}
	news := store.NewSignal()
	f.schedule = schedule.New[laneState, *Delivery](schedule.Config{
		Slots:  c.MaxInFlight,
		Bytes:  c.MaxBytesInFlight,
		Window: c.Window,
		Start:  func() { w := worker; f.workers.Go(w.run) },
		Wake:   news.Set,
		Now:    c.Store.Now,
		Jitter: jitter,
	}, batchPart)
	f.directory.schedule = f.schedule
	f.settler = &settler{config: &f.config, recorder: &f.recorder, schedule: f.schedule, wake: news, news: store.NewSignal()}
	f.pauses = &pauses{config: &f.config, directory: &f.directory, schedule: f.schedule, settler: f.settler}
	f.fetcher = &fetcher{config: &f.config, pauses: f.pauses, schedule: f.schedule, settler: f.settler, workers: &f.workers, news: news}
	worker.schedule, worker.settler, worker.pauses = f.schedule, f.settler, f.pauses
	return f, nil
}

// Run delivers until ctx is done or Shutdown is called. Then it sends the batches that wait for more
// deliveries, as far as slots are free, and waits for the attempts in flight, each for at most
// Config.Timeout. It stores their outcomes, and returns nil. It returns an error if
// the store was closed too early, or could not store the last outcomes. Run may be called only
// once. After Shutdown it returns nil.
func (f *Forwarder) Run(ctx context.Context) error {
	if !f.running.CompareAndSwap(false, true) {
		return errors.New("webhook: Run was called before")
	}
	defer close(f.ended)
	defer f.fetcher.moved.Store(math.MaxInt64) // see present
	if f.open.Err() != nil {                   // after Shutdown
		return nil
	}
	defer f.clients.close()
	defer f.abortAttempts(nil)

	// The settler stops last.
	drained := make(chan struct{})
	settled := make(chan error, 1)
	go func() { settled <- f.settler.run(context.WithoutCancel(ctx), drained) }() // ends below

	fetching, stopFetching := context.WithCancel(ctx)
	defer stopFetching()
	defer context.AfterFunc(f.open, stopFetching)()
	var sweeping sync.WaitGroup
	sweeper := &sweeper{config: &f.config, recorder: &f.recorder}
	trimmer := &trimmer{config: &f.config, schedule: f.schedule, settler: f.settler, sweeper: sweeper}
	sweeping.Go(func() { sweeper.run(fetching) })
	sweeping.Go(func() { trimmer.run(fetching) })
	sweeping.Go(func() { f.directory.follow(fetching) })
	shared, isShared := f.config.Store.(store.Shared)
	if isShared {
		f.fetcher.moved.Store(time.Now().UnixNano())
		shared.Present(f.fetcher.present)
	}
	err := f.fetcher.run(fetching)
	stopFetching()
	sweeping.Wait()

	// Give back the deliveries that are not being attempted, so that other nodes can take them.
	f.fetcher.drain(f.attempts)
	if isShared {
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.config.Timeout)
		if err := shared.Release(releasing); err != nil && !errors.Is(err, ErrClosed) {
			f.config.Logger.Warn("webhook: could not give deliveries back to the store; other processes get them when this one exits", "error", err)
		}
		cancel()
	}
	f.workers.Wait()
	close(drained)
	if failed := <-settled; failed != nil && err == nil {
		err = fmt.Errorf("webhook: storing the last outcomes: %w", failed)
	}
	return err
}

// Shutdown ends the forwarder: Forward accepts nothing more, and Run stops. It returns when Run has
// returned. If ctx is done before that, it cuts off the attempts in flight, which may be repeated
// after the next start, and returns the error of ctx. It may be called again.
func (f *Forwarder) Shutdown(ctx context.Context) error {
	f.close()
	if !f.running.Load() {
		return nil
	}
	select {
	case <-f.ended:
	case <-ctx.Done():
	}
	select {
	case <-f.ended:
		return nil
	default:
		f.abortAttempts(errors.New("webhook: stopped"))
		return ctx.Err()
	}
}
