package simulation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/random"
	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/internal/testkit/memdb"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/signature/inbox"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// An exchange is a world with one sender of events, and two receivers on one database that get all of
// them at the same time. Both ends crash, and answers get lost.
type exchange struct {
	w         *world
	db        *memdb.DB
	receivers []*inboxReceiver
	plant     func(*memdb.Client) inbox.DB[*memdb.Tx] // what an Inbox gets as its database
}

var exchangeSecret = signature.Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")

// Whatever crashes, each event that the sender has accepted is applied exactly once, and every
// other event at most once.
func TestInboxAppliesOnce(t *testing.T) {
	onOneCore(t)
	for seed := range soakenv.Seeds(t, 200) {
		if err := simulateExchange(t, seed, sound); err != nil {
			t.Errorf("go run ./soak inbox-simulation -seed %d\n%v", seed, err)
		}
	}
}

func sound(c *memdb.Client) inbox.DB[*memdb.Tx] { return c }

// The simulation finds faults of an Inbox or its database.
func TestPlantedFaultsOfInboxAreFound(t *testing.T) {
	onOneCore(t)
	for _, tt := range []struct {
		name  string
		plant func(*faultyDB)
	}{
		{"a failed commit is taken for done", func(f *faultyDB) {
			f.commit = func(ctx context.Context, tx *memdb.Tx) error { _ = f.Client.Commit(ctx, tx); return nil }
		}},
		{"ids are not recorded", func(f *faultyDB) {
			f.exec = func(context.Context, *memdb.Tx, string, ...any) (int64, error) { return 1, nil }
		}},
		{"an id is recorded in a transaction of its own", func(f *faultyDB) {
			f.exec = func(ctx context.Context, _ *memdb.Tx, statement string, args ...any) (int64, error) {
				own, err := f.Client.Begin(ctx)
				if err != nil {
					return 0, err
				}
				n, err := f.Client.Exec(ctx, own, statement, args...)
				return n, errors.Join(err, f.Client.Commit(ctx, own))
			}
		}},
		{"a transaction does not see that another one has the id", func(f *faultyDB) {
			f.exec = func(ctx context.Context, tx *memdb.Tx, statement string, args ...any) (int64, error) {
				if _, there := f.db.Rows()[args[0].(string)]; there {
					return 0, nil
				}
				_, err := f.Client.Exec(ctx, tx, statement, args...)
				return 1, err
			}
		}},
		{"an id that cannot be recorded is taken for one that is there", func(f *faultyDB) {
			f.exec = func(ctx context.Context, tx *memdb.Tx, statement string, args ...any) (int64, error) {
				n, _ := f.Client.Exec(ctx, tx, statement, args...)
				return n, nil
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plant := func(c *memdb.Client) inbox.DB[*memdb.Tx] {
				f := &faultyDB{Client: c, exec: c.Exec, commit: c.Commit}
				tt.plant(f)
				return f
			}
			const seeds = 100 // far more than any of the faults needs
			for seed := range uint64(seeds) {
				if simulateExchange(t, seed+1, plant) != nil {
					return
				}
			}
			t.Errorf("%d seeds did not find the fault, want at least one that does", seeds)
		})
	}
}

// A faultyDB is a client of a database, in which exec and commit replace two methods.
type faultyDB struct {
	*memdb.Client
	db     *memdb.DB
	exec   func(context.Context, *memdb.Tx, string, ...any) (int64, error)
	commit func(context.Context, *memdb.Tx) error
}

func (f *faultyDB) Commit(ctx context.Context, tx *memdb.Tx) error { return f.commit(ctx, tx) }
func (f *faultyDB) Exec(ctx context.Context, tx *memdb.Tx, statement string, args ...any) (int64, error) {
	return f.exec(ctx, tx, statement, args...)
}

// simulateExchange runs a seed in a bubble.
func simulateExchange(t *testing.T, seed uint64, plant func(*memdb.Client) inbox.DB[*memdb.Tx]) (err error) {
	t.Helper()
	collect()
	synctest.Test(t, func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, seed)
		w := &world{t: t, seed: seed, ledger: newLedger(), orders: newOrders(), open: open, capacity: diskSize}
		w.rnd, w.turns = w.random("world"), newTurns(w.random("turns"))
		defer w.turns.close()
		w.useDisk(simdisk.New(seed))
		w.network = webhooktest.NewNetwork()
		defer w.network.Close()
		defer random.Replace(locked(w.random("service")))()
		x := &exchange{w: w, db: memdb.New(), plant: plant}
		d := webhook.Destination{ID: "shop", StandardSecrets: []signature.Secret{exchangeSecret}}
		for i := range 2 {
			r := &inboxReceiver{x: x, name: fmt.Sprint("r", i), rnd: w.random(fmt.Sprint("receiver", i)), faults: true}
			r.start()
			url := "http://" + r.name + ".example/hook"
			w.network.Receiver(url, "", webhooktest.Do(r.answer))
			d.Endpoints = append(d.Endpoints, webhook.Endpoint{URL: url})
			x.receivers = append(x.receivers, r)
		}
		w.destinations = []webhook.Destination{d}
		err = errors.Join(x.run(), w.stop())
	})
	return err
}

