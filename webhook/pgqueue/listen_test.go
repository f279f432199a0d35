//go:build unix

package pgqueue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
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
