package boltqueue

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/webhook"
)

// Check reads all of the file and returns what is wrong with it, an ErrDamaged
// that wraps each finding, or nil. What is stored meanwhile is in the journal alone,
// which is not looked at, and takes no more than it has room for.
func (q *Queue) Check(ctx context.Context) error {
	if err := q.enter(ctx); err != nil {
		return err
	}
	defer q.calls.Done()
	var found []error
	r := &request{alone: true, work: func(e *edit, _ *request) error {
		f, err := os.Open(q.path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := walk(f, true, nil); err != nil {
			found = append(found, err)
			return errAlone
		}
		for err := range e.tx.Check() {
			found = append(found, err)
		}
		if len(found) == 0 {
			found = checkRows(e.tx, q.base, nil)
		}
		return errAlone
	}}
	if err := q.do(ctx, r); err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("%w: %s: %w", ErrDamaged, q.path, errors.Join(found...))
	}
	return nil
}

// checkRows reads every row, and compares how many there are with what the
// store believes. If p ends it, what it found means nothing.
func checkRows(tx *bolt.Tx, want counts, p *reading) (found []error) {
	var waiting, dead uint64
	say := func(bucket, key []byte, err error) {
		found = append(found, fmt.Errorf("%s %x: %w", bucket, key, err))
	}
	left := tx.Bucket(bucketLeft)
	tx.Bucket(bucketBlocks).ForEach(func(k, v []byte) error {
		mask := ^uint64(0)
		if m := left.Get(k); m != nil {
			mask = generation(m)
		}
		err := entries(v, func(i int, _ uint64, row []byte) error {
			if mask&(1<<i) == 0 {
				return nil
			}
			waiting++
			return unseal(row, new(webhook.Delivery))
		})
		if err != nil {
			say(bucketBlocks, k, err)
		}
		return p.step(len(k) + len(v))
	})
	left.ForEach(func(k, _ []byte) error {
		if tx.Bucket(bucketBlocks).Get(k) == nil {
			say(bucketLeft, k, errors.New("there is no such block"))
		}
		return nil
	})
	numbers := map[string]string{}
	tx.Bucket(bucketLanes).ForEach(func(k, v []byte) error {
		numbers[string(v)] = string(k)
		return nil
	})
	tx.Bucket(bucketWaiting).ForEach(func(k, v []byte) error {
		waiting++
		if len(k) != waitingKeyLen {
			say(bucketWaiting, k, errRow)
			return nil
		}
		var d webhook.Delivery
		if err := unseal(v, &d); err != nil {
			say(bucketWaiting, k, err)
		} else if numbers[string(k[4:8])] != d.Destination {
			say(bucketWaiting, k, errors.New("it is in another's lane"))
		}
		return p.step(len(k) + len(v))
	})
	found = append(found, checkDirectories(tx)...)
	tx.Bucket(bucketDead).ForEach(func(k, v []byte) error {
		dead++
		if err := unseal(v, new(webhook.DeadLetter)); err != nil {
			say(bucketDead, k, err)
		}
		return p.step(len(k) + len(v))
	})
	tx.Bucket(bucketDamaged).ForEach(func(k, _ []byte) error {
		say(bucketDamaged, k, errRow)
		return nil
	})
	if waiting != want.waiting || dead != want.dead {
		found = append(found, fmt.Errorf("%d deliveries and %d dead letters, not %d and %d", waiting, dead, want.waiting, want.dead))
	}
	return found
}

// checkDirectories compares what the directories of the segments say with the rows
// of waiting.
func checkDirectories(tx *bolt.Tx) (found []error) {
	say := func(segment, lane uint32, format string, a ...any) {
		found = append(found, fmt.Errorf("%s %d: lane %d: %s", bucketSegments, segment, lane, fmt.Sprintf(format, a...)))
	}
	c := tx.Bucket(bucketWaiting).Cursor()
	k, _ := c.First()
	// undeclared passes over the rows before a part.
	undeclared := func(segment, lane uint32) {
		for ; len(k) == waitingKeyLen; k, _ = c.Next() {
			s, l, _ := readWaitingKey(k)
			if s > segment || s == segment && l >= lane {
				return
			}
			say(s, l, "a row that is not in the directory")
		}
	}
	tx.Bucket(bucketSegments).ForEach(func(key, v []byte) error {
		var d directory
		if err := unseal(v, &d); err != nil || len(key) != 4 {
			found = append(found, fmt.Errorf("%s %x: %w", bucketSegments, key, errRow))
			return nil
		}
		number := binary.BigEndian.Uint32(key)
		for _, p := range d {
			undeclared(number, p.lane)
			rows := int64(0)
			for ; len(k) == waitingKeyLen; k, _ = c.Next() {
				s, l, o := readWaitingKey(k)
				if s != number || l != p.lane {
					break
				}
				if rows++; o.Before(p.first) {
					say(s, l, "a row before the first")
				}
			}
			if rows != p.rows {
				say(number, p.lane, "%d rows, not %d", rows, p.rows)
			}
		}
		return nil
	})
	undeclared(math.MaxUint32, math.MaxUint32)
	return found
}