// run sends some events, and restarts the sender now and then. Then it ends all faults, and checks
// how often each event was applied.
func (x *exchange) run() error {
	w := x.w
	if err := w.start(); err != nil {
		return err
	}
	want := map[string]bool{} // whether the sender has accepted it
	for i := range 5 {
		id := fmt.Sprint("event-", i)
		err := w.server.Load().forwarder.Forward(context.Background(), "shop", &analytics.Track{UserId: "u", Event: "e", MessageId: id})
		want[id] = err == nil
		time.Sleep(time.Duration(w.rnd.Int64N(int64(4 * time.Second))))
		w.turns.wait("event")
		switch w.rnd.IntN(4) {
		case 0:
			w.disk.Crash()
			if err := w.restart(simdisk.Loss(w.rnd.IntN(2))); err != nil {
				return err
			}
		case 1:
			x.receivers[w.rnd.IntN(len(x.receivers))].kill()
		}
	}
	for _, r := range x.receivers {
		r.heal()
	}
	for begin := time.Now(); ; {
		time.Sleep(time.Minute)
		w.turns.wait("count")
		counts, err := w.server.Load().store.Count(context.Background())
		if err != nil {
			return err
		}
		if counts.Waiting == 0 {
			break
		}
		if time.Since(begin) > time.Hour {
			return fmt.Errorf("%d deliveries still wait", counts.Waiting)
		}
	}
	time.Sleep(time.Minute) // transactions of senders that gave up end
	for id, accepted := range want {
		if n := x.db.Applied(id); n > 1 || n == 0 && accepted {
			return fmt.Errorf("%s was applied %d times; it was accepted: %t", id, n, accepted)
		}
	}
	return nil
}

// An inboxReceiver is a process that receives events, and starts again after it has ended.
type inboxReceiver struct {
	x    *exchange
	name string

	mu     sync.Mutex
	rnd    *rand.Rand
	faults bool
	box    http.Handler
	client *memdb.Client
	killed bool
}

// start starts a process. The caller holds r.mu, or is alone.
func (r *inboxReceiver) start() {
	client := r.x.db.Client()
	client.Fault = func(operation, id string, after bool) error { return r.fault(client, operation, id, after) }
	db := r.x.plant(client)
	if f, ok := db.(*faultyDB); ok {
		f.db = r.x.db
	}
	c := inbox.Config{Dialect: inbox.PostgreSQL, Scheme: signature.StandardWebhooks, Secrets: []signature.Secret{exchangeSecret}}
	r.box = testkit.Must(inbox.New(db, c, func(_ context.Context, tx *memdb.Tx, e signature.Event) error { return tx.Apply(e.ID) }))
	r.client, r.killed = client, false
}

func (r *inboxReceiver) heal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = false
}

// kill ends the process.
func (r *inboxReceiver) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.client.Kill()
	r.killed = true
}

// fault is the Fault of a client of the database.
func (r *inboxReceiver) fault(c *memdb.Client, operation, id string, after bool) error {
	r.x.w.turns.wait("%s %s %s, after %t", r.name, operation, id, after)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.faults || r.client != c {
		return nil
	}
	switch r.rnd.IntN(16) {
	case 0:
		c.Kill()
		r.killed = true
	case 1:
		return errors.New("the database fails")
	}
	return nil
}

// answer handles a request, if the process does not end before its answer.
func (r *inboxReceiver) answer(q *webhooktest.Request) step.Step {
	r.x.w.turns.wait("answer %s %s", r.name, q.Header.Get(signature.StandardID))
	r.mu.Lock()
	if r.killed && (!r.faults || r.rnd.IntN(2) == 0) {
		r.start()
	}
	box, client, down := r.box, r.client, r.killed
	r.mu.Unlock()
	if down {
		return step.Close()
	}
	request := httptest.NewRequest(http.MethodPost, "/hook", bytes.NewReader(q.Body))
	request.Header = q.Header.Clone()
	response := httptest.NewRecorder()
	box.ServeHTTP(response, request)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch lost := r.faults && r.rnd.IntN(4) == 0; {
	case lost || r.killed || r.client != client:
		return step.Close()
	case r.faults && r.rnd.IntN(8) == 0:
		return step.Answer(response.Code).After(6 * time.Second) // too late for the sender
	}
	return step.Answer(response.Code)
}
