package boltqueue

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

// SetPaused implements webhook.Pauses.
func (q *Queue) SetPaused(ctx context.Context, destination string, paused bool) error {
	if err := q.enter(ctx); err != nil {
		return err
	}
	defer q.calls.Done()
	if n := len(destination); n < 1 || n > 255 {
		return fmt.Errorf("boltqueue: destination of %d bytes, not 1 to 255", n)
	}
	return q.do(ctx, &request{work: func(e *edit, _ *request) error {
		b, name := e.bucket(bucketPauses), []byte(destination)
		switch {
		case !paused:
			return b.Delete(name)
		case b.Get(name) != nil:
			return nil
		}
		return b.Put(name, numberKey(uint64(time.Now().UnixMicro())))
	}})
}

// Paused implements webhook.Pauses.
func (q *Queue) Paused(ctx context.Context) (map[string]time.Time, error) {
	paused := make(map[string]time.Time)
	err := q.view(ctx, func(tx *bolt.Tx) error {
		return tx.Bucket(bucketPauses).ForEach(func(name, since []byte) error {
			if len(since) != 8 {
				return fmt.Errorf("%w: a pause", errRow)
			}
			paused[string(name)] = time.UnixMicro(int64(binary.BigEndian.Uint64(since))).UTC()
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return paused, nil
}
