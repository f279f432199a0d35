//go:build unix

package pgqueue

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A count that takes long is made again after twenty times as long. A quick one is made
// each time.
func TestMemo(t *testing.T) {
	for _, c := range []struct {
		name   string
		chunks int
		want   []int // the answers at once, just before twenty seconds, and then
	}{
		{"few", manyChunks - 1, []int{1, 2, 3}},
		{"many", manyChunks, []int{1, 1, 2}},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemo[int]()
			asked := 0
			get := func() int {
				n, err := m.get(t.Context(), func() (int, int, error) {
					asked++
					time.Sleep(time.Second)
					return asked, c.chunks, nil
				})
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			got := []int{get()}
			time.Sleep(19 * time.Second)
			got = append(got, get())
			time.Sleep(2 * time.Second)
			got = append(got, get())
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("%s: the answers are %v, want %v", c.name, got, c.want)
					break
				}
			}
		})
	}
}

// A call during another one's count waits for that count, as long as its context lasts.
func TestMemoAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemo[int]()
		asked := 0
		get := func(ctx context.Context) (int, error) {
			return m.get(ctx, func() (int, int, error) {
				asked++
				time.Sleep(time.Minute)
				return 7, manyChunks, nil
			})
		}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if n, err := get(t.Context()); n != 7 || err != nil {
					t.Errorf("get = %d, %v, want 7", n, err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := get(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("get with a second while another asks for a minute = %v", err)
		}
		wg.Wait()
		if asked != 1 {
			t.Errorf("the database was asked %d times", asked)
		}
	})
}
