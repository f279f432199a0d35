package webhook

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

	"github.com/hookferry/analytics/internal/dial"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// manyAddresses is a name with several addresses, of which only live answers.
type manyAddresses struct {
	network *webhooktest.Network
	ips     []netip.Addr // that the name resolves to
	live    netip.Addr
	refuse  bool // the others refuse connections; otherwise they do not answer

	mu            sync.Mutex
	dialed        []netip.Addr
	inFlight, max int
}

func (m *manyAddresses) lookup(context.Context, string, string) ([]netip.Addr, error) {
	return slices.Clone(m.ips), nil
}

func (m *manyAddresses) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	ip := netip.MustParseAddrPort(addr).Addr()
	m.mu.Lock()
	m.dialed = append(m.dialed, ip)
	m.inFlight++
	m.max = max(m.max, m.inFlight)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.inFlight--
		m.mu.Unlock()
	}()
	switch {
	case ip == m.live:
		return m.network.DialContext(ctx, network, "crm.example:80")
	case m.refuse:
		return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("refused by %v", ip)}
	}
	<-ctx.Done()
	return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
}

// took returns the addresses dialed since the last call.
func (m *manyAddresses) took() []netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.dialed
	m.dialed = nil
	return d
}

func addresses(ss ...string) []netip.Addr {
	var ips []netip.Addr
	for _, s := range ss {
		ips = append(ips, netip.MustParseAddr(s))
	}
	return ips
}

// manyV4 returns n public addresses, the last of which is 8.8.8.8.
func manyV4(n int) []netip.Addr {
	var ips []netip.Addr
	for i := range n - 1 {
		ips = append(ips, netip.AddrFrom4([4]byte{1, 1, 1, byte(i)}))
	}
	return append(ips, netip.MustParseAddr("8.8.8.8"))
}

// Of several addresses only the last one answers. The first attempt reaches it within a short
// timeout, and the next connection goes to it first, for five minutes.
func TestAddressesShareTheTimeOfAnAttempt(t *testing.T) {
	for _, tt := range []struct {
		name   string
		refuse bool
		ips    []netip.Addr
		order  []netip.Addr // of the dials; nil: that of ips
	}{
		{"two", false, addresses("1.1.1.1", "8.8.8.8"), nil},
		{"two that refuse", true, addresses("1.1.1.1", "1.0.0.1", "8.8.8.8"), nil},
		{"many", false, manyV4(32), nil},
		{"many that refuse", true, manyV4(32), nil},
		{"families in turn", false, addresses("2606:4700::1", "2606:4700::2", "2606:4700::3", "8.8.8.8"), addresses("2606:4700::1", "8.8.8.8")},
		{"not public", false, addresses("10.0.0.1", "169.254.169.254", "1.1.1.1", "8.8.8.8"), addresses("1.1.1.1", "8.8.8.8")},
	} {
		synctest.Test(t, func(t *testing.T) {
			network := webhooktest.NewNetwork()
			defer network.Close()
			recv := network.Receiver("http://crm.example/", "")
			live := netip.MustParseAddr("8.8.8.8")
			host := &manyAddresses{network: network, ips: tt.ips, live: live, refuse: tt.refuse}
			g := &guard{dialer: dial.Dialer{Lookup: host.lookup, Connect: host.connect}}
			config := &Config{ServiceName: "Test", Timeout: time.Second, MaxInFlight: 1, MaxConcurrent: 1}
			to, err := compile(&Destination{ID: "crm", Endpoints: []Endpoint{{URL: "http://crm.example/hook"}}}, config, nil)
			must(t, err)
			attempt := func() {
				t.Helper()
				c := newClient(config, g, t.Context())
				defer c.Close()
				s := &sender{clients: &clients{c, c}}
				for range 2 { // the second on the kept connection
					if res := s.send(t.Context(), &Delivery{ID: "m1", Body: []byte("{}")}, to.endpoints[0]); res.outcome != OutcomeDelivered {
						t.Errorf("%s: send = %+v, want it delivered", tt.name, res.attempt)
					}
				}
			}
			order := tt.order
			if order == nil {
				order = tt.ips
			}
			attempt()
			if got := host.took(); !slices.Equal(got, order) {
				t.Errorf("%s: the first attempt dialed %v, want %v", tt.name, got, order)
			}
			time.Sleep(5*time.Minute - 2*time.Second)
			attempt()
			if got := host.took(); !slices.Equal(got, order[len(order)-1:]) {
				t.Errorf("%s: the next connection dialed %v, want the address that answered", tt.name, got)
			}
			time.Sleep(2 * time.Second)
			attempt()
			if got := host.took(); !slices.Equal(got, order) {
				t.Errorf("%s: after five minutes the attempt dialed %v, want %v", tt.name, got, order)
			}
			if host.max > 4 {
				t.Errorf("%s: %d dials were in flight at once, want at most 4", tt.name, host.max)
			}
			if n := len(recv.Requests()); n != 6 {
				t.Errorf("%s: the receiver got %d requests, want 6", tt.name, n)
			}
		})
	}
}

// The guard dials an address that answered before only if the name still resolves to it, and only
// if it allows it.
func TestAnAddressThatAnsweredIsCheckedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := webhooktest.NewNetwork()
		defer network.Close()
		network.Receiver("http://crm.example/", "")
		ips := addresses("1.1.1.1", "10.0.0.1")
		host := &manyAddresses{network: network, ips: ips, live: ips[1]}
		g := &guard{dialer: dial.Dialer{Lookup: host.lookup, Connect: host.connect}, allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}}
		dial := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			c, err := g.dial(ctx, "tcp", "crm.example:80")
			if c != nil {
				c.Close()
			}
			return err
		}
		must(t, dial())
		host.took()

		g.allow = nil
		if err := dial(); err == nil || isA[*addressError](err) || !slices.Equal(host.took(), ips[:1]) {
			t.Errorf("dial of %v, the last of which answered and is now refused: got %v, want the first dialed alone", ips, err)
		}
		host.ips = ips[1:]
		if err := dial(); !isA[*addressError](err) || host.took() != nil {
			t.Errorf("dial of %v, which answered and is now refused: got %v, want an *addressError and no dial", ips[1:], err)
		}
		host.ips, host.live = addresses("8.8.8.8", "9.9.9.9"), netip.MustParseAddr("8.8.8.8")
		if err, got := dial(), host.took(); err != nil || !slices.Equal(got, host.ips[:1]) {
			t.Errorf("dial of %v after others: got %v and dials of %v, want the first", host.ips, err, got)
		}
	})
}
