package filequeue

import (
	"context"
	"errors"
	"fmt"
)

// Erase implements store.Inspector. It overwrites the bodies and the attempts of the user's
// deliveries with zeros, in all segments, even if the deliveries have left the store. It replaces
// the tables of the history that have deliveries of the user. It leaves claimed deliveries as they
// are, and counts them. It returns once the zeros are on the disk and the old tables are removed.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("filequeue: erasure without a user")
	}
	if err := s.gate.Enter(ctx); err != nil {
		return 0, 0, err
	}
	defer s.gate.Leave()
	e := eraser{store: s, ctx: ctx, user: user, puts: make(map[uint64]bool)}
	if err := s.janitor.hold(ctx); err != nil {
		return 0, 0, err
	}
	defer s.janitor.resume()
	if err = e.each(e.find); err == nil {
		err = e.remove()
	}
	if err == nil {
		err = e.each(e.blank)
	}
	if err == nil {
		var cut int
		cut, err = s.janitor.cut(ctx, func(t *table) (map[uint64]bool, error) { return t.ofUser(user, s.reader.skip) })
		e.erased += cut
	}
	if err != nil {
		err = fmt.Errorf("filequeue: %w", err)
	}
	return e.erased, len(e.claimed), err
}
