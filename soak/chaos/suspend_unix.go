//go:build unix

package chaos

import (
	"syscall"
	"testing"
	"time"
)

// Suspend suspends one node after the other, each for d, and lets it run for as long afterwards.
// It ends after the given length, when each node was suspended. The receiver takes a while for each
// delivery, so that a backlog grows. A suspended node loses its claims to the others, and must
// notice that when it continues.
func Suspend(t *testing.T, store Store, address string, length time.Duration, seed uint64, takes, d time.Duration) {
	run(t, store, []string{address}, seed, takes, func(nodes []*node, _ func(int)) int {
		for _, n := range nodes {
			<-n.open
		}
		suspended := 0
		for end := time.Now().Add(length); suspended < nodeCount || time.Now().Before(end); suspended++ {
			p := nodes[suspended%nodeCount].cmd.Process
			wait(t.Context(), d)
			if err := p.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			wait(t.Context(), d)
			if err := p.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}
		wait(t.Context(), d)
		return suspended
	})
}
