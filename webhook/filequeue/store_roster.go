package filequeue

import (
	"bytes"
	"context"
	"iter"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/webhook/store"
)

// UpdateAudience implements audience.Roster. It calls f with an audience's record and members in one
// transaction, and stores the record if f changes it.
func (s *Store) UpdateAudience(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	return s.roster.run(ctx, (*bolt.DB).Update, func(tx *bolt.Tx) error {
		a, err := tx.CreateBucketIfNotExists([]byte(id))
		if err != nil {
			return err
		}
		members, err := a.CreateBucketIfNotExists(bucketMembers)
		if err != nil {
			return err
		}
		var rec audience.Record
		before := a.Get(rowRecord)
		if before != nil {
			if err := rec.UnmarshalBinary(before); err != nil {
				return err
			}
		}
		if err := f(&rec, rows{members}); err != nil {
			return err
		}
		after, err := rec.AppendBinary(nil)
		if err != nil || bytes.Equal(after, before) {
			return err
		}
		return a.Put(rowRecord, after)
	})
}

// Members implements audience.Roster.
func (s *Store) Members(ctx context.Context, id string) iter.Seq2[string, error] {
	return store.Pages("", func(after string) (users []string, last string, err error) {
		err = s.roster.run(ctx, (*bolt.DB).View, func(tx *bolt.Tx) error {
			if a := tx.Bucket([]byte(id)); a != nil {
				next, _ := rows{a.Bucket(bucketMembers)}.Next(after, page)
				for _, m := range next {
					users, last = append(users, m.User), m.User
				}
			}
			return nil
		})
		return users, last, err
	})
}

// Audiences implements audience.Roster.
func (s *Store) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return store.Pages("", func(after string) (all []audience.Entry, last string, err error) {
		err = s.roster.run(ctx, (*bolt.DB).View, func(tx *bolt.Tx) error {
			for id := range following(tx.Cursor(), after) {
				if len(all) == page {
					break
				}
				var rec audience.Record
				if err := rec.UnmarshalBinary(tx.Bucket(id).Get(rowRecord)); err != nil {
					return err
				}
				last = string(id)
				all = append(all, audience.Entry{ID: last, Name: rec.Name, Generation: rec.Generation})
			}
			return nil
		})
		return all, last, err
	})
}
