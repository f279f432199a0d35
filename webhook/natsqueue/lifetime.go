package natsqueue

import (
	"context"
	"fmt"
	"iter"
	"sync"

	"github.com/hookferry/analytics/webhook/store"
)

// A lifetime ends with Close. It has the goroutines and the open calls of a Store, which Close waits
// for.
type lifetime struct {
	ctx        context.Context // ends when the goroutines are to end
	end        context.CancelFunc
	goroutines sync.WaitGroup
	calls      store.Gate
}

// call runs f as a call of the Store, for which Close waits. It adds to the error what f does.
func call[T any](ctx context.Context, s *lifetime, what string, f func() (T, error)) (result T, err error) {
	if err := s.calls.Enter(ctx); err != nil {
		return result, err
	}
	defer s.calls.Leave()
	if result, err = f(); err != nil {
		err = fmt.Errorf("natsqueue: %s: %w", what, err)
	}
	return result, err
}

// page returns a sequence of the elements that the function read returns. Each loop over the
// sequence calls read once.
func page[T any](ctx context.Context, s *lifetime, what string, read func() ([]T, error)) iter.Seq2[T, error] {
	return store.Page(func() ([]T, error) { return call(ctx, s, what, read) })
}
