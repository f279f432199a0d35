package natsqueue

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// A link leads the routes that one server of a cluster makes to another. While it is
// cut nothing passes, and nobody is told: connections stay open, and what was sent
// arrives once it is whole again, as over a network that is away for a while.
type link struct {
	ln   net.Listener
	gate sync.RWMutex // locked while the link is cut
	wg   sync.WaitGroup

	mu    sync.Mutex
	to    string // where the server listens, once it does
	conns []net.Conn
}

// newLink listens until the test ends, which it does after the cleanups that are
// registered later.
func newLink(t testing.TB) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{ln: ln}
	l.wg.Go(l.accept)
	t.Cleanup(func() {
		ln.Close()
		l.mu.Lock()
		for _, c := range l.conns {
			c.Close()
		}
		l.mu.Unlock()
		l.wg.Wait()
	})
	return l
}

// lead has what connects from now on led to an address.
func (l *link) lead(to string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = to
}

func (l *link) accept() {
	for {
		near, err := l.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			continue
		}
		l.mu.Lock()
		to := l.to
		l.mu.Unlock()
		far, err := net.Dial("tcp", to)
		if err != nil { // the server is not up, and will be asked for again
			near.Close()
			continue
		}
		l.mu.Lock()
		l.conns = append(l.conns, near, far)
		l.mu.Unlock()
		l.wg.Go(func() { l.pass(far, near) })
		l.wg.Go(func() { l.pass(near, far) })
	}
}

// pass passes on what it reads.
func (l *link) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	io.Copy(gated{to, &l.gate}, from)
}

// A gated writer waits while the gate is locked.
type gated struct {
	w    io.Writer
	gate *sync.RWMutex
}

func (g gated) Write(b []byte) (int, error) {
	g.gate.RLock()
	defer g.gate.RUnlock()
	return g.w.Write(b)
}
