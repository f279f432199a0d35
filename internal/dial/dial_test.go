package dial

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// manyAddresses is a name with several addresses, none of which answers.
type manyAddresses struct {
	ips    []netip.Addr
	refuse bool // they refuse connections

	mu                    sync.Mutex
	dialed, inFlight, max int
}

func (m *manyAddresses) lookup(context.Context, string, string) ([]netip.Addr, error) {
	return slices.Clone(m.ips), nil
}

func (m *manyAddresses) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	m.mu.Lock()
	m.dialed++
	m.inFlight++
	m.max = max(m.max, m.inFlight)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.inFlight--
		m.mu.Unlock()
	}()
	if m.refuse {
		return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("refused by %v", netip.MustParseAddrPort(addr).Addr())}
	}
	<-ctx.Done()
	return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
}

// If no address answers, the error is that of the first address. A dial that ends late leaves no
// connection open. The number of dials is bounded, however many addresses a name has.
func TestDialOfSeveralAddressesIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := &manyAddresses{refuse: true}
		for i := range 200 {
			host.ips = append(host.ips, netip.AddrFrom4([4]byte{1, 1, 1, byte(i)}))
		}
		d := &Dialer{Lookup: host.lookup, Connect: host.connect}
		_, err := d.Dial(t.Context(), "tcp", "crm.example:80", nil)
		if want := "dial tcp: refused by " + host.ips[0].String(); err == nil || err.Error() != want {
			t.Errorf("dial = %v, want %s", err, want)
		}
		if n := host.dialed; n != maxAddresses {
			t.Errorf("dial of 200 addresses: %d dialed, want %d", n, maxAddresses)
		}

		// All hang: the dial ends at its deadline.
		host.refuse, host.dialed = false, 0
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := d.Dial(ctx, "tcp", "crm.example:80", nil); err == nil || time.Since(start) != time.Second {
			t.Errorf("dial = %v after %v, want an error after 1s", err, time.Since(start))
		}
		if n := host.dialed; n != maxAddresses || host.max > maxDials {
			t.Errorf("dial of 200 addresses that hang: %d dialed, %d at once, want %d and at most %d", n, host.max, maxAddresses, maxDials)
		}

		// The first address answers, but too late.
		var closed int
		d.Connect = func(ctx context.Context, _, addr string) (net.Conn, error) {
			if netip.MustParseAddrPort(addr).Addr() == host.ips[0] {
				<-ctx.Done()
			} else {
				time.Sleep(time.Millisecond)
			}
			c, _ := net.Pipe()
			return &countedConn{c, &closed}, nil
		}
		host.ips = host.ips[:2]
		c, err := d.Dial(t.Context(), "tcp", "other.example:80", nil)
		if err != nil {
			t.Fatal(err)
		}
		if closed != 1 {
			t.Errorf("%d connections closed, want 1: the one that is not used", closed)
		}
		c.Close()

		for i := range 2 * maxAnswered {
			d.remember(fmt.Sprintf("h%d.example:80", i), host.ips[0])
		}
		if n := len(d.answered); n != maxAnswered {
			t.Errorf("the addresses of %d hosts are remembered, want %d", n, maxAnswered)
		}
	})
}

type countedConn struct {
	net.Conn
	closed *int
}

func (c *countedConn) Close() error {
	*c.closed++
	return c.Conn.Close()
}
