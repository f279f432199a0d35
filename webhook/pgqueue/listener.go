package pgqueue

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A listener receives notifications of other nodes.
type listener struct {
	db         *database
	memory     *memory
	maintainer *maintainer
}

// owing is the sender of notifications that a transaction has added to the table owed.
const owing = "-1"

// listen receives notifications until the Store is closed. It reconnects after an error.
func (l *listener) listen(ctx context.Context) {
	for ctx.Err() == nil {
		l.maintainer.ran(ctx, listening, "this node finds the deliveries of other nodes later, within Config.Poll; look up the error", l.receive(ctx))
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// listening is the maintenance step that receives notifications.
const listening = "listen"

// receive receives notifications until an error.
func (l *listener) receive(background context.Context) error {
	pooled, err := l.db.pool.Acquire(background)
	if err != nil {
		return err
	}
	conn := pooled.Hijack() // a connection that listens must not go back to the pool
	defer func() {
		ctx, cancel := context.WithTimeout(background, time.Second) // the server may not answer
		defer cancel()
		conn.Close(ctx)
	}()
	ctx, cancel := context.WithTimeout(background, writeTimeout)
	defer cancel()
	own := fmt.Sprintf("%s_%016x", l.db.channel, rand.Uint64())
	if _, err := conn.Exec(ctx, "LISTEN "+l.db.channel+"; LISTEN "+own, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	l.maintainer.ran(background, listening, "", nil)
	l.memory.hearAny() // earlier notifications were missed
	l.maintainer.claimer.owed.Set()
	return l.heed(background, conn.WaitForNotification, func(ctx context.Context) error {
		_, err := l.db.pool.Exec(ctx, "SELECT pg_notify($1, '')", own)
		return err
	})
}

// silence is how long a connection that listens may be silent before it is tested.
const silence = 10 * time.Second

var errDeaf = errors.New("the connection that listens does not get a notification that was sent to it")

// heed hears of the destinations in the notifications that wait returns, until an error. A connection
// may look open although the server or the network has dropped it, or lead to a server that is not the
// one that the pool writes to. So after a silence, echo sends a notification to this connection.
func (l *listener) heed(background context.Context, wait func(context.Context) (*pgconn.Notification, error), echo func(context.Context) error) error {
	for asked := false; ; {
		ctx, cancel := context.WithTimeout(background, silence)
		n, err := wait(ctx)
		late := ctx.Err() != nil && background.Err() == nil
		cancel()
		switch {
		case err == nil:
			asked = false
			sender, name, _ := strings.Cut(n.Payload, " ")
			if sender == owing {
				l.maintainer.claimer.owed.Set()
			}
			destination, err := hex.DecodeString(name)
			if err == nil && 0 < len(destination) && len(destination) <= 255 && sender != strconv.FormatInt(l.memory.nodeNow(), 10) {
				l.memory.hear(string(destination))
			}
		case !late:
			return err
		case asked:
			return errDeaf
		default:
			ctx, cancel := context.WithTimeout(background, silence)
			asked = echo(ctx) == nil // otherwise the database does not answer, as heartbeats say
			cancel()
		}
	}
}
