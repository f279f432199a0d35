// Package dial connects to hosts that have several addresses.
package dial

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// A Dialer connects to hosts. The addresses of a host share the time until the deadline of the
// context, so that each is dialed. A net.Dialer does not do that: it gives each at least two
// seconds. If an address answers although earlier ones do not, it is dialed first for a while.
//
// The zero value is ready for use. Its methods may be called concurrently.
type Dialer struct {
	Lookup  func(ctx context.Context, network, host string) ([]netip.Addr, error) // nil: that of net.DefaultResolver
	Connect func(ctx context.Context, network, addr string) (net.Conn, error)     // nil: that of a net.Dialer

	mu       sync.Mutex
	answered map[string]answer // by host and port, at most maxAnswered
}

// An answer is the address of a host that answered when an earlier one did not.
type answer struct {
	ip    netip.Addr
	until time.Time // when it is forgotten, so that the host's own order counts again
}

const (
	maxAddresses  = 32 // of a name that are dialed for one connection
	maxDials      = 4  // in flight for one connection
	maxAnswered   = 1024
	answeredFor   = 5 * time.Minute
	fallbackDelay = 300 * time.Millisecond // as in package net
)

// Dial connects to a host and port. If choose is not nil, it gets the host and its addresses, and returns
// those to dial, or an error.
func (d *Dialer) Dial(ctx context.Context, network, addr string, choose func(host string, ips []netip.Addr) ([]netip.Addr, error)) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	ips, err := d.resolve(ctx, host)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	if choose != nil {
		if ips, err = choose(host, ips); err != nil {
			return nil, err
		}
	}
	ips = d.order(addr, ips)
	c, i, err := d.race(ctx, network, port, ips)
	if i > 0 {
		d.remember(addr, ips[i])
	}
	return c, err
}

// resolve returns the addresses of host, at least one, IPv4 addresses in their 4-byte form.
func (d *Dialer) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip.Unmap()}, nil
	}
	lookup := d.Lookup
	if lookup == nil {
		lookup = net.DefaultResolver.LookupNetIP
	}
	ips, err := lookup(ctx, "ip", host)
	if err == nil && len(ips) == 0 {
		err = &net.DNSError{Err: "no suitable address found", Name: host, IsNotFound: true}
	}
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	return ips, err
}

// order returns the addresses to dial for addr, in their order: first the one that answered lately,
// if it is among ips, then the families in turn (RFC 8305, section 4).
func (d *Dialer) order(addr string, ips []netip.Addr) []netip.Addr {
	d.mu.Lock()
	a, ok := d.answered[addr]
	if ok && !time.Now().Before(a.until) {
		delete(d.answered, addr)
		ok = false
	}
	d.mu.Unlock()
	if i := slices.Index(ips, a.ip); ok && i > 0 {
		ips = slices.Insert(slices.Delete(ips, i, i+1), 0, a.ip)
	}
	var families [2][]netip.Addr
	for _, ip := range ips {
		n := 0
		if ip.Is4() != ips[0].Is4() {
			n = 1
		}
		families[n] = append(families[n], ip)
	}
	ordered := make([]netip.Addr, 0, len(ips))
	for i := range ips {
		for _, f := range families {
			if i < len(f) {
				ordered = append(ordered, f[i])
			}
		}
	}
	return ordered[:min(len(ordered), maxAddresses)]
}

// remember makes order put ip first for addr, for a while.
func (d *Dialer) remember(addr string, ip netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.answered == nil {
		d.answered = make(map[string]answer)
	}
	for other := range d.answered {
		if len(d.answered) < maxAnswered {
			break
		}
		delete(d.answered, other)
	}
	d.answered[addr] = answer{ip, time.Now().Add(answeredFor)}
}

// race dials the addresses one after the other until one answers, and returns the connection and
// the index of its address. If the dial of an address fails, or takes longer than its share of the
// time, race dials the next address. A slow dial goes on for a while. If no address answers, the
// error is that of the first one.
func (d *Dialer) race(ctx context.Context, network, port string, ips []netip.Addr) (net.Conn, int, error) {
	connect := d.Connect
	if connect == nil {
		connect = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	if len(ips) == 1 {
		c, err := connect(ctx, network, net.JoinHostPort(ips[0].String(), port))
		return c, 0, err
	}
	type result struct {
		i   int
		c   net.Conn
		err error
	}
	results := make(chan result)
	begun, inFlight := 0, 0
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for range inFlight {
			if r := <-results; r.err == nil {
				r.c.Close()
			}
		}
	}()
	errs := make([]error, len(ips))
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		var r result
		select {
		case <-next.C:
			i, left, share := begun, len(ips)-begun, fallbackDelay
			if deadline, ok := ctx.Deadline(); ok {
				share = min(share, time.Until(deadline)/time.Duration(left))
			}
			begun++
			inFlight++
			if left > 1 {
				next.Reset(share)
			}
			go func() { // the deferred function waits for its result
				ctx := ctx
				if left > maxDials {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, (maxDials-1)*share)
					defer cancel()
				}
				c, err := connect(ctx, network, net.JoinHostPort(ips[i].String(), port))
				results <- result{i, c, err}
			}()
			continue
		case r = <-results:
			inFlight--
		}
		if r.err == nil {
			return r.c, r.i, nil
		}
		errs[r.i] = r.err
		switch {
		case begun < len(ips) && ctx.Err() == nil:
			if r.i == begun-1 {
				next.Reset(0)
			}
		case inFlight == 0:
			return nil, 0, errs[0]
		}
	}
}
