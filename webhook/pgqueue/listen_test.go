//go:build unix

package pgqueue

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hookferry/analytics/webhook/store"
)

// A connection that listens and gets nothing is tested, and given up if it does not get the
// notification that was sent to it.
func TestDeafConnectionIsNoticed(t *testing.T) {
	for _, tt := range []struct {
		name           string
		echoed, broken bool // the notification arrives; the database does not answer
		every          time.Duration
		want           error
		after          time.Duration
		echoes         int
	}{
		{"half open", false, false, 0, errDeaf, 2 * silence, 1},
		{"open", true, false, 0, context.Canceled, time.Hour + time.Second, 360},
		{"busy", false, false, silence / 2, context.Canceled, time.Hour + time.Second, 0},
		{"database away", false, true, 0, context.Canceled, time.Hour + time.Second, 360},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &listener{memory: newMemory(nil)}
				background, stop := context.WithCancel(t.Context())
				time.AfterFunc(time.Hour+time.Second, stop)
				arrived := make(chan *pgconn.Notification, 1)
				wait := func(ctx context.Context) (*pgconn.Notification, error) {
					var regular <-chan time.Time // never, without every
					if tt.every > 0 {
						regular = time.After(tt.every)
					}
					select {
					case n := <-arrived:
						return n, nil
					case <-regular:
						return &pgconn.Notification{Payload: "1 61"}, nil
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}
				began, echoes := time.Now(), 0
				err := l.heed(background, wait, func(context.Context) error {
					echoes++
					if tt.echoed {
						arrived <- &pgconn.Notification{}
					}
					if tt.broken {
						return errors.New("no answer")
					}
					return nil
				})
				if took := time.Since(began); !errors.Is(err, tt.want) || took != tt.after || echoes != tt.echoes {
					t.Errorf("heed = %v after %v and %d echoes; want %v after %v and %d", err, took, echoes, tt.want, tt.after, tt.echoes)
				}
			})
		})
	}
}

// What a transaction put while nobody listened, and left to others to release, is released once somebody
// listens, and not only at the next poll.
func TestListeningReleasesWhatIsOwed(t *testing.T) {
	s := openWith(t, Config{Schema: schemaOf(t.TempDir()), NoListen: true})
	defer s.Close()
	s.abandon() // its releaser looks at the beginning
	if err := putTx(t, s, pgx.RepeatableRead, keyed("crm", "k", 0, 1)...).Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.memory.hearAny()
	if ds, err := s.Fetch(t.Context(), []store.Want{{Destination: "crm", Max: 1}}, 1<<20, nil); len(ds) > 0 || err != nil {
		t.Fatalf("Fetch = %v, %v; want nothing before it is released", ds, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { (&listener{db: s.db, memory: s.memory, maintainer: s.maintainer}).listen(ctx) })
	<-s.claimer.owed
	stop()
	running.Wait()
	s.claimer.owed.Set()
	ctx, stop = context.WithCancel(t.Context())
	running.Go(func() { (&releaser{maintainer: s.maintainer}).run(ctx) })
	settleAll(t, s, store.Done, fetchUntil(t, s, 1, "crm"))
	stop()
	running.Wait()
}
